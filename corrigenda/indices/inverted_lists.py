"""`InvertedLists`: candidates by FAISS, an optional dependency.

Douze et al. 2024, "The Faiss library": an inverted file. The keys lie in lists by their nearest centre of k-means, each
number in one byte, and a query looks through the lists of its nearest centres.
"""

import math
from typing import Any

import torch
from torch import Tensor

from corrigenda.indices.index import all_keys

PROBES = 16
"""How many lists a query looks through."""

FEWEST = 39
"""Keys a list on average, at least: k-means of FAISS wants so many for each centre."""


class InvertedLists:
    """An index (`corrigenda.indices.index.Index`) of keys, (n, d), by FAISS (ImportError without it)."""

    def __init__(self, keys: Tensor) -> None:
        faiss = _faiss()
        self._n, width = keys.shape
        if not self._n:
            return
        lists = max(1, min(round(math.sqrt(self._n)), self._n // FEWEST))
        self._index = faiss.index_factory(width, f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
        self._index.nprobe = PROBES
        numbers = keys.float().cpu().contiguous().numpy()
        self._index.train(numbers)
        self._index.add(numbers)

    def candidates(self, queries: Tensor, count: int) -> Tensor:
        """The keys with the largest products, as far as one byte a number tells, in a query's lists; see `Index`."""
        if count >= self._n:
            return all_keys(queries, self._n)
        return torch.from_numpy(self._index.search(queries.float().contiguous().numpy(), count)[1])


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError("an index of the kind 'faiss' needs FAISS: pip install 'corrigenda[faiss]'") from error
    return faiss
