"""docs/speed.md: every benchmark, run with what ships; each compares the plain way with ours in one run.

    python docs/reports/speed.py collect [--facts counterfact.json] [--only rome,wise] [--anew]
    python docs/reports/speed.py page

The first step runs the files of benchmarks/ one after another, each in a process of its own, and keeps what a finished
one printed, so that it can be stopped, and goes on. Let nothing else run meanwhile. `pages.py` says more of the two
steps.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pages import ROOT, Collected, Report, made, making, markdown, provenance
from words import paragraph

from corrigenda.files import write_json

NAME = "speed"
SCRIPT = "speed.py"
RESULT = "result.json"


@dataclass(frozen=True)
class Run:
    """A run of a benchmark: its file in benchmarks/, its options, and whether it asks for facts."""

    file: str
    options: tuple[str, ...] = ()
    facts: bool = False


RUNS: dict[str, Run] = {
    "rome": Run("rome.py", facts=True),
    "many_facts": Run("many_facts.py", ("--count", "100"), facts=True),
    "causal_trace": Run("causal_trace.py"),
    "knowledge_neurons": Run("knowledge_neurons.py"),
    "wise": Run("wise.py", facts=True),
    "ffn_lens": Run("ffn_lens.py"),
    "knowledge_base": Run("knowledge_base.py", ("--indices", "--attached")),
    "sizes": Run("sizes.py", ("--sizes", "0.1,0.5,1.5")),
    "sizes of 8 billion": Run("sizes.py", ("--sizes", "8", "--editors", "rome")),
}
"""All of them; a file of benchmarks/ that none of these names makes a test fail."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--facts", default="embedded", help="the facts that are edited, as `data.path` takes them")
    parser.add_argument("--only", default=",".join(RUNS), help="some of the benchmarks, divided by commas")
    parser.add_argument("--store", type=Path, default=ROOT / "outputs" / NAME)
    parser.add_argument("--anew", action="store_true", help="keep no result of an earlier, unfinished command")


def collect(arguments: argparse.Namespace) -> Collected | None:
    """The results of all benchmarks; None while some are still to be run."""
    asked = [name.strip() for name in arguments.only.split(",")]
    if unknown := [name for name in asked if name not in RUNS]:
        raise SystemExit(f"--only {', '.join(unknown)}: there is no such benchmark; there are {', '.join(RUNS)}")
    for name in asked:
        folder = arguments.store / name.replace(" ", "_")
        if arguments.anew:
            shutil.rmtree(folder, ignore_errors=True)
        if not (folder / RESULT).is_file():
            print(f"== {name}", file=sys.stderr)
            with making(folder):
                result = run(RUNS[name], arguments.facts)
            write_json(folder / RESULT, result)
    folders = {name: arguments.store / name.replace(" ", "_") for name in RUNS}
    if not all((folder / RESULT).is_file() for folder in folders.values()):
        return None
    found = {name: json.loads((folder / RESULT).read_text(encoding="utf-8")) for name, folder in folders.items()}
    return Collected(found, {name: made(folder) for name, folder in folders.items()})


def run(benchmark: Run, facts: str) -> dict[str, Any]:
    """What a benchmark prints as its last line."""
    command = [sys.executable, str(ROOT / "benchmarks" / benchmark.file), *benchmark.options]
    command += ["--facts", facts] * benchmark.facts
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "data" in result:
        result["data"] = Path(result["data"]).name
    return result


# -- the second step


@dataclass(frozen=True)
class Row:
    """A figure of the page.

    Attributes:
        what: is measured.
        run: a name of `RUNS`.
        ratio: the key of the figure; of several, one inside another.
        plain, ours: the keys of the two times, in seconds.
        aim: what the figure was to reach.
        most: whether the aim is the most that it may be, not the least.
    """

    what: str
    run: str
    ratio: str
    plain: str = ""
    ours: str = ""
    aim: float | None = None
    most: bool = False

    def of(self, figures: Mapping[str, Any], key: str = "") -> float:
        """The figure, or that of another key."""
        found: Any = figures[self.run]
        for part in (key or self.ratio).split("."):
            found = found[part]
        return float(found)

    def missed(self, figures: Mapping[str, Any]) -> bool:
        """Whether the aim was not reached."""
        return self.aim is not None and (self.of(figures) > self.aim if self.most else self.of(figures) < self.aim)


