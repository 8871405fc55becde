import sys
from typing import get_args

import pytest
import torch
from malformed_parts import refused
from torch import Tensor

from corrigenda.indices.index import NONE, nearest
from corrigenda.indices.kinds import Kind, index_of

INDICES = [kind for kind in get_args(Kind) if kind != "exact"]


@pytest.fixture(autouse=True)
def _faiss_or_skip(request: pytest.FixtureRequest) -> None:
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and callspec.params.get("kind") == "faiss":
        pytest.importorskip("faiss", reason="faiss-cpu is not installed")


def drawn(n: int, width: int = 32, seed: int = 0) -> Tensor:
    rows = torch.randn(n, width, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(rows, dim=1)


def near(keys: Tensor, n: int, noise: float) -> Tensor:
    """The first keys, moved a little, with the length 1."""
    return torch.nn.functional.normalize(keys[:n] + noise * drawn(n, keys.shape[1], seed=1), dim=1)


def brute_force(queries: Tensor, keys: Tensor, k: int) -> list[list[int]]:
    return [sorted(range(len(keys)), key=lambda i: -float(query @ keys[i]))[:k] for query in queries.double()]


def test_exact_is_brute_force(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, queries = drawn(200).double(), drawn(7, seed=2).double()
    expected = brute_force(queries, keys, 5)
    found = nearest(queries, keys, 5)
    assert found.numbers.tolist() == expected
    assert torch.allclose(found.scores, torch.stack([keys[row] @ q for row, q in zip(expected, queries, strict=True)]))
    monkeypatch.setattr("corrigenda.indices.index.BLOCK", 400)  # two queries at once
    assert torch.equal(nearest(queries, keys, 5).numbers, found.numbers)


def test_thresholds_decide_who_is_nearest() -> None:
    keys, queries = drawn(50), drawn(4, seed=2)
    thresholds = torch.rand(50, generator=torch.Generator().manual_seed(3))
    found = nearest(queries, keys, 3, thresholds=thresholds)
    expected = (queries @ keys.T - thresholds).sort(descending=True)
    assert torch.equal(found.numbers, expected.indices[:, :3])
    assert torch.allclose(found.scores, expected.values[:, :3])


@pytest.mark.parametrize("kind", INDICES)
@pytest.mark.parametrize("n", [1, 5, 300])
def test_all_candidates_are_brute_force(kind: Kind, n: int) -> None:
    keys, queries = drawn(n), drawn(9, seed=2)
    index = index_of(kind, keys)
    assert index.candidates(queries, n).sort(1).values.tolist() == [[*range(n)]] * 9
    found = nearest(queries, keys, min(4, n), index, candidates=n)
    assert torch.equal(found.numbers, nearest(queries, keys, min(4, n)).numbers)


@pytest.mark.parametrize("kind", INDICES)
def test_a_keys_own_query_finds_it_and_a_near_one_almost_always(kind: Kind) -> None:
    keys = drawn(3000)
    index = index_of(kind, keys)
    own = nearest(keys[:200], keys, 1, index, candidates=64)
    assert own.numbers[:, 0].tolist() == [*range(200)]
    found = nearest(near(keys, 500, 0.3), keys, 1, index, candidates=64)
    recall = (found.numbers[:, 0] == torch.arange(500)).double().mean()
    assert recall > 0.9
    assert torch.allclose(found.scores[:, 0], (near(keys, 500, 0.3) * keys[found.numbers[:, 0]]).sum(1), atol=1e-6)


@pytest.mark.parametrize("kind", INDICES)
def test_candidates_are_different_and_no_more_than_asked_for(kind: Kind) -> None:
    keys = drawn(1000)
    index = index_of(kind, keys)
    candidates = index.candidates(drawn(50, seed=2), 40)
    assert candidates.shape[1] <= 40
    for row in candidates.tolist():
        numbers = [number for number in row if number != NONE]
        assert len(set(numbers)) == len(numbers)
        assert set(numbers) <= {*range(1000)}
        assert len(numbers) > 10


@pytest.mark.parametrize("kind", INDICES)
def test_equal_keys_make_equal_candidates(kind: Kind) -> None:
    keys, queries = drawn(2000), drawn(20, seed=2)
    one, other = index_of(kind, keys), index_of(kind, keys.clone())
    found = one.candidates(queries, 30)
    assert torch.equal(found, other.candidates(queries, 30))
    assert torch.equal(found, one.candidates(queries, 30))


@pytest.mark.parametrize("kind", INDICES)
def test_more_asked_for_than_there_are_and_none_at_all(kind: Kind) -> None:
    keys, queries = drawn(3), drawn(2, seed=2)
    found = nearest(queries, keys, 5, index_of(kind, keys), candidates=2)
    assert found.numbers.shape == (2, 5)
    assert found.numbers[:, :3].sort(1).values.tolist() == [[0, 1, 2]] * 2
    assert (found.numbers[:, 3:] == NONE).all()
    assert (found.scores[:, 3:] == -torch.inf).all()
    empty = nearest(queries, keys[:0], 5, index_of(kind, keys[:0]), candidates=2)
    assert (empty.numbers == NONE).all()
    assert (empty.scores == -torch.inf).all()
    assert nearest(queries[:0], keys, 2, index_of(kind, keys), candidates=2).numbers.shape == (0, 2)


@pytest.mark.parametrize("kind", INDICES)
def test_keys_that_are_all_equal(kind: Kind) -> None:
    keys = drawn(1).expand(500, 32).contiguous()
    found = nearest(keys[:1], keys, 3, index_of(kind, keys), candidates=20)
    assert len(set(found.numbers[0].tolist())) == 3
    assert found.scores[0].tolist() == pytest.approx([1, 1, 1])


def test_faiss_that_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    refused(ImportError, r"pip install 'corrigenda\[faiss\]'", index_of, "faiss", drawn(3))


def test_bad_arguments() -> None:
    refused(ValueError, "must be one of exact, faiss, product_keys", index_of, "hnsw", drawn(3))
    refused(ValueError, "not as wide", nearest, drawn(2, 3), drawn(2, 4), 1)
    refused(ValueError, "k=0 must be at least 1", nearest, drawn(2), drawn(2), 0)
