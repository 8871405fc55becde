"""WISE's routing: scores of prompts, the margin loss that teaches them, and the threshold that follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from corrigenda.edits.side_memory import mean_norms
from editing.memory_based.wise.settings import WiseSettings

ROUNDING = 1e-4
"""The share by which an epsilon at the lowest fact's score lies below it, so that rounding does not shut it out."""


def rounding(dtype: torch.dtype) -> float:
    """`ROUNDING`, or what a model in 16 bits needs: there a prompt that is run among others has another score."""
    return max(ROUNDING, torch.finfo(dtype).eps / 2)


@dataclass(frozen=True)
class Margins:
    """The margin loss (WISE, eq. 5) and its three margins, in units of D."""

    alpha: float
    beta: float
    gamma: float

    @classmethod
    def of(cls, settings: WiseSettings, unit: float, spread: float) -> Margins:
        """The numbers given, times `margin_scale`; or calibrated.

        Calibrated are alpha = loudness u, beta = 2 s alpha, gamma = beta - alpha: u, the unit, is the median over
        unrelated prompts of the mean || m V ||, s, the spread, the 95 % quantile over it.
        """
        if settings.alpha is not None and settings.beta is not None and settings.gamma is not None:
            given = (settings.alpha, settings.beta, settings.gamma)
            return cls(*(settings.margin_scale * margin for margin in given))
        alpha = settings.loudness * unit
        beta = 2 * spread * alpha
        return cls(alpha, beta, beta - alpha)

    def loss(self, edit: Tensor, unrelated: Tensor) -> Tensor:
        """max(0, D_i - alpha) + max(0, beta - D_e) + max(0, gamma - (D_e - D_i)), from the scores.

        D_e of the edit's rows, (n,), and D_i of unrelated prompts, (k,). The mean over the rows of each kind; in the
        third term each unrelated prompt is compared with the edit's mean. With one row of each kind this is the paper's
        formula.
        """
        quiet = (unrelated - self.alpha).clamp(min=0).mean()
        apart = (self.gamma - (edit.mean() - unrelated)).clamp(min=0).mean()
        return quiet + self.activation_loss(edit) + apart

    def activation_loss(self, edit: Tensor) -> Tensor:
        """The second term of the loss alone: facts that must be activated."""
        return (self.beta - edit).clamp(min=0).mean()


def rival_loss(own: Tensor, other: Tensor, margin: float) -> Tensor:
    """The mean of max(0, D_other - margin D_own): where a memory scores too high on what another shall answer.

    D, (n,), is of the same prompts, in the memory that shall answer and in the other; differentiable in both; 0 without
    prompts.
    """
    return (other - margin * own).clamp(min=0).sum() / max(len(other), 1)


def prompt_scores(theta: Tensor, prompts: Sequence[Tensor]) -> Tensor:
    """D of prompts, (n,), from their coefficients in a side memory's coordinates; differentiable in Theta."""
    lengths = torch.tensor([len(m) for m in prompts], device=theta.device)
    owner = torch.repeat_interleave(torch.arange(len(prompts), device=theta.device), lengths)
    return mean_norms(torch.cat(list(prompts)).to(theta.device), theta, owner, lengths)


@torch.no_grad()
def high_score(theta: Tensor, prompts: Sequence[Tensor]) -> float:
    """The 99 % quantile of the prompts' D; 0 if there are none."""
    return float(prompt_scores(theta, prompts).quantile(0.99)) if prompts else 0.0


def threshold_between(lowest: Tensor, far: Tensor, near: Tensor, margin: float, share: float = ROUNDING) -> Tensor:
    """Epsilon of each side memory, (memory,), between its facts and the unrelated prompts; `Wise` says the rule.

    All are (memory,): the smallest D of its facts (infinite without facts), the highest D of unrelated prompts that
    have nothing in common with the facts (`far`), and that have their form (`near`). It lies at least half a share
    below the lowest, which has to be above it.
    """
    beyond = min(margin, 1 - share) * lowest
    halfway = (torch.minimum(far, lowest * (1 - share)) + lowest) / 2
    among = torch.where(near > beyond, (beyond + lowest) / 2, beyond)
    return torch.maximum(halfway, among)


def threshold_smallest(lowest: Tensor, share: float) -> Tensor:
    """Epsilon from the smallest D of the facts, (memory,): less a share of it, as D has to be above epsilon."""
    return lowest * (1 - share)
