"""`ProductKeys`: candidates by two lists of half keys.

Lample et al. 2019, "Large Memory Layers with Product Keys": the nearest of m^2 pairs of halves are found with 2 m
products of half the width. There the halves are learned with the model; here they are the centres of k-means over the
halves of the keys that are given, and each key lies at the pair of its nearest ones.
"""

import math

import torch
from torch import Tensor

from corrigenda.indices.buckets import Buckets, slots
from corrigenda.indices.index import NONE, all_keys

PER_PAIR = 4
"""There are as many pairs of halves as put so many keys at each on average."""

SAMPLE = 64
"""Keys that k-means looks at, for each centre."""

ROUNDS = 10
"""Rounds of k-means."""

ROWS = 4096
"""Keys that are assigned to their centres at once."""


class ProductKeys:
    """An index (`corrigenda.indices.index.Index`) of keys, (n, d) with d of at least 2, by product keys."""

    def __init__(self, keys: Tensor, seed: int = 0) -> None:
        keys = keys.float().cpu()
        self._n, width = keys.shape
        self._cut = max(1, width // 2)
        draw = torch.Generator().manual_seed(seed)
        m = max(1, round(math.sqrt(self._n / PER_PAIR)))
        self._halves, places = [], []
        for half in self._split(keys):
            centres = _centres(half, m, draw)
            # A centre without keys would only take the place of one with keys among the nearest.
            used, place = _assigned(half, centres).unique(return_inverse=True)
            self._halves.append(centres[used])
            places.append(place)
        self._buckets = Buckets(places[0] * len(self._halves[1]) + places[1])

    def candidates(self, queries: Tensor, count: int) -> Tensor:
        """The keys at the pairs of halves with the largest products with a query; see `Index`."""
        if count >= self._n:
            return all_keys(queries, self._n)
        # So many of either half that their pairs hold several times what is asked for.
        most = max(8, math.ceil(math.sqrt(4 * count)))
        left, right = (
            (half @ centres.T).topk(min(most, len(centres)))
            for half, centres in zip(self._split(queries.float()), self._halves, strict=True)
        )
        pairs = (left.indices[:, :, None] * len(self._halves[1]) + right.indices[:, None]).flatten(1)
        order = (
            (left.values[:, :, None] + right.values[:, None]).flatten(1).argsort(dim=1, descending=True, stable=True)
        )
        starts, sizes = self._buckets.where(pairs.gather(1, order))
        bucket, within, filled = slots(sizes, count)
        places = (starts.gather(1, bucket) + within).clamp(max=self._n - 1)
        return self._buckets.numbers(places).masked_fill(~filled, NONE)

    def _split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return rows[:, : self._cut], rows[:, self._cut :]


def _centres(rows: Tensor, m: int, draw: torch.Generator) -> Tensor:
    """At most m centres of k-means, (m, width), over a sample of the rows."""
    chosen = rows[torch.randperm(len(rows), generator=draw)[: m * SAMPLE]]
    centres = chosen[:m].clone()
    for _ in range(ROUNDS if len(chosen) > m else 0):
        places = _assigned(chosen, centres)
        sums = torch.zeros_like(centres).index_add_(0, places, chosen)
        sizes = torch.bincount(places, minlength=len(centres))[:, None]
        centres = torch.where(sizes > 0, sums / sizes.clamp(min=1), centres)
    return centres


def _assigned(rows: Tensor, centres: Tensor) -> Tensor:
    """The number of each row's nearest centre by Euclidean distance, (n,)."""
    if not len(rows):
        return torch.zeros(0, dtype=torch.long)
    half = centres.square().sum(1) / 2
    return torch.cat([(part @ centres.T - half).argmax(1) for part in rows.split(ROWS)])
