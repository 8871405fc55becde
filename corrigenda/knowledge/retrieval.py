"""Answering with a part of the entries: for each query those with the largest scores; what it costs, and how far off.

Guo & Chen 2025 (Table 2) count O(N d |E|) for N queries of width d that see all entries E, and O(N d |E'|) + R where
each sees the entries E' that a search of the cost R found for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from corrigenda.knowledge.cross_attention import FoldedFFN, with_bias
from corrigenda.settings.checked import AtLeastOne, check_value

By = Literal["score", "contribution"]
"""How entries are ranked: by their score, which an index can search for, or by the length of what they add to the
answer, |m_i| |v_i|, which takes the whole FFN to know (the least error that can be hoped for)."""

QUERIES = 64
"""So many queries gather their entries at once; each gathers k rows of every matrix."""


@dataclass(frozen=True)
class Retrieval:
    """What answering with k entries a query costs, and how far off it is.

    Attributes:
        k: how many entries each query sees, |E'|.
        error: |C(E') - C(E)| / |C(E)|, Frobenius norms over all queries.
        full: multiplications of answering with all entries: N d |E| for each matrix.
        part: the same with k entries, N d |E'| for each matrix, and R.
        search: R, the search's share of them.
    """

    k: int
    error: float
    full: int
    part: int
    search: int

    @property
    def ratio(self) -> float:
        """How many times less the part costs."""
        return self.full / self.part


def nearest_entries(ffn: FoldedFFN, hidden: Tensor, k: int, by: By = "score") -> Tensor:
    """The numbers of the k entries that each query ranks highest, (N, d_model) -> (N, k); found exactly.

    Raises:
        ValueError: there are not so many entries, or no such ranking.
    """
    k = check_value("nearest_entries", "k", k, AtLeastOne)
    if by not in get_args(By):
        raise ValueError(f"nearest_entries: by={by!r} must be one of {', '.join(get_args(By))}")
    if k > len(ffn.values):
        raise ValueError(f"nearest_entries: k={k} is more than the {len(ffn.values)} entries")
    if by == "score":
        return ffn.scores(hidden).topk(k).indices
    return (ffn.coefficients(hidden).abs() * ffn.values.norm(dim=1)).topk(k).indices


def answer_with(ffn: FoldedFFN, hidden: Tensor, chosen: Tensor) -> Tensor:
    """C(E'): the answer of chosen entries alone, (N, d_model) with (N, k) -> (N, d_model).

    Only the chosen rows of the matrices are read and multiplied.
    """
    answers = []
    for x, rows in zip(hidden.split(QUERIES), chosen.split(QUERIES), strict=True):
        answer = ffn.activation(_chosen_scores(ffn.first, x, rows))
        if ffn.factor is not None:
            answer = answer * _chosen_scores(ffn.factor, x, rows)
        answers.append(torch.einsum("nk,nkd->nd", answer, ffn.values[rows]))
    return with_bias(torch.cat(answers) if answers else torch.zeros_like(hidden), ffn.bias)


def measure_retrieval(
    ffn: FoldedFFN, hidden: Tensor, ks: Sequence[int], by: By = "score", search: int | None = None
) -> list[Retrieval]:
    """The error and the cost of answering queries H, (N, d_model), with the k best entries each, for several k.

    `by` is how entries are ranked, `search` what finding them costs, in multiplications a query; by default that of
    looking at all of them, |E| d. Raises ValueError: a k is out of range, there is no query, or all answers are zero.
    """
    n, d = ffn.values.shape
    whole = ffn(hidden)
    size = float(whole.norm())
    if not size > 0:
        raise ValueError(f"measure_retrieval: no relative error is defined, the {len(hidden)} answers are all zero")
    matrices = 2 if ffn.factor is None else 3
    searched = len(hidden) * (n * d if search is None else search)
    found = []
    for k in ks:
        part = answer_with(ffn, hidden, nearest_entries(ffn, hidden, k, by))
        cost = len(hidden) * d * k * matrices + searched
        error = float((part - whole).norm()) / size
        found.append(Retrieval(k, error, len(hidden) * d * n * matrices, cost, searched))
    return found


def _chosen_scores(projection: tuple[Tensor, Tensor], hidden: Tensor, chosen: Tensor) -> Tensor:
    weight, threshold = projection
    return torch.einsum("nd,nkd->nk", hidden, weight.T[chosen]) + threshold[chosen]
