"""`AttachedEdit`: entries beside the weights, which a layer asks by generalized cross-attention.

Guo & Chen 2025, "Decoupling Knowledge and Reasoning in Transformers: A Modular Architecture with Generalized
Cross-Attention". A layer with entries of keys k, values v and thresholds t, and with queries q of its own view, answers

    C = f(q k^T / sqrt(d_k) - t) v

beside its FFN, whose output C is added to. `corrigenda.knowledge.attached` makes such an edit of a knowledge base, and
says what of it is the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from corrigenda.edits.edit import Editable
from corrigenda.edits.hooked import HookedEdit
from corrigenda.edits.origin import Origin, require_finite
from corrigenda.edits.routed import RoutedLayer, answering
from corrigenda.indices.index import Index, Nearest, nearest
from corrigenda.indices.kinds import Kind, index_of
from corrigenda.models.routes import MAIN, Passage
from corrigenda.settings.checked import AtLeastOne, check_value

Activation = Literal["step", "relu"]
"""f: the whole value above the threshold and nothing below (``step``), or as much as the score is above it, as in the
paper (``relu``). An entry's value is scaled so that at its own key it answers the same by either."""


class Placed(NamedTuple):
    """A layer's entries on the model's device."""

    mean: Tensor
    projection: Tensor
    keys: Tensor
    values: Tensor
    thresholds: Tensor


@dataclass(frozen=True, eq=False)
class AttachedLayer(RoutedLayer):
    """The entries at one layer.

    The layer's view of coefficients m are the queries q = s u / |u| with u = (m - mean) projection. Keys have been
    through the same view. With s = d_k^(1/4) on both sides, q k^T / sqrt(d_k) is the cosine of the two; so keys are
    kept with the length 1, and a threshold is a cosine.

    An entry speaks at the positions of a prompt at which its score is above its own threshold, at most `most` entries
    at one position: those that are the furthest above. They are added to the FFN's output there. Whether any entry
    speaks in a row is decided once, when its prompt is seen (`corrigenda.edits.routed`); at tokens that follow the
    prompt none speaks, and what follows reads the answer by attention.

    Attributes:
        layer: the layer.
        module: the name of the module that holds its values.
        mean: what is taken off the coefficients, (d_ffn,); tensors are in float32 on the CPU.
        projection: (d_ffn, d_k).
        keys: of length 1, (entry, d_k).
        values: (entry, d_model), as they are added where f is 1.
        thresholds: (entry,).
        activation: f.
        index: how the nearest entries are found; an index may miss an entry, which then does not speak.
        candidates: how many of them an index proposes.
        most: how many speak at one position, at most.

    Raises:
        EditRefusedError: a tensor is not finite.
        ValueError: shapes do not fit one another, or a setting cannot be.
    """

    layer: int
    module: str
    mean: Tensor
    projection: Tensor
    keys: Tensor
    values: Tensor
    thresholds: Tensor
    activation: Activation = "step"
    index: Kind = "exact"
    candidates: int = 256
    most: int = 8
    kind: ClassVar[str] = "attached"
    saved_tensors: ClassVar[tuple[str, ...]] = ("mean", "projection", "keys", "values", "thresholds")
    saved_settings: ClassVar[tuple[str, ...]] = ("layer", "module", "activation", "index", "candidates", "most")

    def __post_init__(self) -> None:
        for name in self.saved_tensors:
            object.__setattr__(self, name, getattr(self, name).detach().float().cpu())
        (n, d_k), d_ffn = self.keys.shape, len(self.mean)
        shapes = {name: tuple(getattr(self, name).shape) for name in self.saved_tensors}
        d_model = self.values.shape[-1]
        wanted = {"mean": (d_ffn,), "projection": (d_ffn, d_k), "keys": (n, d_k)}
        if shapes != {**wanted, "values": (n, d_model), "thresholds": (n,)}:
            said = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise ValueError(f"the attached entries of layer {self.layer} do not fit one another: {said}")
        if self.activation not in get_args(Activation):
            raise ValueError(f"activation={self.activation!r} must be one of {', '.join(get_args(Activation))}")
        check_value("AttachedLayer", "index", self.index, Kind)
        for name in ("candidates", "most"):
            check_value("AttachedLayer", name, getattr(self, name), AtLeastOne)
        require_finite(self.kind, {f"{name} of layer {self.layer}": getattr(self, name) for name in self.saved_tensors})

    def __len__(self) -> int:
        """How many entries it has."""
        return len(self.keys)

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self.mean), self.values.shape[1]

    @cached_property
    def _index(self) -> Index | None:
        # Made when the edit is first applied, and not for each time: an index of a million entries takes a minute.
        return index_of(self.index, self.keys)

    def _on(self, lm: Editable) -> Placed:
        _ = self._index
        return Placed(*super()._on(lm))

    def _route(self, placed: Placed, coefficients: Tensor, passage: Passage) -> Tensor:
        route = torch.full((len(coefficients),), MAIN, device=coefficients.device)
        speaks = torch.zeros_like(passage.prompt)
        speaks[passage.prompt] = self._nearest(placed, coefficients[passage.prompt], 1).scores[:, 0] > 0
        route[speaks.any(1)] = 0
        return route

    def _answer(self, placed: Placed, coefficients: Tensor, output: Tensor, memory: int, passage: Passage) -> Tensor:
        rows, positions = passage.prompt.nonzero(as_tuple=True)
        if not len(rows):
            return output  # only what follows the prompt
        found = self._nearest(placed, coefficients[rows, positions], self.most)
        speaks = found.scores[:, 0] > 0
        rows, positions = rows[speaks], positions[speaks]
        scores, numbers = found.scores[speaks], found.numbers[speaks].clamp(min=0)
        strengths = (scores > 0).float() if self.activation == "step" else scores.clamp(min=0)
        change = torch.einsum("nk,nkd->nd", strengths, placed.values[numbers])
        new = output.clone()
        new[rows, positions] = (output[rows, positions].float() + change).to(output.dtype)
        return new

    def _nearest(self, placed: Placed, coefficients: Tensor, most: int) -> Nearest:
        """The entries that are the furthest above their thresholds, for coefficients (n, d_ffn)."""
        queries = viewed(coefficients, placed.mean, placed.projection)
        return nearest(queries, placed.keys, most, self._index, self.candidates, placed.thresholds)

    def _summary(self) -> str:
        if not len(self):
            return f"layer {self.layer} has no entries"
        low, high = float(self.thresholds.min()), float(self.thresholds.max())
        return f"layer {self.layer} has {len(self)} entries, thresholds {low:.3g} to {high:.3g}"


