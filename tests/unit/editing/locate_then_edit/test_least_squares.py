"""The closed form against brute force, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from editing.locate_then_edit.least_squares import add_history, equality_update, norms_alone, ridge_update

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


def test_equality_with_a_ridge(C: Tensor) -> None:
    K, R = drawn(3, D_FFN, seed=3), drawn(3, D_MODEL, seed=4)
    inverse = torch.linalg.inv(C)
    gram = K @ inverse @ K.T
    softened = gram + 0.1 * gram.diagonal().mean() * torch.eye(3, dtype=torch.float64)
    A, B = equality_update(K, K @ inverse, R, eps=0.1)
    torch.testing.assert_close(A @ B, inverse @ K.T @ torch.linalg.inv(softened) @ R)


@pytest.mark.parametrize("earlier", [0, 5])
def test_ridge_is_the_regularised_minimum(earlier: int, C: Tensor) -> None:
    """By brute force: plain least squares over the keys, those of earlier updates, and the roots of C."""
    K, R, weight = drawn(4, D_FFN, seed=3), drawn(4, D_MODEL, seed=4), 0.3
    old = drawn(earlier, D_FFN, seed=5)
    history = add_history(None, old) if earlier else None
    rows = torch.cat([K, old, weight**0.5 * torch.linalg.cholesky(C).T])
    right = torch.cat([R, torch.zeros(len(rows) - 4, D_MODEL, dtype=torch.float64)])
    expected = torch.linalg.lstsq(rows, right).solution
    A, B = ridge_update(K, R, C, weight, history)
    assert (A.shape, B.shape) == ((D_FFN, 4), (4, D_MODEL))
    torch.testing.assert_close(A @ B, expected)
    # In single precision the answer is the same to single precision: it is solved in double.
    A, B = ridge_update(K.float(), R.float(), C.float(), weight, None if history is None else history.float())
    assert A.dtype == torch.float64
    torch.testing.assert_close(A @ B, expected, rtol=1e-3, atol=1e-5)


def test_batches_with_history_equal_one_batch(C: Tensor) -> None:
    """Recursive least squares: residuals measured anew, the keys of earlier batches in H."""
    K, wanted = drawn(6, D_FFN, seed=3), drawn(6, D_MODEL, seed=4)
    A, B = ridge_update(K, wanted, C, 0.5)
    together = A @ B
    delta, history = torch.zeros(D_FFN, D_MODEL, dtype=torch.float64), None
    for batch in torch.arange(6).split(2):
        A, B = ridge_update(K[batch], wanted[batch] - K[batch] @ delta, C, 0.5, history)
        delta = delta + A @ B
        history = add_history(history, K[batch])
    torch.testing.assert_close(delta, together)
    forgetful = torch.zeros_like(delta)
    for batch in torch.arange(6).split(2):
        A, B = ridge_update(K[batch], wanted[batch] - K[batch] @ forgetful, C, 0.5)
        forgetful = forgetful + A @ B
    assert not torch.allclose(forgetful, together, rtol=1e-2)


def test_a_singular_problem_is_said() -> None:
    few = drawn(5, D_FFN)
    with pytest.raises(ValueError, match=r"not positive definite in row \d+ of 20 \(weight=1.0\)"):
        ridge_update(drawn(2, D_FFN, seed=3), drawn(2, D_MODEL), few.T @ few - torch.eye(D_FFN) * 1e-9, 1.0)
