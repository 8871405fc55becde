"""What all edits of a side memory at one layer share: its coordinates, and what unrelated prompts do there."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.edits.side_memory import mean_norms
from corrigenda.moments.second_moment import second_moment
from corrigenda.moments.text import Text
from editing.memory_based.wise.unrelated import Kinds, Unrelated, unrelated_coefficients
from editing.training_rows import Rows


@dataclass(frozen=True)
class RouteScale:
    """The margins of L_route (WISE, eq. 5)."""

    alpha: float
    beta: float
    gamma: float

    def loss(self, edit: Tensor, unrelated: Tensor) -> Tensor:
        """L_route from the scores of the edit's rows, (n,), and of unrelated prompts, (k,).

        The mean over the rows of each kind; in the third term each unrelated prompt is held against the edit's mean.
        """
        quiet = (unrelated - self.alpha).clamp(min=0).mean()
        apart = (self.gamma - (edit.mean() - unrelated)).clamp(min=0).mean()
        return quiet + self.heard(edit) + apart

    def heard(self, edit: Tensor) -> Tensor:
        """The middle term of L_route alone."""
        return (self.beta - edit).clamp(min=0).mean()


def told_apart(louder: Tensor, fainter: Tensor, margin: float) -> Tensor:
    """By how much a memory is too loud where another one shall answer: the mean of max(0, fainter - margin louder).

    Args:
        louder: D of some prompts in the memory that shall answer, (n,).
        fainter: D of the same prompts in the other memory, (n,).
        margin: the share of the one that the other may have.

    Returns:
        0 without prompts; differentiable in both.
    """
    return (fainter - margin * louder).clamp(min=0).sum() / max(len(fainter), 1)


@dataclass(frozen=True, eq=False)
class Ground:
    """Coordinates and scales of a layer; see `editing.memory_based.wise.wise.Wise`.

    Attributes:
        coordinates: W, (d_ffn, d_ffn); None for the identity.
        unrelated: by kind, W^T m of each unrelated prompt's tokens, (its tokens, d_ffn).
        loudness: u, the median over unrelated prompts of the mean || m V ||.
        spread: s, the 95 % quantile of the same over its median.
        size: what the norm of Theta is measured by.
        key: what it was made from.
    """

    coordinates: Tensor | None
    unrelated: Kinds
    loudness: float
    spread: float
    size: float
    key: Hashable

    def whitened(self, rows: Rows) -> Rows:
        """Rows with their coefficients in these coordinates."""
        return dataclasses.replace(rows, coefficients=tuple(self.turned(rows.coefficients)))

    def delta(self, theta: Tensor) -> Tensor:
        """V' - V, (d_ffn, d_model), for Theta."""
        return theta if self.coordinates is None else self.coordinates.to(theta.device) @ theta

    def turned(self, prompts: Sequence[Tensor]) -> list[Tensor]:
        """Prompts' coefficients in these coordinates."""
        return list(prompts) if self.coordinates is None else [m @ self.coordinates.cpu() for m in prompts]


def side_scores(theta: Tensor, prompts: Sequence[Tensor]) -> Tensor:
    """D of prompts, (n,), from their coefficients in a side memory's coordinates; differentiable in Theta."""
    lengths = torch.tensor([len(m) for m in prompts], device=theta.device)
    owner = torch.repeat_interleave(torch.arange(len(prompts), device=theta.device), lengths)
    return mean_norms(torch.cat(list(prompts)).to(theta.device), theta, owner, lengths)


@torch.no_grad()
def make_ground(
    lm: LanguageModel, layer: int, whiten: bool, ridge: float, text: Text, unrelated: Unrelated, key: Hashable
) -> Ground:
    """Computes coordinates and scales of a layer; the dear parts are kept on disk."""
    values = lm.memory(layer).values
    V = lm.edits.untouched.get(layer, values).float().cpu()
    kinds = unrelated_coefficients(lm, layer, unrelated)
    loudness = torch.stack([(m @ V).norm(dim=1).mean() for prompts in kinds.values() for m in prompts])
    median = float(loudness.median())
    spread = float(loudness.quantile(0.95)) / median
    if not whiten:
        return Ground(None, kinds, median, spread, float(V.norm()), key)
    moment = second_moment(lm, layer, text).matrix
    scale = float(moment.diagonal().mean())
    size, directions = torch.linalg.eigh(moment / scale)
    W = (directions * (size.clamp(min=0) + ridge).rsqrt() @ directions.T / scale**0.5).float()
    output = float(((V.double().T @ moment) * V.double().T).sum().clamp(min=0).sqrt())  # root of E || m V ||^2
    # Theta's norm is the root mean square of || m (V' - V) || over text, but for the ridge.
    ground = Ground(W.to(values.device), {}, median, spread, output, key)
    return dataclasses.replace(ground, unrelated={kind: ground.turned(prompts) for kind, prompts in kinds.items()})
