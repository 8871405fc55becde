from typing import Any

import pytest
import torch
from torch import Tensor

from corrigenda.moments.second_moment import SecondMoment
from corrigenda.moments.text import Text
from editing.locate_then_edit.least_squares import (
    NullSpace,
    Penalty,
    Regularizer,
    equality_update,
    norms_alone,
    penalised_update,
    solve_penalised,
)

D_FFN, D_MODEL = 20, 7


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def C() -> Tensor:
    """A second moment in which some coefficients vary together."""
    rows = drawn(60, D_FFN, seed=1) @ (torch.eye(D_FFN, dtype=torch.float64) + drawn(D_FFN, D_FFN, seed=2) / 3)
    return rows.T @ rows / 60


@pytest.mark.parametrize("n", [1, 4])
def test_equality_is_the_constrained_minimum(n: int, C: Tensor) -> None:
    """By brute force: the Lagrange system of min tr(D^T C D) subject to K D = R."""
    K, R = drawn(n, D_FFN, seed=3), drawn(n, D_MODEL, seed=4)
    system = torch.zeros(D_FFN + n, D_FFN + n, dtype=torch.float64)
    system[:D_FFN, :D_FFN], system[:D_FFN, D_FFN:], system[D_FFN:, :D_FFN] = 2 * C, K.T, K
    right = torch.cat([torch.zeros(D_FFN, D_MODEL, dtype=torch.float64), R])
    expected = torch.linalg.solve(system, right)[:D_FFN]
    A, B = equality_update(K, K @ torch.linalg.inv(C), R)
    assert (A.shape, B.shape, A.dtype, B.dtype) == ((D_FFN, n), (n, D_MODEL), torch.float64, torch.float64)
    torch.testing.assert_close(A @ B, expected)
    torch.testing.assert_close(K @ A @ B, R)


def test_equality_for_one_key_is_the_rank_one_formula(C: Tensor) -> None:
    k, r = drawn(1, D_FFN, seed=3), drawn(1, D_MODEL, seed=4)
    direction = torch.linalg.solve(C, k[0])
    A, B = equality_update(k, direction[None], r)
    torch.testing.assert_close(A @ B, torch.outer(direction, r[0]) / (k[0] @ direction))
    torch.testing.assert_close(norms_alone(k, direction[None], r)[0], (A @ B).norm())


