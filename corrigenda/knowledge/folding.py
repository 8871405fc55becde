"""`Folding`: the entries of a knowledge base folded into the values of their layers, by one least-squares problem.

For the entries of a layer, with keys k and values v taken on the unedited model, V0 its values and C = E[k k^T] over
text, the values V that minimise lambda tr((V - V0)^T C (V - V0)) + sum |k V - v|^2 are

    V = A^-1 B,     A = lambda C + sum k k^T,     B = lambda C V0 + sum k v^T

(a linear memory, as in Larimar, Das et al. 2024; with lambda C as in MEMIT, Meng et al. 2023, eq. 14). A and B are sums
over the entries: inserting, changing and deleting one are exact, and in any order. What is solved is the change, with
B - A V0 = sum k (v - k V0)^T on the right, so that without entries nothing changes at all. Sums are taken in float64
in the order of the facts' ids: the same list gives the same bits, whatever was in it before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from corrigenda.edits.low_rank import LowRankEdit
from corrigenda.edits.origin import Origin
from corrigenda.edits.values import ValueEdit
from corrigenda.facts import Fact
from corrigenda.knowledge.entries import Entry, by_layer
from corrigenda.language_model import LanguageModel
from corrigenda.settings.checked import Positive, check_value

ROWS = 1024
"""So many entries are added at once."""


@dataclass(frozen=True, eq=False)
class Sums:
    """The sums over a layer's entries.

    Attributes:
        gram: sum k k^T, (d_ffn, d_ffn), float64.
        cross: sum k (v - k V0)^T, (d_ffn, d_model), float64.
    """

    gram: Tensor
    cross: Tensor

    @classmethod
    def of(cls, keys: Sequence[Tensor], values: Sequence[Tensor], untouched: Tensor) -> Sums:
        """The sums in the order given.

        Args:
            keys: k, (d_ffn,) each.
            values: v, (d_model,) each.
            untouched: V0, (d_ffn, d_model).
        """
        V0 = untouched.double().cpu()
        gram = torch.zeros(len(V0), len(V0), dtype=torch.float64)
        cross = torch.zeros_like(V0)
        for start in range(0, len(keys), ROWS):
            K, residuals = residuals_of(keys[start : start + ROWS], values[start : start + ROWS], V0)
            gram += K.T @ K
            cross += K.T @ residuals
        return cls(gram, cross)


@dataclass(frozen=True, eq=False)
class Folding:
    """Compiles entries into a change of their layers' values.

    The edit is of low rank where that takes less room than whole matrices, in all layers.

    Attributes:
        moments: by layer C, (d_ffn, d_ffn).
        weight: lambda: how much the text counts as a whole, where each entry counts 1.

    Raises:
        SettingsError: lambda is not above 0.
    """

    moments: Mapping[int, Tensor]
    weight: float
    name: str = field(default="knowledge_base", init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", check_value("Folding", "weight", self.weight, Positive))

    def __call__(self, lm: LanguageModel, facts: Sequence[Fact], entries: Sequence[Entry]) -> LowRankEdit | ValueEdit:
        """The edit; see `corrigenda.knowledge.entries.Compiler`.

        Raises:
            ValueError: C is missing for a layer or of another shape, or A is singular.
        """
        of_layer = by_layer(entries)
        settings = {"weight": self.weight, "solver": dict(entries[0].settings) if entries else {}}
        origin = Origin(lm.name, lm.fingerprint, self.name, settings, tuple(facts))
        layers = sorted(of_layer)
        if all(_is_small(len(of_layer[layer]), lm.memory(layer).values) for layer in layers):
            return LowRankEdit.of(lm, origin, {layer: self._factors(lm, layer, of_layer[layer]) for layer in layers})
        return ValueEdit.of(lm, origin, {layer: self._delta(lm, layer, of_layer[layer]) for layer in layers})

    def _factors(self, lm: LanguageModel, layer: int, entries: Sequence[Entry]) -> tuple[Tensor, Tensor]:
        """V - V0 = (A^-1 K^T) R, as its two factors."""
        K, residuals = residuals_of(*_columns(entries), lm.memory(layer).values.double().cpu())
        return torch.cholesky_solve(K.T, self._factor(layer, K.T @ K)), residuals

    def _delta(self, lm: LanguageModel, layer: int, entries: Sequence[Entry]) -> Tensor:
        """V - V0 = A^-1 (B - A V0)."""
        sums = Sums.of(*_columns(entries), lm.memory(layer).values)
        return torch.cholesky_solve(sums.cross, self._factor(layer, sums.gram))

    def _factor(self, layer: int, gram: Tensor) -> Tensor:
        """The Cholesky factor of A."""
        moment = self.moments.get(layer)
        if moment is None:
            known = ", ".join(map(str, sorted(self.moments))) or "none"
            raise ValueError(f"Folding: entries are at layer {layer}, and second moments are given of layers: {known}")
        if moment.shape != gram.shape:
            raise ValueError(
                f"Folding: the second moment of layer {layer} has the shape {tuple(moment.shape)}, its keys need "
                f"{tuple(gram.shape)}"
            )
        factor, failed = torch.linalg.cholesky_ex(self.weight * moment.double().cpu() + gram)
        if int(failed) or not bool(factor.isfinite().all()):
            raise ValueError(
                f"Folding: A = lambda C + sum k k^T of layer {layer} is not positive definite: take the second moment "
                f"over more tokens than it has rows ({len(gram)}), or add a ridge to it"
            )
        return factor


def residuals_of(keys: Sequence[Tensor], values: Sequence[Tensor], untouched: Tensor) -> tuple[Tensor, Tensor]:
    """The keys K, (n, d_ffn), and what they lack of their values, R = v - k V0, (n, d_model); in float64."""
    K = torch.stack(list(keys)).double()
    return K, torch.stack(list(values)).double() - K @ untouched


def _columns(entries: Sequence[Entry]) -> tuple[list[Tensor], list[Tensor]]:
    return [entry.key for entry in entries], [entry.value for entry in entries]


def _is_small(n: int, values: Tensor) -> bool:
    """Whether two factors of rank n are fewer numbers than a change of the whole matrix."""
    return n * sum(values.shape) < values.numel()
