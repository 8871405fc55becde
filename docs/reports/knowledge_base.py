"""docs/knowledge-base-figures.md: what the knowledge base does and costs, measured.

The ways to put a list to use, by the proof of a build; unfolding every model family; answering with a part of the
entries; and the timings of benchmarks/knowledge_base.py.

    python docs/reports/knowledge_base.py collect [--facts 50] [--minutes 60]
    python docs/reports/knowledge_base.py page

What is finished is kept in the work folder, and the first command goes on where it was stopped. It writes the data
when all is done; `pages.py` says more of the two steps. The facts are CounterFact's from record 1,700 on: nothing was
tuned or chosen on them (the view of attached entries was chosen on 1,500 to 1,699).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, get_args

import torch
from pages import ROOT, Collected, Report, made, making, markdown, provenance
from torch import Tensor

from corrigenda import Fact, KnowledgeBase, LanguageModel, load
from corrigenda.data import read_facts
from corrigenda.files import write_json
from corrigenda.forward.recording import forward_logits
from corrigenda.indices.kinds import Kind
from corrigenda.knowledge.cross_attention import FoldedFFN
from corrigenda.knowledge.retrieval import answer_with, measure_retrieval, nearest_entries
from corrigenda.knowledge.unfolding import unfold
from corrigenda.runs.folder import RunFolder
from editing import EditRefusedError
from editing.knowledge.how import How, how_named
from eval import METRICS, EvalSettings, Evaluation
from eval.held_out import held_out_windows
from eval.proof.proving import prove
from eval.proof.unedited import Unedited

NAME = "knowledge-base-figures"
SCRIPT = "knowledge_base.py"
WAYS = ("emmet", "memit", "alphaedit", "attached")
SETTINGS = EvalSettings(max_new_tokens=10)
COLUMNS = {
    "free_generation_strict": "holds",
    "paraphrase_free_generation_strict": "paraphrases",
    "efficacy_success": "ES",
    "paraphrase_success": "PS",
    "neighbourhood_success": "NS",
    "preservation": "preservation",
    "neighbourhood_kl": "neighbourhood KL",
    "perplexity_drift": "perplexity drift",
}
HOLDS, FOLLOWS, LEAVES = "free_generation_strict", "paraphrase_free_generation_strict", "preservation"
SHOWN = (HOLDS, FOLLOWS, "neighbourhood_success", LEAVES, "neighbourhood_kl", "perplexity_drift")
"""The columns of the page; the data have all."""
USES = (
    "editing.knowledge.how",
    "eval.proof.proving",
    "corrigenda.knowledge.retrieval",
    "corrigenda.knowledge.attached",
)
"""What the figures are made with."""
FIGURES = "figures.json"
LAYER, QUERIES, TIMES = 6, 512, 5
KS = (8, 32, 128, 384, 768, 1152, 1536)


# -- the first step


def options(parser: argparse.ArgumentParser) -> None:
    """The first step's options."""
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--data", default=str(ROOT.parent / "shared" / "data" / "counterfact.json"))
    parser.add_argument("--offset", type=int, default=1700, help="records before the first fact")
    parser.add_argument("--facts", type=int, default=50, help="how many facts are built")
    parser.add_argument("--list", type=int, default=300, help="facts of the list that the benchmark builds again")
    parser.add_argument("--benchmark", default="", help="further options of the benchmark, in one word")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin nothing more after so long; it goes on")
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / "knowledge_base")


