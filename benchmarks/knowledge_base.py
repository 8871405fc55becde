"""The knowledge base: inserting without solving, opening, deleting, and folding what is left.

Facts are made up, and their entries drawn at random, with the widths of SmolLM2-135M's feed-forward layers, so that no
model is needed: what is timed is the store and the algebra, and no solving.

    python benchmarks/knowledge_base.py [--entries 100000]

Prints a JSON object as its last line: `ratio` is the time to insert one entry into a base of 300 over that into the
full one (about 1: nothing grows), `open_seconds` what opening the full base and finding a fact in it take, and
`fold_300_ratio` the time to fold 300 entries one outer product after the other over ours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from corrigenda import Fact, KnowledgeBase
from corrigenda.knowledge.entries import Entry
from corrigenda.knowledge.folding import Sums, residuals_of
from corrigenda.runs.environment import peak_memory_mb

LAYER = 6


class Widths:
    """As much of a model as a base needs that solves nothing on it."""

    name, fingerprint = "widths", "0" * 32

    def __init__(self, d_ffn: int, d_model: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self.values = torch.randn(d_ffn, d_model, generator=draw) / d_ffn**0.5
        self.d_ffn, self.d_model = d_ffn, d_model
        self.edits = SimpleNamespace(suspended=self._suspended)

    def memory(self, _layer: int) -> Widths:
        """All layers are alike."""
        return self

    def _suspended(self) -> AbstractContextManager[None]:
        return nullcontext()


class Drawn:
    """A solver that draws its entries; what it takes is not counted."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(1)
        self.seconds = 0.0

    def __call__(self, lm: Any, facts: Sequence[Fact]) -> list[Entry]:
        """One entry for each fact."""
        begin = time.perf_counter()
        keys, values = (torch.randn(len(facts), width, generator=self.generator) for width in (lm.d_ffn, lm.d_model))
        made = [Entry(fact.id, LAYER, *pair, lm.fingerprint) for fact, *pair in zip(facts, keys, values, strict=True)]
        self.seconds += time.perf_counter() - begin
        return made


def facts_from(first: int, count: int) -> list[Fact]:
    """Made-up facts."""
    return [
        Fact(f"Subject {number}", "{} is located in the city of", "Rome", id=f"fact-{number}")
        for number in range(first, first + count)
    ]


def insert_seconds(kb: KnowledgeBase, lm: Any, first: int, runs: int) -> float:
    """The median time of inserting one fact with its entry."""
    times = []
    for number in range(first, first + runs):
        solver, [fact] = Drawn(), facts_from(number, 1)
        begin = time.perf_counter()
        kb.insert([fact], lm, solver)
        times.append(time.perf_counter() - begin - solver.seconds)
    return statistics.median(times)


def fold_seconds(kb: KnowledgeBase, lm: Any, facts: Sequence[Fact], runs: int = 3) -> float:
    """The median time of reading entries back and solving A X = B with them."""
    times = []
    moment = 0.1 * torch.eye(lm.d_ffn, dtype=torch.float64)
    for _ in range(runs):
        begin = time.perf_counter()
        entries = kb.entries(lm, facts)
        sums = Sums.of([entry.key for entry in entries], [entry.value for entry in entries], lm.values)
        torch.linalg.solve(moment + sums.gram, sums.cross)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--d-ffn", type=int, default=1536)
    parser.add_argument("--d-model", type=int, default=576)
    parser.add_argument("--batch", type=int, default=1000, help="facts inserted at once")
    parser.add_argument("--runs", type=int, default=21, help="single inserts that are timed")
    options = parser.parse_args()
    lm = Widths(options.d_ffn, options.d_model)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "facts.kb"
        with KnowledgeBase.open(path) as kb:
            insert_seconds(kb, lm, options.entries + 2 * options.runs, 300)  # until the log file grows no more
            into_small = insert_seconds(kb, lm, options.entries, options.runs)
            solver = Drawn()
            begin = time.perf_counter()
            for first in range(0, options.entries, options.batch):
                kb.insert(facts_from(first, min(options.batch, options.entries - first)), lm, solver)
            filled = time.perf_counter() - begin - solver.seconds
            into_full = insert_seconds(kb, lm, options.entries + options.runs, options.runs)
        print(f"{options.entries} entries inserted in {filled:.1f} s", file=sys.stderr)
        begin = time.perf_counter()
        with KnowledgeBase.open(path) as kb:
            assert kb.find(subject=f"Subject {options.entries // 2}")
            opened = time.perf_counter() - begin
            begin = time.perf_counter()
            kb.delete("fact-7")
            deleted = time.perf_counter() - begin
            facts = [fact for fact in facts_from(0, 301) if fact.id != "fact-7"]
            folded = fold_seconds(kb, lm, facts)
            # The plain way through the same equation, from the same entries: one outer product after the other.
            entries = kb.entries(lm, facts)
            begin = time.perf_counter()
            A, B = 0.1 * torch.eye(lm.d_ffn, dtype=torch.float64), torch.zeros(lm.values.shape, dtype=torch.float64)
            for entry in entries:
                k, r = residuals_of([entry.key], [entry.value], lm.values.double())
                A += k.T @ k
                B += k.T @ r
            torch.linalg.solve(A, B)
            plainly = time.perf_counter() - begin
        megabytes = sum(file.stat().st_size for file in Path(folder).iterdir()) / 2**20
    result = {
        "benchmark": "knowledge_base",
        "threads": torch.get_num_threads(),
        "entries": options.entries,
        "d_ffn": options.d_ffn,
        "d_model": options.d_model,
        "entries_per_second": options.entries / filled,
        "insert_seconds": into_full,
        "ratio": into_small / into_full,
        "open_seconds": opened,
        "delete_seconds": deleted,
        "fold_300_seconds": folded,
        "fold_300_ratio": plainly / folded,
        "megabytes": megabytes,
        "peak_memory_mb": peak_memory_mb(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
