"""The knowledge base: inserting without solving, opening, deleting, folding what is left; indices, attached entries.

Facts and their entries are made up, with the widths of SmolLM2-135M's FFNs: what is timed is the store and the algebra.

    python benchmarks/knowledge_base.py [--entries 100000] [--indices 1000 10000 ...] [--attached 100 1000 ...]
    python benchmarks/knowledge_base.py --entries 1000 --indices --attached --scoped 10000 --model qwen2.5-coder-0.5b
    python benchmarks/knowledge_base.py --list 300 --facts counterfact.json --kept outputs/list.kb

The last line is a JSON object: `ratio` is the time to insert one entry into a base of 300 over that into the full one
(about 1: nothing grows), `open_seconds` what opening the full base and finding a fact in it take, `fold_300_ratio` the
time to fold 300 entries one outer product after the other over ours. `rebuild`, with --list, is a list of real facts
solved one by one and folded by EMMET, against the same list built again after one fact was withdrawn; what was solved
is kept beside --kept. `indices` compares, on drawn keys and queries that have a cosine of 0.9 with one of them, the
share of queries for which that key is found, and of the 8 nearest keys that are. `attached` is how much longer
generation takes with so many entries beside the weights, `scoped` the same of entries behind a gate; `lookup`, with
--statements, what it takes to look up one of so many statements, by each encoder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from beside import LAYER, attached_overhead, lookup_seconds, scoped_overhead
from harness import parser_of, print_result, timed
from indices import compare_indices

from corrigenda import Fact, KnowledgeBase, LanguageModel, load
from corrigenda.data import read_facts
from corrigenda.edits.encoders import STATES, WORDLLAMA
from corrigenda.knowledge.entries import Entry, residuals_of
from corrigenda.runs.environment import peak_memory_mb
from corrigenda.system.files import write_json
from editing.knowledge.how import how_named


class Widths:
    """As much of a model as a base needs that solves nothing on it."""

    name, fingerprint = "widths", "0" * 32

    def __init__(self, d_ffn: int, d_model: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self.values = torch.randn(d_ffn, d_model, generator=draw) / d_ffn**0.5
        self.d_ffn, self.d_model = d_ffn, d_model
        self.edits = SimpleNamespace(suspended=nullcontext)

    def memory(self, _layer: int) -> Widths:
        """All layers are alike."""
        return self


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
        K, R = residuals_of(kb.entries(lm, facts), lm.values)
        torch.linalg.solve(moment + K.T @ K, K.T @ R)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def rebuilt(lm: LanguageModel, facts: Sequence[Fact], kept: Path) -> dict[str, Any]:
    """What a list takes that is solved and compiled, and what it takes again with a fact less."""
    way, noted = how_named("emmet"), kept.with_name(f"{kept.name}.seconds.json")
    seconds: dict[str, float] = json.loads(noted.read_text(encoding="utf-8")) if noted.is_file() else {}

    class Timed:
        """The way's solver, which notes how long each fact takes."""

        settings = way.solver.settings

        def __call__(self, lm: LanguageModel, asked: Sequence[Fact]) -> list[Entry]:
            found = []
            for fact in asked:
                begin = time.perf_counter()
                found += way.solver(lm, [fact])
                seconds[fact.id] = time.perf_counter() - begin
            write_json(noted, seconds)
            return found

    solved = Timed()
    with KnowledgeBase.open(kept) as kb:
        kb.replace(facts)
        kb.solve(lm, solved, batch=1)
        facts = kb.active
        kb.compile(lm, way.compiler)  # the second moment of the text is taken once a model, and kept
        begin = time.perf_counter()
        kb.compile(lm, way.compiler)
        compiled = time.perf_counter() - begin
    with tempfile.TemporaryDirectory() as folder:
        for path in kept.parent.glob(f"{kept.name}*"):
            shutil.copy(path, folder)
        begin = time.perf_counter()
        with KnowledgeBase.open(Path(folder) / kept.name) as kb:
            kb.replace(facts[1:])
            assert kb.solve(lm, solved) == 0
            kb.compile(lm, way.compiler)
        again = time.perf_counter() - begin
    solving = sum(seconds[fact.id] for fact in facts)
    return {
        "model": lm.name,
        "facts": len(facts),
        "solve_seconds": solving,
        "compile_seconds": compiled,
        "rebuild_seconds": again,
        "rebuild_ratio": (solving + compiled) / again,
    }