def collect(arguments: argparse.Namespace) -> Collected | None:
    """All parts; None where the time was up before the last was done."""
    deadline = time.monotonic() + 60 * arguments.minutes
    lm = load(arguments.model)
    work = arguments.work / lm.fingerprint[:8]  # what was found of another model is not this one's
    facts = [
        replace(fact, generation=())
        for fact in read_facts(arguments.data, offset=arguments.offset, limit=arguments.facts)
    ]
    of_list = f"{arguments.offset}-{arguments.facts}"
    solved = {way: work / f"solved-{way}" for way in dict.fromkeys(map(_solved_by, WAYS))}
    folders = {way: work / f"{way}-{of_list}" for way in WAYS}
    kept = ["--facts", arguments.data, "--kept", str(work / "list.kb"), "--model", arguments.model]
    parts: dict[str, Callable[[], Any]] = {
        "families": unfolded,
        "retrieval": partial(retrieved, lm),
        "benchmark": partial(benchmarked, ["--list", str(arguments.list), *kept, *arguments.benchmark.split()]),
    }
    steps = [partial(solve, lm, folder, facts, how_named(way)) for way, folder in solved.items()]
    for way, folder in folders.items():
        steps.append(
            partial(_once, folder, partial(proven, lm, folder, solved[_solved_by(way)], facts, how_named(way)))
        )
    steps += [partial(_once, work / name, find) for name, find in parts.items()]
    for step in steps:
        if time.monotonic() > deadline:
            return None
        step()
    figures = {
        "model": lm.name,
        "facts": {"from": arguments.offset, "n": len(facts), "subjects": len({fact.subject for fact in facts})},
        "ways": {way: _read(folder) for way, folder in folders.items()},
        **{name: _read(work / name) for name in parts},
    }
    named = {f"solved by {way}": folder for way, folder in solved.items()} | folders
    named |= {name: work / name for name in parts}
    return Collected(figures, {name: made(folder) for name, folder in named.items()})


def _once(folder: Path, find: Callable[[], Any]) -> None:
    """Finds figures, and keeps them in a folder, unless they are there."""
    if not (folder / FIGURES).is_file():
        with making(folder, USES):
            write_json(folder / FIGURES, find())


def _read(folder: Path) -> Any:
    return json.loads((folder / FIGURES).read_text(encoding="utf-8"))


def _solved_by(way: str) -> str:
    """The way whose entries a way has, too: it is the first with the same keys and targets."""
    return {"attached": "emmet", "alphaedit": "memit"}.get(way, way)


def solve(lm: LanguageModel, folder: Path, facts: Sequence[Fact], way: How) -> None:
    """Solves what is not solved yet into a knowledge base; a stopped one goes on."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = way.solver.settings(lm)
    with KnowledgeBase.open(folder / "facts.kb") as kb:
        known = {fact.id for fact in kb.facts}
        kb.insert([fact for fact in facts if fact.id not in known])
        if any(fact.id in {one.id for one in facts} for fact in kb.unsolved(lm, settings)):
            with making(folder, USES):
                kb.solve(lm, way.solver, batch=1, settings=settings)


def proven(lm: LanguageModel, folder: Path, solved: Path, facts: Sequence[Fact], way: How) -> dict[str, Any]:
    """The figures of a way, by the proof of a build; a way that refuses the list has its reason alone."""
    with KnowledgeBase.open(solved / "facts.kb") as known, KnowledgeBase.open(folder / "facts.kb") as kb:
        kb.replace(facts)
        kb.solve(lm, known.entries)  # those of the other base
        begin = time.perf_counter()
        try:
            edit = kb.compile(lm, way.compiler)
        except EditRefusedError as refusal:
            return {"refused": str(refusal)}
        compiled, active = time.perf_counter() - begin, kb.active
    unedited = Unedited(lm, SETTINGS, folder.parent / "unedited")
    begin = time.perf_counter()
    found = prove(lm, edit, active, SETTINGS, RunFolder(folder), unedited)
    metrics = Evaluation(tuple(one.case for one in found)).metrics
    return {
        "metrics": {
            key: {part: metrics[key][part] for part in ("before", "after", "low", "high", "n")}
            for key in COLUMNS
            if key in metrics
        },
        "compile_seconds": compiled,
        "prove_seconds": time.perf_counter() - begin,
    }


def unfolded() -> list[dict[str, Any]]:
    """For every family how far fold and forward of its unfolded FFN are from the module, in a tiny model of it."""
    sys.path.insert(0, str(ROOT / "tests"))
    import tiny

    found = []
    for family in tiny.CONFIGS:
        lm = tiny.build(family)
        hidden, output = _ffn(lm, 1, [lm.tokens("the tower is in the city of Paris , the capital of France")])
        attention = unfold(lm, [1])[1]
        parts = {"forward": attention(hidden), "fold": attention.fold()(hidden)}
        errors = {name: float((answer - output).norm() / output.norm()) for name, answer in parts.items()}
        found.append({"family": family, "gated": attention.factor is not None} | errors)
    return found


def _ffn(lm: LanguageModel, layer: int, texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """What goes into a layer's FFN and what comes out of it, (position, d_model) each."""
    inputs: list[Tensor] = []
    handle = lm.architecture.keys(layer).register_forward_pre_hook(lambda _module, args: inputs.append(args[0]))
    try:
        with lm.memory(layer).capture() as seen, torch.no_grad():
            forward_logits(lm, lm.batch([list(text) for text in texts]))
    finally:
        handle.remove()
    return inputs[0].reshape(-1, inputs[0].shape[-1]).float(), seen.output.reshape(-1, seen.output.shape[-1]).float()


