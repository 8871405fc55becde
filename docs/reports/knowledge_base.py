"""docs/knowledge-base-figures.md: what the knowledge base does and costs, measured.

The ways to put a list to use, by a build's verification; unfolding every model family; answering with a part of the
entries; and the timings of benchmarks/knowledge_base.py.

    python docs/reports/knowledge_base.py collect [--facts 50] [--minutes 60]
    python docs/reports/knowledge_base.py page

What is finished is kept in the work folder, and the first command goes on where it was stopped. It writes the data
when all is done; `pages.py` says more of the two steps. The facts are CounterFact's from record 1,700 on: nothing was
tuned or chosen on them (the view of attached entries was chosen on 1,500 to 1,699).
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, get_args

import torch
from pages import ROOT, Collected, Report, made, making
from torch import Tensor
from words import written

from corrigenda import Fact, KnowledgeBase, LanguageModel, load
from corrigenda.data import read_facts
from corrigenda.forward.recording import forward_logits
from corrigenda.indices.kinds import Kind
from corrigenda.knowledge.cross_attention import FoldedFFN
from corrigenda.knowledge.retrieval import answer_with, measure_retrieval, nearest_entries
from corrigenda.knowledge.unfolding import unfold
from corrigenda.runs.folder import RunFolder
from corrigenda.system.files import write_json
from editing import EditRefusedError
from editing.knowledge.how import How, how_named
from eval import METRICS, EvalSettings, Evaluation
from eval.scoring.held_out import held_out_windows
from eval.verification.unedited import Unedited
from eval.verification.verify import verify

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
    "preservation": "same ten words",
    "neighbourhood_kl": "neighbourhood KL",
    "perplexity_drift": "perplexity drift",
}
HOLDS, FOLLOWS, LEAVES = "free_generation_strict", "paraphrase_free_generation_strict", "preservation"
SHOWN = (HOLDS, FOLLOWS, "neighbourhood_success", LEAVES, "neighbourhood_kl", "perplexity_drift")
"""The columns of the page; the data have all."""
USES = (
    "editing.knowledge.how",
    "eval.verification.verify",
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
            partial(_once, folder, partial(verified, lm, folder, solved[_solved_by(way)], facts, how_named(way)))
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


def verified(lm: LanguageModel, folder: Path, solved: Path, facts: Sequence[Fact], way: How) -> dict[str, Any]:
    """The figures of a way, by the verification of a build; a way that refuses the list has its reason alone."""
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
    found = verify(lm, edit, active, SETTINGS, RunFolder(folder), unedited)
    metrics = Evaluation(tuple(one.case for one in found)).metrics
    return {
        "metrics": {
            key: {part: metrics[key][part] for part in ("before", "after", "low", "high", "n")}
            for key in COLUMNS
            if key in metrics
        },
        "compile_seconds": compiled,
        "verify_seconds": time.perf_counter() - begin,
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


def shown(data: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows."""
    figures = data["figures"]
    measured = {way: found["metrics"] for way, found in figures["ways"].items() if "metrics" in found}
    families, part, store = figures["families"], figures["retrieval"], figures["benchmark"]
    indices: dict[str, dict[int, Any]] = {}
    for one in store["indices"]:
        if one["index"] in get_args(Kind):  # the data have one that is gone
            indices.setdefault(one["index"], {})[one["entries"]] = one
    return {
        **finding(measured),
        "facts": figures["facts"],
        "model": figures["model"],
        "headings": ["way", *map(_heading, SHOWN)],
        "before": [_before(key, next(iter(measured.values())).get(key)) for key in SHOWN] if measured else None,
        "ways": {way: [_cell(key, metrics.get(key)) for key in SHOWN] for way, metrics in measured.items()},
        "refused": {way: found["refused"] for way, found in figures["ways"].items() if "refused" in found},
        "families": families,
        "worst": max(max(one["forward"], one["fold"]) for one in families),
        "part": part,
        "cheaper": min((row["error"] for row in part["rows"] if row["cost"] < 1), default=None),
        "store": store,
        "sizes": sorted({size for by_size in indices.values() for size in by_size}),
        "indices": indices,
        "attached": store["attached"],
    }


def finding(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Which way holds most and which leaves most, and whether the paraphrases of so few facts tell them apart."""
    known = {way: metrics for way, metrics in measured.items() if {HOLDS, LEAVES} <= set(metrics)}
    extremes = dict.fromkeys(max(known, key=lambda way: known[way][key]["after"]) for key in (HOLDS, LEAVES) if known)
    follow = [metrics[FOLLOWS] for metrics in known.values() if metrics.get(FOLLOWS, {}).get("low") is not None]
    overlap = len(follow) > 1 and max(one["low"] for one in follow) <= min(one["high"] for one in follow)
    shares = sorted(100 * one["after"] for one in follow)
    return {
        "extremes": [
            {
                "way": way,
                "holds": round(known[way][HOLDS]["after"] * known[way][HOLDS]["n"]),
                "n": known[way][HOLDS]["n"],
                "leaves": _cell(LEAVES, known[way][LEAVES]),
            }
            for way in extremes
        ],
        "alike": {"least": shares[0], "most": shares[-1], "n": follow[0]["n"]} if overlap else None,
    }


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


PAGE = written(NAME, SCRIPT, shown, timed=True)
REPORT = Report(NAME, SCRIPT, "what the knowledge base does and costs", options, collect, PAGE)

if __name__ == "__main__":
    REPORT.main()