ROME = "ROME: k\\* and v\\* of one fact (median)"
RATIOS = (
    Row(ROME, "rome", "ratio", "plain_seconds_per_fact", "ours_seconds_per_fact"),
    Row(
        "ROME: a fact of a batch of 8",
        "rome",
        "ratio_batch",
        "plain_seconds_per_fact",
        "ours_seconds_per_fact_batch",
        8,
    ),
    Row(
        "MEMIT: a fact, all steps in both ways",
        "many_facts",
        "ratio",
        "plain_seconds_per_fact",
        "ours_seconds_per_fact",
        8,
    ),
    Row(
        "MEMIT: a fact, ours as it ships (a solve stops early)",
        "many_facts",
        "ratio_with_early_stop",
        "plain_seconds_per_fact",
        "seconds_per_fact",
    ),
    Row(
        "WISE (`wise_whitened`): a fact (median)", "wise", "ratio", "plain_seconds_per_fact", "ours_seconds_per_fact", 2
    ),
    Row("causal tracing: all cells of a prompt, exact (median)", "causal_trace", "ratio", aim=5),
    Row("causal tracing to first order, against the exact plain one", "causal_trace", "attribution_ratio"),
    Row("knowledge neurons of a prompt", "knowledge_neurons", "ratio", "plain_seconds", "ours_seconds", 10),
    Row(
        "knockout around all layers", "ffn_lens", "knockout.ratio", "knockout.plain_seconds", "knockout.ours_seconds", 4
    ),
    Row(
        "trigger examples of all keys, against a forward over the same text",
        "ffn_lens",
        "ratio",
        "plain_seconds",
        "ours_seconds",
        0.6,
    ),
    Row("knowledge base: 300 entries into one system", "knowledge_base", "fold_300_ratio"),
)
FIGURES = (
    Row("MEMIT as it ships: seconds a fact", "many_facts", "seconds_per_fact", aim=2, most=True),
    Row(
        "one more fact: extending an edit of all / an edit of it alone",
        "many_facts",
        "one_more_ratio",
        aim=2,
        most=True,
    ),
    Row("memory over the model and the second moments, MB", "many_facts", "memory_over_model_mb", aim=1024, most=True),
    Row("UltraEdit: facts a second", "many_facts", "ultraedit_facts_per_second", aim=5),
    Row("generation with a side memory applied / without", "wise", "generation_ratio", aim=1.05, most=True),
    Row(
        "a logit over all heads, FFNs and neurons, in forwards", "ffn_lens", "attribution.in_forwards", aim=3, most=True
    ),
    Row("all values in words, seconds", "ffn_lens", "values.seconds", aim=60, most=True),
    Row("knowledge base: entries a second inserted without solving", "knowledge_base", "entries_per_second"),
    Row("knowledge base: opening the full one and finding a fact, seconds", "knowledge_base", "open_seconds"),
)


