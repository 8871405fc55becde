"""`MaskedMemoryEdit`: a second value matrix beside a layer's own, of which each edit has its own rows.

Wang, Qin, Dimitriadis, Favero and Frossard 2025, "MEMOIR: Lifelong Model Editing with Minimal Overwrite and Informed
Retention for LLMs".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from corrigenda.edits.origin import require_finite
from corrigenda.edits.routed import RoutedEdit
from corrigenda.models.routes import MAIN, Passage


@dataclass(frozen=True, eq=False)
class MaskedMemoryEdit(RoutedEdit):
    """A residual memory W of one layer, of which an entry's mask lets some rows answer.

    The mask M(x) of a prompt x (TopHash) is of its mean coefficients, less those of other texts, b: the k indices with
    the largest magnitude, sent through a fixed permutation:

        M(x) = {permutation[i] : i among the k largest |mean over tokens of m_t - b|_i}

    The entry j* whose mask shares the most indices with M(x) answers if it shares at least `threshold` k of them:

        FFN(x) = m V + (m * M_j*) W           else m V, to the bit

    This is decided when the prompt is seen (`corrigenda.edits.routed`) and stays for all that follows it. The first
    token of a text, whose coefficients are unlike any other's, is neither counted nor answered for: a prompt of one
    token has no mask.

    Attributes:
        delta: W, (d_ffn, d_model), in float32 on the CPU.
        masks: of each entry, (entry, d_ffn), True for the rows of W that are its own; k in each.
        background: b, (d_ffn,).
        permutation: (d_ffn,), where each index of the coefficients is sent.
        threshold: the share of a mask that has to be met.

    Raises:
        EditRefusedError: a tensor is not finite.
        ValueError: shapes do not fit one another, or masks are not of one size.
    """

    delta: Tensor
    masks: Tensor
    background: Tensor
    permutation: Tensor
    threshold: float
    kind: ClassVar[str] = "masked_memory"
    saved_tensors: ClassVar[tuple[str, ...]] = ("delta", "masks", "background", "permutation")
    saved_settings: ClassVar[tuple[str, ...]] = ("layer", "module", "threshold")

    def __post_init__(self) -> None:
        for name in ("delta", "background"):
            object.__setattr__(self, name, getattr(self, name).detach().float().cpu())
        object.__setattr__(self, "masks", self.masks.detach().bool().cpu())
        object.__setattr__(self, "permutation", self.permutation.detach().long().cpu())
        d_ffn = len(self.background)
        fits = self.delta.ndim == self.masks.ndim == 2 and {len(self.delta), self.masks.shape[1]} == {d_ffn}
        if not fits or not torch.equal(self.permutation.sort().values, torch.arange(d_ffn)):
            shapes = ", ".join(f"{name} {tuple(getattr(self, name).shape)}" for name in self.saved_tensors)
            raise ValueError(f"the parts of a masked memory do not fit one another: {shapes}")
        if len(sizes := self.masks.sum(1).unique()) != 1 or not int(sizes):
            raise ValueError(f"the masks of a masked memory must be of one size above 0, not of {sizes.tolist()}")
        if not 0 < self.threshold <= 1:
            raise ValueError(f"a masked memory's threshold={self.threshold!r} must be a share above 0, up to 1")
        require_finite(self.kind, {"delta": self.delta, "background": self.background})

    @property
    def active(self) -> int:
        """k, how many rows each entry has."""
        return int(self.masks[0].sum())

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self.background), self.delta.shape[1]

    def _route(self, placed: list[Tensor], coefficients: Tensor, passage: Passage) -> Tensor:
        _, masks, background, permutation = placed
        counted = passage.prompt & (passage.place > 1)
        means = mean_coefficients(coefficients, counted)
        found = top_masks(means - background, permutation, self.active)
        shared, entry = (found.float() @ masks.T.float()).max(1)
        return torch.where(counted.any(1) & (shared >= self.threshold * self.active), entry, MAIN)

    def _answer(
        self, placed: list[Tensor], coefficients: Tensor, output: Tensor, memory: int, passage: Passage
    ) -> Tensor:
        delta, masks, _, _ = placed
        own = masks[memory]
        change = coefficients[..., own].to(delta.dtype) @ delta[own]
        return output + torch.where((passage.place > 1)[..., None], change, 0).to(output.dtype)

    def _summary(self) -> str:
        return (
            f"layer {self.layer}, {len(self.masks)} entries of {self.active} rows each, |W| "
            f"{float(self.delta.norm()):.3f}, spoken where {self.threshold:.0%} of a mask is met"
        )


def mean_coefficients(coefficients: Tensor, counted: Tensor) -> Tensor:
    """The mean over the counted positions of each row, (batch, d_ffn), in float32; 0 for a row that has none.

    Coefficients m are (batch, position, d_ffn), `counted` (batch, position).
    """
    sums = torch.where(counted[..., None], coefficients.float(), 0).sum(1)
    return sums / counted.sum(1, keepdim=True).clamp(min=1)


def top_masks(features: Tensor, permutation: Tensor, active: int) -> Tensor:
    """The indices of the largest magnitudes, sent through a permutation, as masks: (n, d_ffn) -> (n, d_ffn)."""
    largest = features.abs().topk(active, dim=1).indices
    return torch.zeros_like(features, dtype=torch.bool).scatter(1, permutation[largest], True)
