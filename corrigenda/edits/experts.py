"""`ExpertsEdit`: matrices of low rank added to the values of some experts of a mixture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from corrigenda.edits.edit import Editable
from corrigenda.edits.origin import Origin, require_factors
from corrigenda.edits.weights import WeightEdit
from corrigenda.errors import WrongModelError


@dataclass(frozen=True, eq=False)
class ExpertsEdit(WeightEdit):
    """Adds a low-rank matrix to the values of some experts: V_e <- V_e + A_e B.

    Factors are, for each layer and expert, A_e, (d_ffn, rank), and B, (rank, d_model), in float32 on the CPU.
    """

    factors: Mapping[tuple[int, int], tuple[Tensor, Tensor]]
    kind: ClassVar[str] = "experts"
    elsewhere: ClassVar[str] = (
        "all experts of a layer lie in one tensor there; export the edited model as a folder (corrigenda export "
        "form=model, lm.save_pretrained), and convert that with llama.cpp"
    )

    def __post_init__(self) -> None:
        factors = {
            (int(layer), int(expert)): require_factors(self.kind, f"layer {layer}, expert {expert}", *pair)
            for (layer, expert), pair in self.factors.items()
        }
        object.__setattr__(self, "factors", factors)

    @property
    def changed(self) -> Mapping[tuple[int, int], tuple[int, int]]:
        """The layers and experts that are changed, and the shape (d_ffn, d_model) of each one's change."""
        return {place: (left.shape[0], right.shape[1]) for place, (left, right) in self.factors.items()}

    def delta(self, layer: Any) -> Tensor:
        """A_e B, the change of an expert's values, (d_ffn, d_model)."""
        left, right = self.factors[layer]
        return left @ right

    def norm(self, layer: int) -> float:
        """The Frobenius norm of the layer's change, over all of its experts."""
        norms = [float(self.delta(place).norm()) for place in self.factors if place[0] == layer]
        return float(torch.tensor(norms, dtype=torch.float64).norm())

    def _check(self, lm: Editable) -> None:
        for layer, expert in self.changed:
            experts = lm.architecture.experts(layer) if 0 <= layer < lm.n_layers else None
            if experts is None or not 0 <= expert < len(experts):
                raise WrongModelError(f"the edit changes expert {expert} of layer {layer}, which {lm.name} has not")
        super()._check(lm)

    def _summary(self) -> str:
        parts = [
            f"layer {layer}, expert {expert}, rank {left.shape[1]}, |delta V| {float((left @ right).norm()):.3f}"
            for (layer, expert), (left, right) in self.factors.items()
        ]
        return "; ".join(parts)

    def _tensors(self) -> dict[str, Tensor]:
        return {
            f"{layer}.{expert}.{side}": part
            for (layer, expert), pair in self.factors.items()
            for side, part in zip("AB", pair, strict=True)
        }

    @classmethod
    def _restore(cls, origin: Origin, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> ExpertsEdit:
        factors = {}
        for name in tensors:
            layer, expert, side = name.split(".")
            if side == "A":
                factors[int(layer), int(expert)] = (tensors[name], tensors[f"{layer}.{expert}.B"])
        return cls(origin, factors)
