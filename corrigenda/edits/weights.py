"""`WeightEdit`: edits that add a matrix to the values of some layers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from corrigenda.edits.edit import Edit, Editable
from corrigenda.errors import WrongModelError
from corrigenda.models.bare import BareModel, Place
from corrigenda.models.memory import FFNMemory


@dataclass(frozen=True, eq=False)
class WeightEdit(Edit):
    """An edit that adds a matrix to the values of some layers."""

    in_weights: ClassVar[bool] = True

    @property
    @abstractmethod
    def changed(self) -> Mapping[Any, tuple[int, int]]:
        """The layers (and, of experts, their numbers) that are changed, and each change's (d_ffn, d_model)."""

    @abstractmethod
    def delta(self, layer: Any) -> Tensor:
        """The change of the values of a layer (or of an expert in it), (d_ffn, d_model)."""

    @property
    def touched(self) -> tuple[Place, ...]:
        """The layers that are changed."""
        return tuple(self.changed)

    def norm(self, layer: int) -> float:
        """The Frobenius norm of the layer's change."""
        return float(self.delta(layer).norm())

    def _check(self, lm: Editable) -> None:
        for layer, shape in self.changed.items():
            if isinstance(layer, int) and not 0 <= layer < lm.n_layers:
                raise WrongModelError(f"the edit changes layer {layer}, {lm.name} has {lm.n_layers}")
            values = lm.memory_at(layer).values
            if values.shape != shape:
                raise WrongModelError(
                    f"layer {layer}: the edit changes values of shape {shape}, {lm.name} has {tuple(values.shape)}"
                )


def memories_of(lm: BareModel, layers: Collection[int]) -> dict[int, FFNMemory]:
    """The memory of each layer, by the number it was named by; negative ones count from the end.

    Raises:
        IndexError: the model has no such layer.
        ValueError: a layer is named twice.
    """
    memories = {layer: lm.memory(layer) for layer in layers}
    if len({memory.layer for memory in memories.values()}) < len(memories):
        raise ValueError(f"a layer is named twice: {sorted(memories)}")
    return memories


def require_writable(lm: BareModel, layers: Collection[int]) -> None:
    """Refuses layers whose values cannot be changed, before anything is computed for them; experts are not looked at.

    Raises:
        IndexError: the model has no such layer.
        UnsupportedModelError: a layer's values are quantised, or not on a device.
    """
    for layer in layers:
        if lm.architecture.experts(layer) is None:
            _ = lm.memory(layer).values