def test_constraints_that_nearly_contradict_each_other_are_met_in_the_mean(C: Tensor) -> None:
    k, r = drawn(1, D_FFN, seed=3), drawn(2, D_MODEL, seed=4)
    K = torch.cat([k, k + 1e-9 * drawn(1, D_FFN, seed=5)])
    A, B = equality_update(K, K @ torch.linalg.inv(C), r)
    torch.testing.assert_close(k @ A @ B, r.mean(0, keepdim=True), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("eps", [0.0, 1e-7])
def test_many_keys_with_a_common_direction_are_all_met(eps: float) -> None:
    K = 5 + drawn(16, D_FFN, seed=3)
    R = drawn(16, D_MODEL, seed=4)
    A, B = equality_update(K, K, R, eps)
    torch.testing.assert_close(K @ A @ B, R, rtol=1e-3, atol=1e-3)


def moment_of(C: Tensor, tokens: int = 60) -> SecondMoment:
    return SecondMoment(C, tokens, 0, Text())


# Up to 10 keys in all the small system is solved (Woodbury), above the whole one.
SIZES = pytest.mark.parametrize(("n", "earlier"), [(1, 0), (4, 0), (4, 6), (4, 7), (15, 0), (3, 30)])


@SIZES
def test_penalised_is_the_regularised_minimum(n: int, earlier: int, C: Tensor) -> None:
    K, R, weight = drawn(n, D_FFN, seed=3), drawn(n, D_MODEL, seed=4), 0.3
    old = drawn(earlier, D_FFN, seed=5)
    rows = torch.cat([K, old, weight**0.5 * torch.linalg.cholesky(C).T])
    right = torch.cat([R, torch.zeros(len(rows) - n, D_MODEL, dtype=torch.float64)])
    expected = torch.linalg.lstsq(rows, right).solution
    A, B = penalised_update(K, R, Penalty(moment_of(C), weight), old if earlier else None)
    assert (A.shape, B.shape) == ((D_FFN, n), (n, D_MODEL))
    torch.testing.assert_close(A @ B, expected)
    # In single precision the answer is the same to single precision: it is solved in double.
    A, B = penalised_update(K.float(), R.float(), Penalty(moment_of(C), weight), old.float())
    assert A.dtype == torch.float64
    torch.testing.assert_close(A @ B, expected, rtol=1e-3, atol=1e-5)


@SIZES
def test_null_space_update_solves_the_published_equation(n: int, earlier: int, C: Tensor) -> None:
    """By brute force: (P (K^T K + H) + L2 I) X = P K^T R, with the eigenvectors of C's 14 smallest eigenvalues in P."""
    K, R, weight = drawn(n, D_FFN, seed=3), drawn(n, D_MODEL, seed=4), 0.7
    old = drawn(earlier, D_FFN, seed=5)
    basis = torch.linalg.eigh(C).eigenvectors[:, :14]
    P = basis @ basis.T
    system = P @ (K.T @ K + old.T @ old) + weight * torch.eye(D_FFN, dtype=torch.float64)
    expected = torch.linalg.solve(system, P @ K.T @ R)
    A, B = penalised_update(K, R, NullSpace(basis, weight), old if earlier else None)
    assert (A.shape, B.shape) == ((D_FFN, n), (n, D_MODEL))
    torch.testing.assert_close(A @ B, expected)
    used = torch.linalg.eigh(C).eigenvectors[:, 14:]
    torch.testing.assert_close(used.T @ A @ B, torch.zeros(6, D_MODEL, dtype=torch.float64))


def test_the_ridge_is_in_units_of_the_mean_diagonal(C: Tensor) -> None:
    K, R = drawn(3, D_FFN, seed=3), drawn(3, D_MODEL, seed=4)
    ridged = C + 0.2 * C.diagonal().mean() * torch.eye(D_FFN, dtype=torch.float64)
    expected = torch.linalg.solve(2.0 * ridged + K.T @ K, K.T @ R)
    for keys in (K, torch.cat([K, torch.zeros(8, D_FFN, dtype=torch.float64)])):  # both ways of solving
        residuals = torch.cat([R, torch.zeros(len(keys) - 3, D_MODEL, dtype=torch.float64)])
        A, B = penalised_update(keys, residuals, Penalty(moment_of(C), 2.0, ridge=0.2))
        torch.testing.assert_close(A @ B, expected)


def test_the_second_moment_is_factored_once_and_the_whole_system_only_for_many_keys(
    C: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    for name in ("cholesky", "cholesky_ex"):
        whole = getattr(torch.linalg, name)

        def counted(A: Tensor, whole: Any = whole, **more: Any) -> Any:
            sizes.append(len(A))
            return whole(A, **more)

        monkeypatch.setattr(torch.linalg, name, counted)
    metric = Penalty(moment_of(C), 0.5)
    for n in (2, 3):
        penalised_update(drawn(n, D_FFN), drawn(n, D_MODEL), metric)
    assert sizes == [D_FFN, 2, 3]
    penalised_update(drawn(11, D_FFN), drawn(11, D_MODEL), metric)
    assert sizes == [D_FFN, 2, 3, D_FFN]


@pytest.mark.parametrize("kind", ["penalty", "null space"])
def test_going_on_from_a_system_costs_none_of_its_own(kind: str, C: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the dense formula, below half of d_ffn, at a new base, beside it, and at the next base."""
    basis = torch.linalg.eigh(C).eigenvectors[:, :14]
    metric: Regularizer = Penalty(moment_of(C), 0.5) if kind == "penalty" else NullSpace(basis, 0.5)
    one = torch.eye(D_FFN, dtype=torch.float64)
    P = one if kind == "penalty" else basis @ basis.T
    M = 0.5 * C if kind == "penalty" else 0.5 * one
    keys = drawn(40, D_FFN, seed=3)
    penalised_update(keys[:1], drawn(1, D_MODEL), metric)  # which factors C
    sizes: list[int] = []
    for name in ("cholesky", "cholesky_ex"):
        whole = getattr(torch.linalg, name)
        monkeypatch.setattr(torch.linalg, name, lambda A, whole=whole: (sizes.append(len(A)), whole(A))[1])
    known, done = None, 0
    for n in (4, 1, 5, 3, 1, 1, 6, 3, 1):  # 10 keys are half of d_ffn
        K, R = keys[done : done + n], drawn(n, D_MODEL, seed=done)
        (A, B), system = solve_penalised(K, R, metric, keys[:done], known)
        done += n
        U = keys[:done]
        expected = torch.linalg.solve(P @ (U.T @ U) + M, P @ K.T @ R)
        torch.testing.assert_close(A @ B, expected, rtol=1e-7, atol=1e-9)
        assert system.n_keys == done
        # What it goes on from stays as it was.
        (again, _), _ = solve_penalised(K, R, metric, keys[: done - n], known)
        assert torch.equal(again, A)
        known = system
    d = len(metric.matrix())
    assert sizes[::2] == sizes[1::2] == [4, 1, 5, d, 1, 1, 6, d, 1]


def test_a_system_of_something_else_is_left_alone(C: Tensor) -> None:
    K, R, old = drawn(2, D_FFN, seed=3), drawn(2, D_MODEL, seed=4), drawn(3, D_FFN, seed=5)
    for other, keys in (
        (Penalty(moment_of(C), 0.6), old),
        (Penalty(moment_of(C), 0.5, ridge=0.1), old),
        (Penalty(moment_of(C + 0.01 * torch.eye(D_FFN)), 0.5), old),
        (NullSpace(torch.linalg.eigh(C).eigenvectors[:, :14], 0.5), old),
        (Penalty(moment_of(C), 0.5), old[:2]),
    ):
        _, system = solve_penalised(keys, drawn(len(keys), D_MODEL), other)
        metric = Penalty(moment_of(C), 0.5)
        (A, _), _ = solve_penalised(K, R, metric, old, system)
        assert torch.equal(A, penalised_update(K, R, metric, old)[0])


def test_a_singular_problem_is_said() -> None:
    few = drawn(5, D_FFN)
    metric = Penalty(moment_of(few.T @ few - torch.eye(D_FFN) * 1e-9, 5), 1.0)
    with pytest.raises(ValueError, match=r"layer 0 \(over 5 tokens, 20 coefficients\) is singular"):
        penalised_update(drawn(2, D_FFN, seed=3), drawn(2, D_MODEL), metric)
    with pytest.raises(ValueError, match=r"not positive definite in row \d+ of 20: .*a ridge above 0"):
        penalised_update(drawn(12, D_FFN, seed=3), drawn(12, D_MODEL), metric)
