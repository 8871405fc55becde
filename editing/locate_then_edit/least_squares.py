"""The closed form: which change of V makes keys answer with new values, and disturbs least.

For keys K (n, d_ffn), residuals R (n, d_model) and C = E[k k^T] over text, the change delta V minimises

    equality    tr(delta V^T C delta V)                         subject to  K delta V = R
    penalised   tr(delta V^T (M + H) delta V) + |K delta V - R|^2

with H = sum of K^T K over earlier updates, and M = lambda C (`Penalty`), or M = L2 I among the changes that stay in a
null space (`NullSpace`). All are solved in float64 and given as factors, delta V = left @ right,
(d_ffn, n) @ (n, d_model). How K and R were found is not asked here.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from corrigenda.moments.experts import Moment

Factors = tuple[Tensor, Tensor]
"""left (d_ffn, n) and right (n, d_model); delta V is their product."""

Mark = tuple[object, ...]
"""What tells one `Regularizer` from another without keeping it."""


ALIKE = 1e-3
"""Singular values of constraints up to this count as zero, after each key is scaled to length 1."""


def equality_update(keys: Tensor, directions: Tensor, residuals: Tensor, eps: float = 0.0) -> Factors:
    """The smallest update, in the metric of C, that meets all constraints.

        delta V = C^-1 K^T (K C^-1 K^T + eps I)^-1 R

    For one key it is ROME's (Meng et al. 2022, eq. 2), for several EMMET's (Gupta et al. 2024).

    Constraints of nearly the same key (facts about one subject) nearly contradict each other. Without eps they are met
    in the mean (pseudo-inverse), where an inverse would blow up on their difference. What counts as the same does not
    depend on how many other keys there are: all keys share a direction, in which the largest singular value grows with
    their number.

    Args:
        keys: K, (n, d_ffn): the keys that are to answer.
        directions: C^-1 k of each, (n, d_ffn); of other keys, where the update is to go along those (ROME's authors).
        residuals: R, (n, d_model): by how much each answer is to change.
        eps: as a share of the mean of K C^-1 K^T's diagonal.
    """
    gram = keys.double() @ directions.double().T
    if eps:
        gram = gram + eps * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        return directions.double().T, torch.linalg.solve(gram, residuals.double())
    size = gram.diagonal().abs().sqrt()
    inverse = torch.linalg.pinv(gram / size / size[:, None], atol=ALIKE, rtol=0.0) / size / size[:, None]
    return directions.double().T, inverse @ residuals.double()


def norms_alone(keys: Tensor, directions: Tensor, residuals: Tensor) -> Tensor:
    """The Frobenius norm of each fact's update if it were made alone, (n,): |r| |C^-1 k| / |k^T C^-1 k|.

    Args:
        keys: (n, d_ffn).
        directions: (n, d_ffn); as in `equality_update`.
        residuals: (n, d_model).
    """
    return residuals.norm(dim=1) * directions.norm(dim=1) / (directions * keys).sum(1).abs()


class Regularizer(Protocol):
    """M, by which a penalised update is weighed: B N^-1 B^T takes the place of its inverse.

    B holds, as orthonormal columns, the directions in which the values may change.
    """

    @property
    def mark(self) -> Mark:
        """Is another for another metric."""
        ...

    def solve(self, keys: Tensor) -> Tensor:
        """B N^-1 B^T k, (n, d_ffn) -> (n, d_ffn), float64."""
        ...

    def inside(self, keys: Tensor) -> Tensor:
        """B^T k, (n, d_ffn) -> (n, k), float64: the keys in the coordinates of B."""
        ...

    def matrix(self) -> Tensor:
        """N, (k, k), float64; a new tensor."""
        ...

    def outside(self, changes: Tensor) -> Tensor:
        """B x, (k, n) -> (d_ffn, n)."""
        ...


@dataclass(frozen=True, eq=False)
class Penalty:
    """M = lambda (C + ridge I): what the text uses is to stay (MEMIT). B is the identity.

    The moment is C, with the Cholesky factor that it keeps; the ridge is in units of C's mean diagonal.
    """

    moment: Moment
    weight: float
    ridge: float = 0.0

    @property
    def mark(self) -> Mark:
        """Of C, lambda and the ridge."""
        return ("penalty", self.weight, self.ridge, *(one for block in self.moment.blocks for one in _sums(block)))

    def solve(self, keys: Tensor) -> Tensor:
        """(C + ridge I)^-1 k / lambda."""
        return self.moment.solve(keys.double().cpu(), self._ridge) / self.weight

    def inside(self, keys: Tensor) -> Tensor:
        """The keys themselves."""
        return keys.double().cpu()

    def matrix(self) -> Tensor:
        """N = lambda (C + ridge I)."""
        matrix = self.weight * self.moment.matrix
        matrix.diagonal().add_(self.weight * self._ridge)
        return matrix

    def outside(self, changes: Tensor) -> Tensor:
        """The changes themselves."""
        return changes

    @property
    def _ridge(self) -> float:
        return self.ridge * self.moment.scale


@dataclass(frozen=True, eq=False)
class NullSpace:
    """M = L2 I among the changes that stay in the span of B, where C has little energy (AlphaEdit).

    Attributes:
        basis: B, (d_ffn, k), float64, with orthonormal columns.
        weight: L2.
    """

    basis: Tensor
    weight: float

    @property
    def mark(self) -> Mark:
        """Of B and L2."""
        return ("null space", self.weight, *_sums(self.basis))

    def solve(self, keys: Tensor) -> Tensor:
        """P k / L2, with P = B B^T."""
        return self.inside(keys) @ self.basis.T / self.weight

    def inside(self, keys: Tensor) -> Tensor:
        """B^T k."""
        return keys.double().cpu() @ self.basis

    def matrix(self) -> Tensor:
        """N = L2 I."""
        return self.weight * torch.eye(self.basis.shape[1], dtype=torch.float64)

    def outside(self, changes: Tensor) -> Tensor:
        """B x."""
        return self.basis @ changes


@dataclass(frozen=True, eq=False)
class System:
    """A = M + H with all keys that it was solved for, kept so that one more key costs no system of its own.

    The first keys may be in a base, M + H0, which was factored as a whole; the others stand beside it (Woodbury):
    A^-1 = base^-1 - S^T (I + U S^T)^-1 S with S = U base^-1.

    Attributes:
        metric: the `Regularizer.mark` of M.
        n_based: how many keys the base has.
        base: its lower Cholesky factor in the coordinates of B, (k, k); None without keys: then it is M.
        solved: S, (n, d_ffn).
        factor: the lower Cholesky factor of I + U S^T, (n, n).
    """

    metric: Mark
    n_based: int
    base: Tensor | None
    solved: Tensor
    factor: Tensor

    @property
    def n_keys(self) -> int:
        """How many keys there are in all."""
        return self.n_based + len(self.solved)


def penalised_update(keys: Tensor, residuals: Tensor, metric: Regularizer, earlier: Tensor | None = None) -> Factors:
    """The update that weighs the constraints against all that is to stay: `solve_penalised`, without its system."""
    return solve_penalised(keys, residuals, metric, earlier)[0]


def solve_penalised(
    keys: Tensor, residuals: Tensor, metric: Regularizer, earlier: Tensor | None = None, known: System | None = None
) -> tuple[Factors, System]:
    """The update that weighs the constraints against all that is to stay, and the system that was solved for it.

        delta V = A^-1 K^T R,    A = M + H + K^T K

    With `Penalty` and without earlier keys it is MEMIT's (Meng et al. 2023, eq. 14). With `NullSpace` it is
    AlphaEdit's (Fang et al. 2025): (P (K^T K + H) + L2 I) X = P K^T R has its solution in the range of P, and in
    coordinates of B it is (B^T (K^T K + H) B + L2 I) Y = B^T K^T R, X = B Y, which is symmetric.

    While there are at most d_ffn / 2 keys beside the base, A is never formed: with U these keys, K the last of them,
    and S = U base^-1, the columns of A^-1 K^T are the last n of S^T (I + U S^T)^-1 (Woodbury). Above, A is formed and
    factored, and is the base of what follows.

    Args:
        keys: K, (n, d_ffn).
        residuals: R, (n, d_model).
        metric: M.
        earlier: the keys of earlier updates that must stay, (n', d_ffn): H is the sum of their k k^T.
        known: the system of these earlier keys, where it is known; one of another metric or another number of keys is
            left alone.

    Raises:
        ValueError: A is singular or not finite.
    """
    K = keys.double().cpu()
    old = K[:0] if earlier is None else earlier.double().cpu()
    if known is None or known.metric != metric.mark or known.n_keys != len(old):
        known, new = System(metric.mark, 0, None, K[:0], K.new_zeros(0, 0)), torch.cat([old, K])
    else:
        new = K
    if 2 * (len(known.solved) + len(new)) <= K.shape[1]:
        system = _with_keys(known, metric, new)
        last = torch.eye(len(system.solved), dtype=torch.float64)[:, -len(K) :]
        left = system.solved.T @ torch.cholesky_solve(last, system.factor)
    else:
        inside = metric.inside(torch.cat([old, K]))
        A = metric.matrix()
        A += inside.T @ inside
        base = _factor(A, "A = M + H + K^T K")
        system = System(metric.mark, len(inside), base, K[:0], K.new_zeros(0, 0))
        left = metric.outside(torch.cholesky_solve(inside[-len(K) :].T, base))
    return (left, residuals.double().cpu()), system


def _with_keys(known: System, metric: Regularizer, keys: Tensor) -> System:
    """The system with more keys beside its base: the factor grows by as many rows."""
    if known.base is None:
        solved = metric.solve(keys)
    else:
        solved = metric.outside(torch.cholesky_solve(metric.inside(keys).T, known.base)).T
    across = torch.linalg.solve_triangular(known.factor, known.solved @ keys.T, upper=False).T
    corner = keys @ solved.T
    corner = (corner + corner.T) / 2 - across @ across.T
    corner.diagonal().add_(1)
    above = torch.cat([known.factor, across.new_zeros(len(known.factor), len(keys))], 1)
    factor = torch.cat([above, torch.cat([across, _factor(corner, "I + U M^-1 U^T")], 1)])
    return System(known.metric, known.n_based, known.base, torch.cat([known.solved, solved]), factor)


def _sums(matrix: Tensor) -> Mark:
    """A shape and two sums: rows are weighed in one, so that no two matrices of one task have them all alike."""
    rows = matrix.sum(1)
    return (*matrix.shape, float(rows.sum()), float(rows @ torch.arange(len(rows), dtype=rows.dtype)))


def _factor(matrix: Tensor, what: str) -> Tensor:
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if int(failed) or not bool(factor.isfinite().all()):
        raise ValueError(
            f"{what} is not positive definite in row {int(failed)} of {len(matrix)}: take the second moment over more "
            "tokens than it has rows, or a ridge above 0"
        )
    return factor
