"""The closed form: which change of V makes keys answer with new values, and disturbs least.

For keys K (n, d_ffn), residuals R (n, d_model) and C = E[k k^T] over text, the change delta V minimises

    equality    tr(delta V^T C delta V)                         subject to  K delta V = R
    ridge       tr(delta V^T (weight C + H) delta V) + |K delta V - R|^2

with H = sum of K^T K over earlier updates. Both are solved in float64 and given as factors, delta V = left @ right,
(d_ffn, n) @ (n, d_model). How K and R were found is not asked here.
"""

from __future__ import annotations

import torch
from torch import Tensor

Factors = tuple[Tensor, Tensor]
"""left (d_ffn, n) and right (n, d_model); delta V is their product."""


def equality_update(
    keys: Tensor, directions: Tensor, residuals: Tensor, eps: float = 0.0, rtol: float = 1e-3
) -> Factors:
    """The smallest update, in the metric of C, that meets all constraints.

        delta V = C^-1 K^T (K C^-1 K^T + eps I)^-1 R

    For one key it is ROME's (Meng et al. 2022, eq. 2), for several EMMET's (Gupta et al. 2024).

    Constraints of nearly the same key (facts about one subject) nearly contradict each other. They are met in the mean
    (pseudo-inverse), where an inverse would blow up on their difference.

    Args:
        keys: K, (n, d_ffn): the keys that are to answer.
        directions: C^-1 k of each, (n, d_ffn); of other keys, where the update is to go along those (ROME's authors).
        residuals: R, (n, d_model): by how much each answer is to change.
        eps: as a share of the mean of K C^-1 K^T's diagonal.
        rtol: singular values below this share of the largest count as zero, after each key is scaled to length 1.
    """
    gram = keys.double() @ directions.double().T
    if eps:
        gram = gram + eps * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    size = gram.diagonal().abs().sqrt()
    inverse = torch.linalg.pinv(gram / size / size[:, None], rtol=rtol) / size / size[:, None]
    return directions.double().T, inverse @ residuals.double()


def norms_alone(keys: Tensor, directions: Tensor, residuals: Tensor) -> Tensor:
    """The Frobenius norm of each fact's update if it were made alone, (n,): |r| |C^-1 k| / |k^T C^-1 k|.

    Args:
        keys: (n, d_ffn).
        directions: (n, d_ffn); as in `equality_update`.
        residuals: (n, d_model).
    """
    return residuals.norm(dim=1) * directions.norm(dim=1) / (directions * keys).sum(1).abs()


def ridge_update(
    keys: Tensor, residuals: Tensor, second_moment: Tensor, weight: float, history: Tensor | None = None
) -> Factors:
    """The update that weighs the constraints against all that is to stay.

        delta V = A^-1 K^T R,    A = weight C + H + K^T K

    Without a history it is MEMIT's (Meng et al. 2023, eq. 14).

    Args:
        keys: K, (n, d_ffn).
        residuals: R, (n, d_model).
        second_moment: C, (d_ffn, d_ffn).
        weight: of C against one key. An editor that stores it as a ratio multiplies it by a mean key's
            |k|^2 / tr(C) first.
        history: H, (d_ffn, d_ffn), the sum of K^T K over earlier updates that must stay (`add_history`).

    Raises:
        ValueError: A is singular: C is, or the weight is not positive.
    """
    K = keys.double()
    A = weight * second_moment.to(K) + K.T @ K
    if history is not None:
        A = A + history.to(K)
    factor, failed = torch.linalg.cholesky_ex(A)
    if int(failed):
        raise ValueError(
            f"A = weight C + H + K^T K is not positive definite in row {int(failed)} of {len(A)} (weight={weight}): "
            "take the second moment over more tokens than it has rows, or add a ridge to its diagonal"
        )
    return torch.cholesky_solve(K.T, factor), residuals.double()


def add_history(history: Tensor | None, keys: Tensor) -> Tensor:
    """H with the keys of one more update, (d_ffn, d_ffn), float64."""
    added = keys.double().T @ keys.double()
    return added if history is None else history + added
