"""SUIT: keys without what all names share, and values that change along two directions of their own.

Park, Kim and Jo 2026, "SUIT: Knowledge Editing with Subspace-Aware Key-Value Mappings" (ICLR 2026, arXiv 2509.24502).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from corrigenda import EditRefusedError, Fact, LanguageModel
from corrigenda.data.relations import subjects
from corrigenda.models.alone import one_thread
from corrigenda.settings.checked import AtLeastOne, NotNegative, Positive, ShareBelowOne, checked
from corrigenda.system.files import cache_folder, read_kept, write_checked
from corrigenda.system.progress import track
from editing.locate_then_edit.change import Change
from editing.locate_then_edit.memit import Memit
from editing.locate_then_edit.passes import SubjectRows
from editing.locate_then_edit.prompts import build_prompts
from editing.locate_then_edit.targets import ValueSettings
from editing.registry import register
from editing.spaces import Number, Space


class Swap(Change):
    """A change that swaps what a state has of two directions, which are solved for.

        delta' = (h.w2 - h.w1) w1 + (h.w1 - h.w2) w2,    |w1| = |w2| = 1

    with h = `old`. The parameter is w1 and w2 before they are normalised, (fact, part, 2, d_model). A change beyond the
    bound is shortened.

    Args:
        old: what is changed, (fact, part, d_model).
        bound: on the change's norm, (fact, part, 1).
        lr: Adam's learning rate.
        weight_decay: weight of |delta'| / |h|^2.
        overlap: weight of (w1.w2)^2.
    """

    def __init__(self, old: Tensor, bound: Tensor, lr: float, weight_decay: float, overlap: float) -> None:
        super().__init__(old, bound, lr, weight_decay)
        self.overlap = overlap

    def start(self) -> Tensor:
        """Two random vectors, the same for all facts: at w1 = w2 there would be no gradient."""
        drawn = torch.randn(2, self.old.shape[2], generator=torch.Generator().manual_seed(0)).to(self.old)
        return drawn.repeat(*self.old.shape[:2], 1, 1)

    def directions(self) -> tuple[Tensor, Tensor]:
        """w1 and w2, (fact, part, d_model) each."""
        first, second = torch.nn.functional.normalize(self.parameter, dim=3).unbind(2)
        return first, second

    def delta(self) -> Tensor:
        """delta', (fact, part, d_model)."""
        first, second = self.directions()
        found = (self.old * (second - first)).sum(2, keepdim=True) * (first - second)
        return found * (self.bound / found.norm(dim=2, keepdim=True)).clamp(max=1)

    def penalty(self, delta: Tensor) -> Tensor:
        """What the change and its directions add to each fact's loss, (fact,)."""
        first, second = self.directions()
        return super().penalty(delta) + self.overlap * (first * second).sum(2).square().sum(1)

    def keep_within_bound(self) -> None:
        """Nothing: `delta` is within it."""


@dataclass(frozen=True)
@checked
class SwapSettings(ValueSettings):
    """How directions are solved for: w1 and w2 by -log p(new object) + overlap (w1.w2)^2, from random ones.

    As published nothing else holds delta' back; the other weights and the bound are 0 and out of reach by default
    (|delta'| is at most 4 |h|).

    Attributes:
        overlap: the weight of (w1.w2)^2.
    """

    kept_format: ClassVar[int] = 3

    steps: AtLeastOne = 40
    lr: Positive = 0.1
    weight_decay: NotNegative = 0.0
    kl_factor: NotNegative = 0.0
    confident_steps: AtLeastOne | None = 6
    overlap: NotNegative = 0.3

    def change(self, old: Tensor, bound: Tensor) -> Change:
        """What is solved for, as in `ValueSettings`."""
        return Swap(old, bound, self.lr, self.weight_decay, self.overlap)


