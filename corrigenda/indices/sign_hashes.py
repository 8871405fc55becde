"""`SignHashes`: candidates by locality-sensitive hashing.

A hash of a key are the signs of its products with some random directions: two keys at the angle a agree in each with
the probability 1 - a / pi (Charikar 2002, "Similarity Estimation Techniques from Rounding Algorithms"). Sign hashes
address the tables of MemoryFormer (Ding et al. 2024), too. Here there are several tables, each with a hash of its own,
and a query looks into the buckets of its own hashes, and then into those that differ in one sign, from the one that was
the least certain on (multi-probe, Lv et al. 2007).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from corrigenda.indices.buckets import Buckets, slots, without_repeats
from corrigenda.indices.index import NONE, all_keys

TABLES = 16
"""How many tables."""

PER_BUCKET = 8
"""A table has as many buckets as put so many keys in each on average."""

PROBES = 8
"""Into so many buckets besides its own a query looks, in each table."""

REPEATS = 4
"""So many times the candidates asked for are taken from the buckets; many are found in several tables."""


class SignHashes:
    """An index (`corrigenda.indices.index.Index`) by sign hashes.

    Args:
        keys: (n, d).
        seed: of the random directions.
    """

    def __init__(self, keys: Tensor, seed: int = 0) -> None:
        keys = keys.float().cpu()
        self._n = len(keys)
        self._bits = max(1, min(40, round(math.log2(max(2, self._n / PER_BUCKET)))))
        draw = torch.Generator().manual_seed(seed)
        self._directions = torch.randn(keys.shape[1], TABLES * self._bits, generator=draw)
        self._weights = 1 << torch.arange(self._bits)
        products = [self._products(part) for part in keys.split(1 << 14)]
        codes = torch.cat([self._codes(part) for part in products]) if products else torch.zeros(0, TABLES).long()
        self._tables = [Buckets(codes[:, table]) for table in range(TABLES)]

    def candidates(self, queries: Tensor, count: int) -> Tensor:
        """The keys that lie in a query's buckets; see `Index`."""
        if count >= self._n:
            return all_keys(queries, self._n)
        products = self._products(queries.float())
        codes = self._codes(products)
        least = products.abs().topk(min(PROBES, self._bits), dim=2, largest=False)
        flipped = codes[..., None] ^ self._weights[least.indices]
        # First the buckets of all tables with the query's own hash, then the others from the most likely on.
        asked = torch.cat([codes[..., None], flipped], dim=2)
        doubt = torch.cat([torch.zeros_like(products[..., :1]), least.values], dim=2)
        found = [table.where(asked[:, number].contiguous()) for number, table in enumerate(self._tables)]
        starts, sizes = (torch.stack(parts, dim=1).flatten(1) for parts in zip(*found, strict=True))
        order = doubt.flatten(1).argsort(dim=1, stable=True)
        bucket, within, filled = slots(sizes.gather(1, order), min(self._n, REPEATS * count))
        bucket = order.gather(1, bucket)
        places = (starts.gather(1, bucket) + within).clamp(max=self._n - 1)
        table = bucket // asked.shape[2]
        numbers = torch.full_like(places, NONE)
        for number, buckets in enumerate(self._tables):
            here = filled & (table == number)
            numbers[here] = buckets.numbers(places[here])
        return _first(numbers, count)

    def _products(self, rows: Tensor) -> Tensor:
        """With the directions of each table, (N, table, bit)."""
        return (rows @ self._directions).view(len(rows), TABLES, self._bits)

    def _codes(self, products: Tensor) -> Tensor:
        """The hashes as numbers, (N, table)."""
        return ((products > 0) * self._weights).sum(2)


def _first(numbers: Tensor, count: int) -> Tensor:
    """The first so many different numbers of each row, (N, at most count)."""
    distinct = without_repeats(numbers)
    if distinct.shape[1] <= count:
        return distinct
    # Those that were found most often come first: near keys share buckets in many tables.
    often = _times(numbers, distinct)
    order = torch.where(distinct == NONE, NONE, often).argsort(dim=1, descending=True, stable=True)
    return distinct.gather(1, order[:, :count])


def _times(numbers: Tensor, distinct: Tensor) -> Tensor:
    """How often each number is in its row."""
    ordered = numbers.sort(1).values
    return torch.searchsorted(ordered, distinct, right=True) - torch.searchsorted(ordered, distinct)
