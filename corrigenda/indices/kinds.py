"""The kinds of index by name."""

from typing import Literal

from torch import Tensor

from corrigenda.indices.index import Index
from corrigenda.indices.inverted_lists import InvertedLists
from corrigenda.indices.product_keys import ProductKeys
from corrigenda.settings.checked import check_value

Kind = Literal["exact", "faiss", "product_keys"]
"""How the nearest keys are found: by looking at all of them, or among the candidates of an index."""


def index_of(kind: Kind, keys: Tensor) -> Index | None:
    """The index of a kind over keys, (n, d); None for "exact".

    Raises:
        ImportError: the kind needs what is not installed.
        SettingsError: there is no such kind.
    """
    check_value("index_of", "kind", kind, Kind)
    if kind == "exact":
        return None
    return InvertedLists(keys) if kind == "faiss" else ProductKeys(keys)