@register(
    "suit",
    paper="Park et al. 2026, SUIT: Knowledge Editing with Subspace-Aware Key-Value Mappings",
    aim="many facts, with keys freed of what all names share and values along two directions",
    space=Space(
        "several",
        (Number("energy", 0.0, 0.9, after_targets=True), Number("ratio", 0.05, 30.0, log=True, after_targets=True)),
    ),
    unranked="it has not been run there yet",
)
@dataclass(frozen=True)
@checked
class Suit(Memit):
    """Subspace knowledge edit, on MEMIT's least-squares problem.

    Keys are freed of the directions that the keys of many names share. With U the leading left singular vectors of
    these (as columns), the fewest that hold the share `energy` of the sum of their squared singular values:

        k' = k - U U^T k

    The names are those that ship (`corrigenda.data.relations.subjects`), 140 of 14 kinds; no fact is among them. Their
    keys are taken as the facts' are, on the unedited model, and kept on disk. The value's change is `Swap`'s, with h
    the state of the bare prompt, and goes into all contexts.

    The authors take 10,000 entities of PARAREL, and AlphaEdit's closed form in place of MEMIT's.

    Attributes:
        energy: the share of the names' energy that U holds at least; the authors take 0.4 or 0.6, by the model.
        value: how directions are solved for.
    """

    no_mixture: ClassVar[str] = "of which each has keys of its own"

    name: str = "suit"
    energy: ShareBelowOne = 0.4
    value: ValueSettings = field(default_factory=SwapSettings)

    @one_thread
    def prepare(self, lm: LanguageModel) -> None:
        """As in `ClosedForm`, and takes the names' keys."""
        super().prepare(lm)
        self._name_keys(lm)

    @one_thread
    def written_keys(self, lm: LanguageModel, layer: int, keys: Tensor) -> Tensor:
        """k', (fact, d_ffn)."""
        shared = shared_directions(self._name_keys(lm)[layer], self.energy)
        return (keys.double() - keys.double() @ shared.T @ shared).to(keys)

    def _name_keys(self, lm: LanguageModel) -> Mapping[int, Tensor]:
        """By layer the names' keys, (name, d_ffn)."""
        prefixes, weights = self._contexts(lm)
        names = [name for kind in subjects().values() for name in kind]
        return name_keys(lm, self.resolved_layers(lm), names, prefixes, weights)


def shared_directions(keys: Tensor, energy: float) -> Tensor:
    """U^T: the fewest leading singular directions of keys, (n, d_ffn), that hold a share of their energy, (m, d_ffn).

    In float64; the share is from 0 (no direction) to below 1.
    """
    _, sizes, directions = torch.linalg.svd(keys.double(), full_matrices=False)
    held = sizes.square().cumsum(0)
    before = held - sizes.square()  # by the directions ahead of each
    return directions[before < energy * held[-1]]


def name_keys(
    lm: LanguageModel, layers: Sequence[int], names: Sequence[str], prefixes: Sequence[str], weights: Tensor
) -> Mapping[int, Tensor]:
    """By layer the keys of names on the unedited model, (name, d_ffn), float32; from the disk, or kept there.

    Contexts, and how much each counts, (prefix,), are as of the facts' keys. Names that are an outlier wherever they
    stand, or longer than the model reads, are left out.
    """
    asked = json.dumps([lm.cache_key, str(lm.dtype), list(layers), list(names), list(prefixes), weights.tolist()])
    path = cache_folder() / "name_keys" / f"{hashlib.sha256(asked.encode()).hexdigest()}.safetensors"
    kept = read_kept(path, "the keys of names are taken again")
    if kept is not None:
        return {int(layer): keys for layer, keys in kept[0].items()}
    settings, prompts = ValueSettings(), []
    with lm.edits.suspended():
        for name in track(names, f"Keys of {len(names)} names", bar=False):
            fact = [Fact(name, "{}", "a name", id=name)]  # what is predicted does not matter
            with suppress(EditRefusedError):
                rows = build_prompts(lm, fact, prefixes, settings.kl_prompt, settings.kl_position)
                prompts.append(rows.ordinary(lm, fact, layers))
        found = SubjectRows(lm, prompts)
        keys = {layer: found.measured(lm, layer, layer, "ffn", weights)[0] for layer in layers}
    write_checked(path, {str(layer): one for layer, one in keys.items()}, {})
    return keys
