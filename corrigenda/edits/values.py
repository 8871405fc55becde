"""`ValueEdit`: whole matrices added to the values of some layers, where a change has no small rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from corrigenda.edits.origin import Origin, require_finite
from corrigenda.edits.weights import WeightEdit, memories_of
from corrigenda.models.bare import BareModel


@dataclass(frozen=True, eq=False)
class ValueEdit(WeightEdit):
    """Adds a matrix to the values of some layers: V <- V + D.

    Attributes:
        deltas: for each layer D, (d_ffn, d_model), in float32 on the CPU.
    """

    deltas: Mapping[int, Tensor]
    kind: ClassVar[str] = "values"

    def __post_init__(self) -> None:
        deltas = {}
        for layer, delta in self.deltas.items():
            if delta.ndim != 2:
                raise ValueError(
                    f"layer {layer}: a change of values is (d_ffn, d_model), not of shape {tuple(delta.shape)}"
                )
            deltas[int(layer)] = delta.detach().float().cpu().clone()
            require_finite(self.kind, {f"layer {layer}: D": deltas[int(layer)]})
        object.__setattr__(self, "deltas", deltas)

    @classmethod
    def of(cls, lm: BareModel, origin: Origin, deltas: Mapping[int, Tensor]) -> ValueEdit:
        """An edit of the values of some layers of a model; negative layers count from the end.

        Raises:
            IndexError: the model has no such layer.
            EditRefusedError: a change is not finite.
            ValueError: a layer is named twice, or a change is of the wrong shape.
        """
        return cls(origin, {memory.layer: deltas[layer] for layer, memory in memories_of(lm, deltas).items()})

    @property
    def changed(self) -> Mapping[int, tuple[int, int]]:
        """The layers that are changed, and the shape (d_ffn, d_model) of each one's change."""
        return {layer: (delta.shape[0], delta.shape[1]) for layer, delta in self.deltas.items()}

    def delta(self, layer: Any) -> Tensor:
        """D, the change of the layer's values, (d_ffn, d_model)."""
        return self.deltas[layer]

    def _summary(self) -> str:
        return "; ".join(f"layer {layer}, whole, |delta V| {self.norm(layer):.3f}" for layer in self.deltas)

    def _factors(self) -> Mapping[int, tuple[Tensor, Tensor]]:
        return {layer: (delta, torch.eye(delta.shape[1])) for layer, delta in self.deltas.items()}

    def _tensors(self) -> dict[str, Tensor]:
        return {str(layer): delta for layer, delta in self.deltas.items()}

    @classmethod
    def _restore(cls, origin: Origin, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> ValueEdit:
        return cls(origin, {int(layer): delta for layer, delta in tensors.items()})
