"""Recall, time and memory of the kinds of index over drawn keys, for `knowledge_base.py`."""

import json
import sys
from typing import Any, get_args

import torch
from harness import timed

from corrigenda.indices.buckets import Buckets
from corrigenda.indices.index import Index, nearest
from corrigenda.indices.inverted_lists import InvertedLists
from corrigenda.indices.kinds import Kind, index_of


def held_megabytes(index: Index | None) -> float:
    """What an index holds besides the keys, in MB."""
    if isinstance(index, InvertedLists):
        import faiss

        return faiss.serialize_index(index._index).nbytes / 2**20
    seen: dict[int, int] = {}

    def walk(value: object) -> None:
        if isinstance(value, torch.Tensor):
            seen[value.data_ptr()] = value.numel() * value.element_size()
        for part in value if isinstance(value, list) else getattr(value, "__dict__", {}).values():
            if isinstance(part, (torch.Tensor, list, Buckets)):
                walk(part)

    walk(index)
    return sum(seen.values()) / 2**20


def compare_indices(n: int, width: int, queries: int, candidates: int) -> list[dict[str, Any]]:
    """Recall, time and memory of every kind of index over so many keys."""
    draw = torch.Generator().manual_seed(2)
    keys = torch.nn.functional.normalize(torch.randn(n, width, generator=draw), dim=1)
    wanted = torch.randint(n, (queries,), generator=draw)
    beside = torch.nn.functional.normalize(torch.randn(queries, width, generator=draw), dim=1)
    asked = torch.nn.functional.normalize(keys[wanted] + 0.484 * beside, dim=1)  # a cosine of 0.9
    exact = nearest(asked, keys, 8).numbers
    found = []
    for kind in get_args(Kind):
        try:
            made, index = timed(lambda kind=kind: index_of(kind, keys))  # type: ignore[misc]
        except ImportError as error:
            print(f"{kind} is left out: {error}", file=sys.stderr)
            continue
        seconds, numbers = timed(
            lambda index=index: torch.cat([nearest(query[None], keys, 8, index, candidates).numbers for query in asked])
        )
        shared = (numbers[:, :, None] == exact[:, None]).any(1).double().mean()
        recall = float((numbers[:, 0] == wanted).double().mean())
        figures = {
            "recall": recall,
            "recall_of_8": float(shared),
            "build_seconds": made,
            "query_seconds": seconds / queries,
        }
        found.append({"entries": n, "index": kind, **figures, "megabytes": held_megabytes(index)})
        print(json.dumps(found[-1]), file=sys.stderr)
    return found
