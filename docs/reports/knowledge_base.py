"""docs/knowledge-base-figures.md: what the knowledge base does and costs, measured.

The ways to put a list to use, by a build's verification; unfolding every model family; answering with a part of the
entries; and the timings of benchmarks/knowledge_base.py. The facts are CounterFact's from record 1,700 on: nothing was
tuned or chosen on them (the view of attached entries was chosen on 1,500 to 1,699).
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, get_args

import torch
from options import FILES, OUTPUTS, ROOT, Data, Options, asking, deadline_of, go_on
from pages import Collected, made, making
from report import Report
from runs import without_generation
from torch import Tensor
from work import once

from corrigenda import Fact, KnowledgeBase, LanguageModel, load, read_facts
from corrigenda.forward.recording import forward_logits
from corrigenda.indices.kinds import Kind
from corrigenda.knowledge.cross_attention import FoldedFFN
from corrigenda.knowledge.retrieval import answer_with, measure_retrieval, nearest_entries
from corrigenda.knowledge.unfolding import unfold
from corrigenda.models.sites import state_entering
from corrigenda.runs.folder import RunFolder
from editing import EditRefusedError
from editing.knowledge.how import How, how_named
from eval import METRICS, EvalSettings, Evaluation
from eval.scoring.held_out import held_out_windows
from eval.verification.unedited import Unedited
from eval.verification.verify import verify

NAME, SCRIPT = "knowledge-base-figures", "knowledge_base.py"
WAYS = {"emmet": "emmet", "memit": "memit", "alphaedit": "memit", "attached": "emmet"}
"""Each with the way whose entries it has: the first with the same keys and targets."""
SETTINGS = EvalSettings(max_new_tokens=10)
HOLDS, FOLLOWS, LEAVES = "free_generation_strict", "paraphrase_free_generation_strict", "preservation"
COLUMNS = {
    HOLDS: "holds",
    FOLLOWS: "paraphrases",
    "neighbourhood_success": "NS",
    LEAVES: "same ten words",
    "neighbourhood_kl": "neighbourhood KL",
    "perplexity_drift": "perplexity drift",
}
SHOWN = tuple(COLUMNS)
KEYS = (*SHOWN, "efficacy_success", "paraphrase_success")  # what the data have
USES = (
    *("editing.knowledge.how", "eval.verification.verify", "corrigenda.knowledge.retrieval"),
    "corrigenda.knowledge.attached",
)
LAYER, QUERIES, TIMES = 6, 512, 5
KS = (8, 32, 128, 384, 768, 1152, 1536)
options = asking(
    *("--model", "--minutes"),
    data=FILES / "counterfact.json",
    offset=(1700, "records before the first fact"),
    facts=(50, "how many facts are built"),
    list=(300, "facts of the list that the benchmark builds again"),
    work=OUTPUTS / "knowledge_base",
)


def collect(arguments: Options) -> Collected:
    deadline = deadline_of(arguments)
    lm = load(arguments.model)
    work = arguments.work / lm.fingerprint[:8]  # what was found of another model is not this one's
    facts = without_generation(read_facts(arguments.data, offset=arguments.offset, limit=arguments.facts))
    kept = ["--facts", str(arguments.data), "--kept", str(work / "list.kb"), "--model", arguments.model]
    finds: dict[str, Callable[[], Any]] = {
        "families": unfolded,
        "retrieval": partial(retrieved, lm),
        "benchmark": partial(benchmarked, ["--list", str(arguments.list), *kept]),
    }
    solved = {way: work / f"solved-{way}" for way in dict.fromkeys(WAYS.values())}
    for way, folder in solved.items():
        go_on(deadline)
        solve(lm, folder, facts, how_named(way))
    folders = {way: work / f"{way}-{arguments.offset}-{arguments.facts}" for way in WAYS}
    for way, folder in folders.items():
        finds[way] = partial(verified, lm, folder, solved[WAYS[way]], facts, how_named(way))
    folders |= {name: work / name for name in finds if name not in WAYS}
    found = {name: once(folder / "figures.json", finds[name], USES, deadline) for name, folder in folders.items()}
    figures = {
        "model": lm.name,
        "facts": {"from": arguments.offset, "n": len(facts), "subjects": len({fact.subject for fact in facts})},
        "ways": {way: found.pop(way) for way in WAYS},
        **found,
    }
    named = {f"solved by {way}": folder for way, folder in solved.items()} | folders
    return Collected(figures, {name: made(folder) for name, folder in named.items()})


def solve(lm: LanguageModel, folder: Path, facts: Sequence[Fact], way: How) -> None:
    """Solves what is not solved yet into a knowledge base; a stopped one goes on."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = way.solver.settings(lm)
    with KnowledgeBase.open(folder / "facts.kb") as kb:
        known = {fact.id for fact in kb.facts}
        kb.insert([fact for fact in facts if fact.id not in known])
        if {fact.id for fact in facts} & {fact.id for fact in kb.unsolved(lm, settings)}:
            with making(folder, USES):
                kb.solve(lm, way.solver, batch=1)


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
    parts = ("before", "after", "low", "high", "n")
    return {
        "metrics": {key: {part: metrics[key][part] for part in parts} for key in KEYS if key in metrics},
        "compile_seconds": compiled,
        "verify_seconds": time.perf_counter() - begin,
    }


