"""`SideMemoryEdit`: a second value matrix beside a layer's own, and the score that says when it answers.

Wang et al. 2024, "WISE: Rethinking the Knowledge Memory for Lifelong Model Editing of Large Language Models".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from corrigenda.edits.origin import Origin, require_finite
from corrigenda.edits.routed import RoutedEdit
from corrigenda.edits.state import EditorState
from corrigenda.models.memory import FFNMemory
from corrigenda.models.routes import MAIN, Passage


@dataclass(frozen=True, eq=False)
class SideMemoryEdit(RoutedEdit):
    """Side memories V' of one layer, kept as their differences from its values V.

    The routing score of a prompt x with coefficients m_t at its tokens t is

        D(x) = mean over t of || m_t (V' - V) ||_2        (WISE, eq. 3 and 4)

    over all tokens of the prompt but the first token of the text. That one (the BOS where a model has one) has
    activations that are unlike any other's and nearly the same in every text, so that it says nothing about the prompt;
    the side memory leaves it alone, too. A prompt of one token has D = 0.

    The side memory answers, at all tokens but the first, in the rows with D > epsilon; the model's own memory answers
    in the others. Of several side memories whose D is above their own epsilon the one with the largest D answers. This
    is decided when the prompt is seen and stays for all that follows it (`corrigenda.edits.routed`).

    Attributes:
        deltas: V' - V of each side memory, (memory, d_ffn, d_model), in float32 on the CPU.
        epsilons: the threshold of each, (memory,).
    """

    deltas: Tensor
    epsilons: Tensor
    kind: ClassVar[str] = "side_memory"
    saved_tensors: ClassVar[tuple[str, ...]] = ("deltas", "epsilons")

    def __post_init__(self) -> None:
        deltas, epsilons = self.deltas.detach().float().cpu(), self.epsilons.detach().float().cpu()
        if deltas.ndim != 3 or epsilons.shape != deltas.shape[:1]:
            raise ValueError(
                f"side memories of shape {tuple(deltas.shape)} with thresholds of shape {tuple(epsilons.shape)}: "
                "they have to be (memory, d_ffn, d_model) and (memory,)"
            )
        require_finite(self.kind, {"deltas": deltas})
        if bool(epsilons.isnan().any()) or bool((epsilons < 0).any()):
            raise ValueError(
                f"a side memory's threshold has to be a number that is not negative: {epsilons[:5].tolist()}"
            )
        object.__setattr__(self, "deltas", deltas)
        object.__setattr__(self, "epsilons", epsilons)

    @classmethod
    def of(
        cls, memory: FFNMemory, origin: Origin, deltas: Tensor, epsilons: Tensor, state: EditorState | None = None
    ) -> SideMemoryEdit:
        """Side memories of one layer of a model."""
        return cls(origin, memory.layer, memory.path, deltas, epsilons, state=state)

    def norm(self) -> float:
        """The Frobenius norm of V' - V; of several side memories, of all together."""
        return float(self.deltas.norm())

    @property
    def _shape(self) -> tuple[int, int]:
        return self.deltas.shape[1], self.deltas.shape[2]

    def _route(self, placed: list[Tensor], coefficients: Tensor, passage: Passage) -> Tensor:
        deltas, epsilons = placed
        counted = passage.prompt & (passage.place > 1)
        scores = torch.stack([routing_score(coefficients, delta, counted) for delta in deltas], dim=1)
        scores = torch.where(scores > epsilons, scores, -1.0)
        largest, which = scores.max(1)
        return torch.where(largest >= 0, which, MAIN)

    def _answer(
        self, placed: list[Tensor], coefficients: Tensor, output: Tensor, memory: int, passage: Passage
    ) -> Tensor:
        deltas, _ = placed
        change = coefficients.to(deltas.dtype) @ deltas[memory]
        return output + torch.where((passage.place > 1)[..., None], change, 0).to(output.dtype)

    def _summary(self) -> str:
        n = len(self.deltas)
        what = "a side memory" if n == 1 else f"{n} side memories"
        thresholds = ", ".join(f"{value:.3g}" for value in self.epsilons[:5].tolist()) + (", ..." if n > 5 else "")
        return f"layer {self.layer}, {what}, |V' - V| {self.norm():.3f}, epsilon {thresholds}"


def routing_score(coefficients: Tensor, delta: Tensor, counted: Tensor) -> Tensor:
    """D of each row, (batch,): the mean of || m (V' - V) ||_2 over the counted positions; 0 where none counts.

    Coefficients m are (batch, position, d_ffn), `delta`, in which it is differentiable, V' - V, (d_ffn, d_model),
    `counted` (batch, position).
    """
    # Only at the positions that count: a norm's gradient at zero is none, and padding need not be multiplied.
    return mean_norms(coefficients[counted].to(delta.dtype), delta, counted.nonzero()[:, 0], counted.sum(1))


def mean_norms(coefficients: Tensor, delta: Tensor, owner: Tensor, lengths: Tensor) -> Tensor:
    """The mean of || m delta ||_2 over each row's positions, (row,); 0 for a row that has none.

    Coefficients m are those of all rows' positions, (n, d_ffn), `delta` is (d_ffn, d_model), `owner`, (n,), the row of
    each position, `lengths`, (row,), how many each has.
    """
    norms = (coefficients @ delta).square().sum(1).clamp(min=TINY).sqrt()
    sums = torch.zeros(len(lengths), dtype=norms.dtype, device=norms.device).index_add(0, owner, norms)
    return sums / lengths.clamp(min=1)


TINY = math.ldexp(1.0, -100)
"""Under a square root, so that its gradient at zero is zero and not infinite."""
