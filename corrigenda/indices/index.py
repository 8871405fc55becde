"""`nearest`: the keys with the largest inner products with a query, exactly or among the candidates of an index.

An index only filters: what it proposes is always ranked by the exact inner products. So it can miss a key, and never
gives one a wrong score.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

NONE = -1
"""The number that stands where there is no key."""

BLOCK = 1 << 24
"""At most so many scores, or numbers of gathered keys, are in memory at once."""


class Index(Protocol):
    """Proposes keys that may be near; made from the keys (n, d), and the same from the same keys."""

    def candidates(self, queries: Tensor, count: int) -> Tensor:
        """Numbers of keys that may have large inner products with each query, all different, (N, at most count).

        Queries are (N, d), on the CPU as the numbers are; with a count of as many as there are keys, all of them.
        `NONE` where there are fewer.
        """
        ...


@dataclass(frozen=True, eq=False)
class Nearest:
    """The nearest keys of each query, from the nearest on.

    Attributes:
        scores: (N, k), inner products less the thresholds; minus infinity where there are fewer keys than k.
        numbers: (N, k), which keys; `NONE` where there are fewer.
    """

    scores: Tensor
    numbers: Tensor


def nearest(
    queries: Tensor,
    keys: Tensor,
    k: int,
    index: Index | None = None,
    candidates: int = 0,
    thresholds: Tensor | None = None,
) -> Nearest:
    """The k keys with the largest inner products with each query, or with the largest above their thresholds.

    Queries are (N, d), keys (n, d), on the same device. The index proposes so many `candidates` of the keys; with None,
    or n or more, all keys are looked at. `thresholds`, (n,), are taken off the products. Raises ValueError: k is not 1
    or more, or queries and keys are of different widths.
    """
    if k < 1:
        raise ValueError(f"nearest: k={k} must be at least 1")
    if queries.ndim != 2 or keys.ndim != 2 or queries.shape[1] != keys.shape[1]:
        raise ValueError(f"nearest: queries {tuple(queries.shape)} and keys {tuple(keys.shape)} are not as wide")
    n = len(keys)
    few = min(k, n)
    scores = queries.new_full((len(queries), k), -torch.inf)
    numbers = torch.full((len(queries), k), NONE, device=queries.device)
    if not few:
        return Nearest(scores, numbers)
    whole = index is None or candidates >= n
    rows = max(1, BLOCK // (n if whole else max(1, candidates) * keys.shape[1]))
    for start in range(0, len(queries), rows):
        part = queries[start : start + rows]
        if index is None or whole:
            found = part @ keys.T
            if thresholds is not None:
                found -= thresholds
            best = found.topk(few)
            proposed = best.indices
        else:
            proposed = index.candidates(part.cpu(), max(few, candidates)).to(keys.device)
            found = torch.einsum("nd,ncd->nc", part, keys[proposed.clamp(min=0)])
            if thresholds is not None:
                found -= thresholds[proposed.clamp(min=0)]
            best = found.masked_fill(proposed == NONE, -torch.inf).topk(min(few, proposed.shape[1]))
            proposed = proposed.gather(1, best.indices)
        scores[start : start + rows, : proposed.shape[1]] = best.values
        numbers[start : start + rows, : proposed.shape[1]] = proposed
    return Nearest(scores, numbers)


def all_keys(queries: Tensor, n: int) -> Tensor:
    """The numbers of all keys for each query, (N, n)."""
    return torch.arange(n).expand(len(queries), n)