def unfolded() -> list[dict[str, Any]]:
    """For every family how far fold and forward of its unfolded FFN are from the module, in a tiny model of it."""
    sys.path.insert(0, str(ROOT / "tests"))
    tiny, found = import_module("tiny"), []
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
    with (
        state_entering(lm.architecture.keys(layer), inputs.append),
        lm.memory(layer).capture() as seen,
        torch.no_grad(),
    ):
        forward_logits(lm, lm.batch([list(text) for text in texts]))
    return inputs[0].flatten(0, -2).float(), seen.output.flatten(0, -2).float()


def retrieved(lm: LanguageModel) -> dict[str, Any]:
    """Error and cost of answering with a part of the entries, on the held-out texts, and what it takes."""
    windows = held_out_windows(lm, EvalSettings())
    hidden = _ffn(lm, LAYER, windows[: QUERIES // len(windows[0])])[0]
    ffn = unfold(lm, [LAYER])[LAYER].fold()
    whole = _seconds(ffn, hidden)
    pairs = zip(measure_retrieval(ffn, hidden, KS), measure_retrieval(ffn, hidden, KS, by="contribution"), strict=True)
    return {
        **{"layer": LAYER, "queries": len(hidden), "entries": len(ffn.values), "d_model": ffn.values.shape[1]},
        "seconds": whole,
        "rows": [
            {
                **{"k": one.k, "error": one.error, "least_error": best.error, "cost": one.part / one.full},
                "without_search": (one.part - one.search) / one.full,
                "search_seconds": _seconds(nearest_entries, ffn, hidden, one.k),
                "answer_seconds": _seconds(answer_with, ffn, hidden, nearest_entries(ffn, hidden, one.k)),
            }
            for one, best in pairs
        ],
        "scaling": scaling(ffn.values.shape[1]),
    }


def scaling(d: int) -> list[dict[str, Any]]:
    """Seconds of all entries against those of 64 of them, for drawn entries of a plain FFN: Table 2's two rows."""
    # What is searched for is given, so that R is left out: that of each kind of index is in the benchmark.
    draw, found = torch.Generator().manual_seed(0), []
    hidden = torch.randn(64, d, generator=draw)
    for n in (1_000, 4_000, 16_000, 64_000):
        keys, values = torch.randn(d, n, generator=draw), torch.randn(n, d, generator=draw)
        # The rows of an entry are kept together: else gathering k of them would read the whole matrix.
        ffn = FoldedFFN((keys.T.contiguous().T, torch.zeros(n)), values, None, torch.relu)
        chosen = torch.randint(n, (len(hidden), 64), generator=draw)
        times = {"all_seconds": _seconds(ffn, hidden), "part_seconds": _seconds(answer_with, ffn, hidden, chosen)}
        found.append({"entries": n, **times})
    return found


def _seconds(work: Callable[..., object], *arguments: object) -> float:
    """The median time, after one run that does not count."""
    times = []
    with torch.no_grad():
        for _ in range(TIMES + 1):
            begin = time.perf_counter()
            work(*arguments)
            times.append(time.perf_counter() - begin)
    return median(times[1:])


def benchmarked(more: Sequence[str]) -> Any:
    """What benchmarks/knowledge_base.py prints."""
    command = [sys.executable, str(ROOT / "benchmarks" / "knowledge_base.py"), *more]
    said = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(said.splitlines()[-1])


def shown(data: Data) -> dict[str, Any]:
    figures = data["figures"]
    measured = {way: found["metrics"] for way, found in figures["ways"].items() if "metrics" in found}
    families, rows = figures["families"], figures["retrieval"]["rows"]
    indices: dict[str, dict[int, Any]] = {}
    for one in figures["benchmark"]["indices"]:
        if one["index"] in get_args(Kind):  # the data have one that is gone
            indices.setdefault(one["index"], {})[one["entries"]] = one
    return {
        **figures,
        **finding(measured),
        "shown": SHOWN,
        "headings": ["way", *(", ".join(filter(None, (COLUMNS[key], METRICS[key].written.symbol))) for key in SHOWN)],
        "measured": measured,
        "worst": max(max(one["forward"], one["fold"]) for one in families),
        "cheaper": min((row["error"] for row in rows if row["cost"] < 1), default=None),
        "sizes": sorted({size for by_size in indices.values() for size in by_size}),
        "indices": indices,
    }


def finding(measured: Data) -> dict[str, Any]:
    """Which way holds most and which leaves most, and whether the paraphrases of so few facts tell them apart."""
    known = {way: metrics for way, metrics in measured.items() if {HOLDS, LEAVES} <= set(metrics)}
    extremes = dict.fromkeys(max(known, key=lambda way: known[way][key]["after"]) for key in (HOLDS, LEAVES) if known)
    follow = [metrics[FOLLOWS] for metrics in known.values() if metrics.get(FOLLOWS, {}).get("low") is not None]
    overlap = len(follow) > 1 and max(one["low"] for one in follow) <= min(one["high"] for one in follow)
    shares = sorted(100 * one["after"] for one in follow)
    return {
        "extremes": [
            {
                **{"way": way, "n": (n := known[way][HOLDS]["n"]), "leaves": known[way][LEAVES]},
                "holds": round(known[way][HOLDS]["after"] * n),
            }
            for way in extremes
        ],
        "alike": {"least": shares[0], "most": shares[-1], "n": follow[0]["n"]} if overlap else None,
    }


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, shown=shown, timed=True)
if __name__ == "__main__":
    REPORT.main()