def retrieved(lm: LanguageModel) -> dict[str, Any]:
    """Error and cost of answering with a part of the entries, on the held-out texts, and what it takes."""
    windows = held_out_windows(lm, EvalSettings())
    hidden = _ffn(lm, LAYER, windows[: QUERIES // len(windows[0])])[0]
    ffn = unfold(lm, [LAYER])[LAYER].fold()
    rows = []
    whole = _seconds(ffn, hidden)
    by_score = measure_retrieval(ffn, hidden, KS)
    best = measure_retrieval(ffn, hidden, KS, by="contribution")
    for one, other in zip(by_score, best, strict=True):
        chosen = nearest_entries(ffn, hidden, one.k)
        rows.append(
            {
                "k": one.k,
                "error": one.error,
                "least_error": other.error,
                "cost": one.part / one.full,
                "without_search": (one.part - one.search) / one.full,
                "search_seconds": _seconds(nearest_entries, ffn, hidden, one.k),
                "answer_seconds": _seconds(answer_with, ffn, hidden, chosen),
            }
        )
    return {
        "layer": LAYER,
        "queries": len(hidden),
        "entries": len(ffn.values),
        "d_model": ffn.values.shape[1],
        "seconds": whole,
        "rows": rows,
        "scaling": scaling(ffn.values.shape[1]),
    }


def scaling(d: int) -> list[dict[str, Any]]:
    """Seconds of all entries against those of 64 of them, for drawn entries of a plain FFN: Table 2's two rows.

    What is searched for is given, so that R is left out: that of each kind of index is in the benchmark.
    """
    draw, found = torch.Generator().manual_seed(0), []
    hidden = torch.randn(64, d, generator=draw)
    for n in (1_000, 4_000, 16_000, 64_000):
        keys, values = torch.randn(d, n, generator=draw), torch.randn(n, d, generator=draw)
        # The rows of an entry are kept together: else gathering k of them would read the whole matrix.
        weight = keys.T.contiguous().T
        ffn = FoldedFFN((weight, torch.zeros(n)), values, None, torch.relu)
        chosen = torch.randint(n, (len(hidden), 64), generator=draw)
        all_of_them, part = _seconds(ffn, hidden), _seconds(answer_with, ffn, hidden, chosen)
        found.append({"entries": n, "all_seconds": all_of_them, "part_seconds": part})
    return found


def _seconds(work: Callable[..., object], *arguments: object) -> float:
    """The median time."""
    times = []
    with torch.no_grad():
        work(*arguments)
        for _ in range(TIMES):
            begin = time.perf_counter()
            work(*arguments)
            times.append(time.perf_counter() - begin)
    return median(times)


def benchmarked(more: Sequence[str]) -> dict[str, Any]:
    """What benchmarks/knowledge_base.py prints."""
    command = [sys.executable, str(ROOT / "benchmarks" / "knowledge_base.py"), *more]
    said = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


# -- the second step


def text(data: Mapping[str, Any]) -> Iterator[str]:
    """The page's lines: what was found, each part, how it was made."""
    figures = data["figures"]
    yield from ("# The knowledge base: figures", "")
    yield " ".join([*finding(figures["ways"]), "What the ways are: [knowledge-base.md](knowledge-base.md)."])
    yield from ways_text(figures)
    yield from parts_text(figures["retrieval"], figures["families"])
    yield from benchmark_text(figures["benchmark"])
    yield from provenance(NAME, data, SCRIPT, timed=True)


def finding(ways: Mapping[str, Any]) -> Iterator[str]:
    """Which way holds most and which leaves most, and that the paraphrases of so few facts tell nothing apart."""
    known = {way: found["metrics"] for way, found in ways.items() if {HOLDS, LEAVES} <= set(found.get("metrics", {}))}
    if not known:
        return
    holds = max(known, key=lambda way: known[way][HOLDS]["after"])
    leaves = max(known, key=lambda way: known[way][LEAVES]["after"])
    for way in dict.fromkeys((holds, leaves)):
        n, said = known[way][HOLDS]["n"], round(known[way][HOLDS]["after"] * known[way][HOLDS]["n"])
        yield (
            f"`{way}` holds {said} of {n} facts and leaves {_cell(LEAVES, known[way][LEAVES])} % of the answers beside "
            "them."
        )
    follow = [found[FOLLOWS] for found in known.values() if found.get(FOLLOWS, {}).get("low") is not None]
    if len(follow) > 1 and max(one["low"] for one in follow) <= min(one["high"] for one in follow):
        shares = sorted(one["after"] for one in follow)
        yield (
            f"On paraphrases the ways hold {100 * shares[0]:.0f} to {100 * shares[-1]:.0f} %, with intervals that "
            f"overlap: {follow[0]['n']} facts show no order among them."
        )
    if holds != leaves:
        yield (
            f"Take `{leaves}` where the neighbours matter and the list may lie beside the model, `{holds}` for a plain "
            "model in which the list holds."
        )


def ways_text(figures: Mapping[str, Any]) -> Iterator[str]:
    """The ways to put a list to use, by the proof of a build."""
    facts = figures["facts"]
    first, n = facts["from"] + 1, facts["n"]
    yield from ("", "## Ways to put a list to use", "")
    yield (
        f"{n} CounterFact facts (records {first} to {first + n - 1}) in {figures['model']}, by the proof of "
        "`job=build`, in %, with 95 % intervals over subjects (of the perplexity over windows). `attached` has the "
        "entries of `emmet`, `alphaedit` those of `memit`. NS, preservation and KL are of prompts about other "
        "subjects, on which an attached entry seldom speaks; on prompts about its own it does. Ways that hold less "
        "also change less: what they leave is no comparison at equal strength. Settings are those that shipped at that "
        "version of the code; of those that ship now there are no figures."
    )
    yield from ("", f"| way | {' | '.join(map(_heading, SHOWN))} |", "|---|" + "---|" * len(SHOWN))
    if before := [found["metrics"] for found in figures["ways"].values() if "metrics" in found][:1]:
        yield f"| the unedited model | {' | '.join(_before(key, before[0].get(key)) for key in SHOWN)} |"
    for way, found in figures["ways"].items():
        if "metrics" in found:
            yield f"| `{way}` | {' | '.join(_cell(key, found['metrics'].get(key)) for key in SHOWN)} |"
    for way, found in figures["ways"].items():
        if "refused" in found:
            yield from ("", f"`{way}` refused the list: {found['refused']}")


def _heading(key: str) -> str:
    symbol = METRICS[key].written.symbol
    return f"{COLUMNS[key]}, {symbol}" if symbol else COLUMNS[key]


def _cell(key: str, found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "not measured"
    unit = METRICS[key].written
    said = unit.text(found["after"])
    return said if found["low"] is None else f"{said} [{unit.text(found['low'])}, {unit.text(found['high'])}]"


def _before(key: str, found: Mapping[str, Any] | None) -> str:
    """A figure of the unedited model; none where it compares with that."""
    return "" if found is None or found["before"] is None else METRICS[key].written.text(found["before"])


def parts_text(found: Mapping[str, Any], families: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Unfolding, and the error and cost of a part of the entries."""
    worst = max(max(one["forward"], one["fold"]) for one in families)
    whole = found["seconds"]
    cheaper = [row["error"] for row in found["rows"] if row["cost"] < 1]
    yield from ("", "## Folding, and answering with a part of the entries", "")
    yield (
        f"Unfolded into entries and folded again, the FFNs of {len(families)} families (tiny models, random weights, "
        f"float32) are at most {worst:.1e} from their own output (relative, Frobenius norm). The data have each."
    )
    yield ""
    if cheaper:
        yield (
            "A part of the entries that costs less than all of them, search included, misses their answer by "
            f"{100 * min(cheaper):.1f} % or more."
        )
        yield ""
    yield (
        f"Layer {found['layer']}, {found['entries']} entries of width {found['d_model']}, {found['queries']} positions "
        "of the held-out texts. k entries are those with the largest scores; the least error is with those that add "
        f"most. Cost is in multiplications, of all entries' (search included). All entries took {1000 * whole:.1f} ms."
    )
    yield from (
        "",
        "| k | error, % | least error, % | cost, % | search, ms | answer, ms |",
        "|---|---|---|---|---|---|",
    )
    for row in found["rows"]:
        shares = [f"{100 * row[key]:.1f}" for key in ("error", "least_error", "cost")]
        times = [f"{1000 * row[key]:.1f}" for key in ("search_seconds", "answer_seconds")]
        yield f"| {row['k']} | {' | '.join([*shares, *times])} |"
    few, many = found["scaling"][0], found["scaling"][-1]
    yield ""
    yield (
        "Where the search is given (drawn numbers, 64 queries, 64 entries each), a part takes "
        f"{few['part_seconds'] / few['all_seconds']:.2f} times as long as all of {few['entries']:,} entries, and "
        f"{many['part_seconds'] / many['all_seconds']:.2f} times as long as all of {many['entries']:,}. "
        "So a part is faster for large bases, before the search (R) is paid."
    )


def benchmark_text(found: Mapping[str, Any]) -> Iterator[str]:
    """What benchmarks/knowledge_base.py found."""
    yield from ("", "## The store", "")
    yield (
        f"Of {found['entries']:,} drawn entries of {found['d_ffn']} and {found['d_model']} numbers "
        f"({found['megabytes']:,.0f} MB on the disk) {found['entries_per_second']:,.0f} a second are inserted without "
        f"solving. One insert into the full base takes {1000 * found['insert_seconds']:.1f} ms, opening it and finding "
        f"a fact {1000 * found['open_seconds']:.1f} ms. [speed.md](speed.md) has the store as it is now."
    )
    built = found["rebuild"]
    if built is not None:
        yield ""
        yield (
            f"A list of {built['facts']} facts on {built['model']} takes {built['solve_seconds']:.0f} s to solve; "
            f"compiled again after one was withdrawn, {built['rebuild_seconds']:.2f} s, without its verification."
        )
    yield from ("", "## Indices", "")
    indices = [one for one in found["indices"] if one["index"] in get_args(Kind)]  # the data have one that is gone
    sizes = sorted({one["entries"] for one in indices})
    yield (
        f"Drawn keys of {found['key_width']} numbers, queries with a cosine of 0.9 with one of them: share of queries "
        f"whose key is found, in %, and what it takes with {sizes[-1]:,} keys."
    )
    heads = [*(f"{size:,} keys" for size in sizes), "of the 8 nearest", "made in, s", "a query, ms", "MB"]
    yield from ("", f"| index | {' | '.join(heads)} |", "|---|" + "---|" * len(heads))
    for index in dict.fromkeys(one["index"] for one in indices):
        by_size = {one["entries"]: one for one in indices if one["index"] == index}
        recalls = [f"{100 * by_size[size]['recall']:.1f}" if size in by_size else "" for size in sizes]
        if last := by_size.get(sizes[-1]):
            recalls += [f"{100 * last['recall_of_8']:.1f}", f"{last['build_seconds']:.2f}"]
            recalls += [f"{1000 * last['query_seconds']:.2f}", f"{last['megabytes']:.1f}"]
        yield f"| {index} | {' | '.join(recalls)} |"
    shares = sorted(100 * one["overhead"] for one in found["attached"])
    last = max(found["attached"], key=lambda one: one["entries"])
    yield from ("", "## Attached entries in a generation", "")
    yield (
        f"Greedy generation of 50 tokens took {shares[0]:.1f} to {shares[-1]:.1f} % longer with "
        f"{min(one['entries'] for one in found['attached']):,} to {last['entries']:,} entries at one layer, one of "
        f"which speaks on the prompt. To apply {last['entries']:,} for the first time took {last['apply_seconds']:.2f} "
        "s."
    )


REPORT = Report(NAME, SCRIPT, "what the knowledge base does and costs", options, collect, markdown(NAME, text))

if __name__ == "__main__":
    REPORT.main()