def text(data: Mapping[str, Any]) -> Iterator[str]:
    """The page's lines."""
    figures = data["figures"]
    rome, many, traces = figures["rome"], figures["many_facts"], figures["causal_trace"]["prompts"]
    yield from ("# Speed", "")
    yield from paragraph(
        f"With what ships, ROME's solve is {rome['ratio']:.1f} times as fast as the plain way,",
        f"MEMIT's {many['ratio']:.1f} times (with all steps in both ways), exact causal tracing",
        f"{figures['causal_trace']['ratio']:.1f} times, and the search for knowledge neurons",
        f"{figures['knowledge_neurons']['ratio']:.1f} times, on {rome['threads']} CPU cores.",
        "The plain way is the textbook one: whole forwards, one fact after another, with all logits. Both ways have",
        "the same prompts, steps and precision, but where a row says otherwise, and run in one process; their results",
        "are compared before their times.",
    )
    yield ""
    yield from paragraph(
        "Why ours is faster: an edit changes one layer at one position. Below that layer, and left of that position,",
        "nothing changes. The *partial forward* (`corrigenda/forward/partial.py`) runs again only what can change,",
        "through the model's own code. What prompts share runs once, logits are computed only where they are read, and",
        "the solves of several facts run side by side.",
    )
    yield from ("", "## Plain and ours", "", "| | plain, s | ours, s | plain / ours | aim |", "|---|---|---|---|---|")
    for row in RATIOS:
        times = [f"{row.of(figures, key):.2f}" if key else "" for key in (row.plain, row.ours)]
        yield f"| {row.what} | {times[0]} | {times[1]} | **{row.of(figures):.1f}** | {aim(row)} |"
    yield from ("", "| | measured | aim |", "|---|---|---|")
    for row in FIGURES:
        yield f"| {row.what} | **{short(row.of(figures))}** | {aim(row)} |"
    yield ""
    missed = [row.what for row in (*RATIOS, *FIGURES) if row.missed(figures)]
    alike = [row["attribution_rank_correlation"] for row in traces]
    base = figures["knowledge_base"]
    yield from paragraph(
        f"Aims missed: {'; '.join(missed)}." if missed else "Every aim is met.",
        f"Model: {rome['model']}. Facts: the first {rome['facts']} (ROME), {many['facts']} (MEMIT; the plain way",
        f"{many['plain_facts']} of them) and {figures['wise']['facts']} (WISE) of {rome['data']}; {rome['contexts']}",
        f"contexts, the bare prompt among them, {rome['steps']} steps (ROME) and {many['steps']} (MEMIT).",
        f"Counted in operations ROME would save a factor of {rome['operations_ratio']:.1f}, in a batch",
        f"{rome['operations_ratio_batch']:.1f}. The largest relative difference between the two ways' targets is",
        f"{rome['largest_difference']:.0e}, between their updates {many['largest_difference']:.0e}. Of",
        f"{len(traces)} traced prompts the smallest ratio is {min(row['ratio'] for row in traces):.1f}; the rank",
        f"correlation of the first-order grid with the exact one is {min(alike):.2f} to {max(alike):.2f}. Keys:",
        f"{figures['ffn_lens']['neurons']:,}, over {figures['ffn_lens']['tokens']:,} tokens. Knowledge base:",
        f"{base['entries']:,} drawn entries ([more](knowledge-base-figures.md)).",
    )
    yield from sizes(figures)
    yield from provenance(NAME, data, SCRIPT, timed=True)
    yield "`make bench` measures all of it anew."


def short(value: float) -> str:
    """A number of three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def aim(row: Row) -> str:
    """The aim's cell."""
    return "" if row.aim is None else f"{'at most ' if row.most else ''}{row.aim:,g}"


def sizes(figures: Mapping[str, Any]) -> Iterator[str]:
    """The sizes of models, with random weights."""
    first = figures["sizes"]
    rows = {**first["sizes"], **figures["sizes of 8 billion"]["sizes"]}
    yield from ("", "## Sizes", "")
    yield from paragraph(
        "Random weights in bfloat16. An edit is told as second moments + solve + the rest, in seconds. The moments",
        f"are over {first['tokens']} tokens and a solve takes {first['steps']} steps here, where a real edit takes up",
        "to 20 steps (ROME) or 40 (MEMIT) and 8,192 tokens (ROME) or 8 for each coefficient (MEMIT), once a layer.",
        f"ROME writes one fact, MEMIT {first['facts']}. Memory is the most that was held, mapped weights included.",
    )
    yield ""
    yield (
        "| billions of parameters | weights, GB | load, s | trace, s | ROME, s | score, s | ROME: memory, GB | "
        "MEMIT, s | MEMIT: memory, GB |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for size, found in rows.items():
        if "failed" in found:
            yield f"| {size} | failed: {found['failed']} |" + " |" * 7
            continue
        parts = found["parts"]
        cells = [f"{size} ({found['shape_of']})", f"{found['weights_mb'] / 1024:.1f}"]
        cells += [f"{parts[part]['seconds']:.1f}" for part in ("load", "trace")]
        cells += [edited(parts, "rome"), f"{parts['rome: score']['seconds']:.1f}", held(parts, "rome")]
        cells += [edited(parts, "memit"), held(parts, "memit")]
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield "What a GPU does with these sizes is not measured."


def edited(parts: Mapping[str, Mapping[str, float]], editor: str) -> str:
    """The seconds of an edit, by its steps."""
    steps = [parts.get(f"{editor}: {step}") for step in ("statistics", "solve", "update")]
    return " + ".join(f"{step['seconds']:.1f}" for step in steps if step) or "not run"


def held(parts: Mapping[str, Mapping[str, float]], editor: str) -> str:
    """The most memory of an edit, in GB."""
    most = [part["memory_mb"] for name, part in parts.items() if name.startswith(editor) and "memory_mb" in part]
    return f"{max(most) / 1024:.1f}" if most else ""


REPORT = Report(NAME, SCRIPT, (__doc__ or "").splitlines()[0], options, collect, markdown(NAME, text))

if __name__ == "__main__":
    REPORT.main()