def plain_fold_seconds(kb: KnowledgeBase, lm: Any, facts: Sequence[Fact]) -> float:
    """The plain way through the same equation, from the same entries: one outer product after the other."""
    entries = kb.entries(lm, facts)

    def fold() -> None:
        A, B = 0.1 * torch.eye(lm.d_ffn, dtype=torch.float64), torch.zeros(lm.values.shape, dtype=torch.float64)
        for entry in entries:
            k, r = residuals_of([entry], lm.values)
            A += k.T @ k
            B += k.T @ r
        torch.linalg.solve(A, B)

    return timed(fold)[0]


def store_figures(options: argparse.Namespace) -> dict[str, Any]:
    """A base that is filled, opened again, has a fact taken out, and 300 of its entries folded."""
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
            deleted, _ = timed(lambda: kb.delete("fact-7"))
            facts = [fact for fact in facts_from(0, 301) if fact.id != "fact-7"]
            folded, plainly = fold_seconds(kb, lm, facts), plain_fold_seconds(kb, lm, facts)
        megabytes = sum(file.stat().st_size for file in Path(folder).iterdir()) / 2**20
    return {
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
        "key_width": options.width,
    }


def arguments() -> argparse.Namespace:
    """What the command line asks for."""
    parser = parser_of(__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--d-ffn", type=int, default=1536)
    parser.add_argument("--d-model", type=int, default=576)
    parser.add_argument("--batch", type=int, default=1000, help="facts inserted at once")
    parser.add_argument("--runs", type=int, default=21, help="single inserts that are timed")
    sizes = [10**power for power in range(2, 7)]
    parser.add_argument("--indices", type=int, nargs="*", default=sizes[1:], help="numbers of keys to compare at")
    parser.add_argument("--attached", type=int, nargs="*", default=sizes, help="numbers of attached entries")
    parser.add_argument("--scoped", type=int, nargs="*", default=[], help="numbers of entries behind a gate")
    parser.add_argument("--statements", type=int, nargs="*", default=[], help="numbers of statements to look up in")
    parser.add_argument("--width", type=int, default=256, help="numbers of a key in its layer's view")
    parser.add_argument("--queries", type=int, default=200, help="queries to each index")
    parser.add_argument("--candidates", type=int, default=256, help="candidates that an index proposes")
    parser.add_argument("--tokens", type=int, default=50, help="tokens to generate")
    parser.add_argument("--generations", type=int, default=7, help="generations that are timed, with and without")
    parser.add_argument("--list", type=int, default=0, help="facts of the list that is built again; 0: none is")
    parser.add_argument("--facts", type=Path, help="a file with them")
    parser.add_argument("--offset", type=int, default=0, help="facts of it that are passed over")
    parser.add_argument(
        "--kept", type=Path, default=Path("outputs/list.kb"), help="where what is solved of them is kept"
    )
    options = parser.parse_args()
    if options.list and options.facts is None:
        parser.error("--list needs real facts: give a file with --facts")
    return options


def main() -> None:
    """Runs all parts and prints what was measured."""
    options = arguments()
    figures = store_figures(options)
    indices = [
        each for n in options.indices for each in compare_indices(n, options.width, options.queries, options.candidates)
    ]
    rebuild, attached, scoped, lookup = None, [], [], []
    if options.attached or options.scoped or options.statements or options.list:
        model = load(options.model)
        if options.list:
            facts = read_facts(options.facts, offset=options.offset, limit=options.list).facts
            rebuild = rebuilt(model, facts, options.kept)
            print(json.dumps(rebuild), file=sys.stderr)
        attached = [
            attached_overhead(model, n, options.width, options.tokens, options.generations) for n in options.attached
        ]
        scoped = [scoped_overhead(model, n, options.tokens, options.generations) for n in options.scoped]
        lookup = [
            lookup_seconds(model, n, encoder, options.runs)
            for n in options.statements
            for encoder in (STATES, WORDLLAMA)
        ]
    result = {
        "benchmark": "knowledge_base",
        "threads": torch.get_num_threads(),
        "load": [*os.getloadavg()] if hasattr(os, "getloadavg") else None,
        **figures,
        "rebuild": rebuild,
        "indices": indices,
        "attached": attached,
        "scoped": scoped,
        "lookup": lookup,
        "peak_memory_mb": peak_memory_mb(),
    }
    print_result(result)


if __name__ == "__main__":
    main()