@dataclass(frozen=True, eq=False)
class AttachedEdit(HookedEdit):
    """Entries beside the weights of one or several layers, each with its own view of the coefficients.

    Each layer decides by itself which of its entries speak. Without entries the model's forwards are bit for bit what
    they are without the edit. In rows in which none speaks no output is touched.

    Attributes:
        layers: the entries, layer by layer.
    """

    layers: tuple[AttachedLayer, ...]
    kind: ClassVar[str] = AttachedLayer.kind

    def __post_init__(self) -> None:
        named = [layer.layer for layer in self.layers]
        if len(set(named)) < len(named):
            raise ValueError(f"an attached edit names a layer twice: {named}")

    @classmethod
    def of(cls, origin: Origin, layers: Sequence[AttachedLayer]) -> AttachedEdit:
        """The edit of some layers' entries."""
        return cls(origin, tuple(sorted(layers, key=lambda layer: layer.layer)))

    @property
    def touched(self) -> tuple[int, ...]:
        """The layers that have entries, or could have."""
        return tuple(layer.layer for layer in self.layers)

    def decides(self, lm: Editable) -> bool:
        """Whether it has entries."""
        return any(map(len, self.layers))

    def _hooks(self, lm: Editable) -> AbstractContextManager[None]:
        # What is looked into runs on padding, too, and may then differ in the last bit: layers without entries are left
        # alone.
        asked = [layer for layer in self.layers if len(layer)]
        return answering(lm, asked) if asked else nullcontext()

    def _check(self, lm: Editable) -> None:
        for layer in self.layers:
            layer._check(lm)

    def _summary(self) -> str:
        return "; ".join(layer._summary() for layer in self.layers) or "no entries"

    def _tensors(self) -> dict[str, Tensor]:
        names = AttachedLayer.saved_tensors
        return {f"{layer.layer}.{name}": getattr(layer, name) for layer in self.layers for name in names}

    def _settings(self) -> dict[str, Any]:
        names = AttachedLayer.saved_settings
        return {"layers": [{name: getattr(layer, name) for name in names} for layer in self.layers]}

    @classmethod
    def _restore(cls, origin: Origin, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> AttachedEdit:
        layers = []
        for each in settings["layers"]:
            parts: dict[str, Any] = {n: tensors[f"{each['layer']}.{n}"] for n in AttachedLayer.saved_tensors}
            layers.append(AttachedLayer(**each, **parts))
        return cls(origin, tuple(layers))


def viewed(coefficients: Tensor, mean: Tensor, projection: Tensor) -> Tensor:
    """A layer's view of coefficients, with the length 1: (n, d_ffn) -> (n, d_k), in float32.

    `mean` is (d_ffn,), `projection` (d_ffn, d_k).
    """
    return torch.nn.functional.normalize((coefficients.to(mean.dtype) - mean) @ projection, dim=1)
