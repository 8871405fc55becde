"""docs/speed.md: every benchmark, run with what ships; each compares the plain way with ours in one run.

    python docs/reports/speed.py collect [--facts counterfact.json] [--only rome,wise] [--anew]
    python docs/reports/speed.py page

The first step runs the files of benchmarks/ one after another, each in a process of its own, and keeps what a finished
one printed, so that it can be stopped, and goes on. What `--only` leaves out stays as the data file has it. Let nothing
else run meanwhile. `pages.py` says more of the two steps.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pages import ROOT, Collected, Report, keeping_option, kept, made, making
from words import written

from corrigenda.system.files import write_json

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
    "evaluate": Run("evaluate.py", ("--model", "qwen2.5-coder-0.5b"), facts=True),
    "dictionary": Run("dictionary.py"),
    "knowledge_base": Run("knowledge_base.py", ("--indices", "--attached")),
    "sizes": Run("sizes.py", ("--sizes", "0.1,0.5,1.5")),
    "sizes of 8 billion": Run("sizes.py", ("--sizes", "8", "--editors", "rome")),
}
"""All of them; a file of benchmarks/ that none of these names makes a test fail."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--facts", default="embedded", help="the facts that are edited, as `data.path` takes them")
    parser.add_argument("--only", default=",".join(RUNS), help="some of the benchmarks, divided by commas")
    parser.add_argument("--store", type=Path, default=ROOT / "outputs" / NAME)
    keeping_option(parser)


def collect(arguments: argparse.Namespace) -> Collected | None:
    """The results of all benchmarks, or beside kept data those that there are; None while some are still to be run."""
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
    done = {name: folder for name, folder in folders.items() if (folder / RESULT).is_file()}
    earlier = kept(NAME, arguments) or Collected({}, {})
    found = {name: json.loads((folder / RESULT).read_text(encoding="utf-8")) for name, folder in done.items()}
    runs = {name: made(folder) for name, folder in done.items()}
    figures, notes = {**earlier.figures, **found}, {**earlier.runs, **runs}
    if not figures.keys() >= (earlier.figures or RUNS).keys():
        return None
    names = [name for name in RUNS if name in figures]
    return Collected({name: figures[name] for name in names}, {name: notes[name] for name in names}, earlier.earlier)


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
        key: of the figure; of several, one inside another.
        plain, ours: the keys of the two times, in seconds.
        aim: what the figure was to reach.
        most: whether the aim is the most that it may be, not the least.
        figures: of all runs.
    """

    what: str
    run: str
    key: str
    plain: str = ""
    ours: str = ""
    aim: float | None = None
    most: bool = False
    figures: Mapping[str, Any] = field(default_factory=dict)

    def of(self, key: str) -> float:
        """The figure of a key."""
        found: Any = self.figures[self.run]
        for part in key.split("."):
            found = found[part]
        return float(found)

    @property
    def value(self) -> float:
        """The figure."""
        return self.of(self.key)

    def seconds(self, way: str) -> str:
        """The time of the plain way, or of ours; empty where there is none."""
        key = getattr(self, way)
        return f"{self.of(key):.2f}" if key else ""

    @property
    def missed(self) -> bool:
        """Whether the aim was not reached."""
        return self.aim is not None and (self.value > self.aim if self.most else self.value < self.aim)

    @property
    def aim_text(self) -> str:
        """The aim's cell."""
        return "" if self.aim is None else f"{'at most ' if self.most else ''}{self.aim:,g}"


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
    *(
        Row(
            f"scoring a fact by itself, {dtype} (0.5 billion parameters; median)",
            "evaluate",
            f"{dtype}.ratio",
            f"{dtype}.plain_seconds_per_fact",
            f"{dtype}.ours_seconds_per_fact",
        )
        for dtype in ("float32", "bfloat16")
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
    Row("scoring a fact, in times of the plain way", "evaluate", "float32.in_plain_forwards", aim=1.3, most=True),
    Row(
        "scoring a fact in bfloat16, in times of the plain way in float32",
        "evaluate",
        "bfloat16.in_float32_forwards",
        aim=0.65,
        most=True,
    ),
    *(
        Row(
            f"a dictionary's forward ({kind}), in forwards of its FFN",
            "dictionary",
            f"{kind}.in_ffns",
            aim=1.3,
            most=True,
        )
        for kind in ("autoencoder", "transcoder")
    ),
    Row("knowledge base: entries a second inserted without solving", "knowledge_base", "entries_per_second"),
    Row("knowledge base: opening the full one and finding a fact, seconds", "knowledge_base", "open_seconds"),
)


def shown(data: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows."""
    figures = data["figures"]
    ratios, measured = (
        [replace(row, figures=figures) for row in rows if row.run in figures] for rows in (RATIOS, FIGURES)
    )
    names = {"rome": "rome", "many": "many_facts", "trace": "causal_trace", "neurons": "knowledge_neurons"}
    names |= {"wise": "wise", "lens": "ffn_lens", "base": "knowledge_base", "sizes": "sizes"}
    return {
        **{name: figures[run] for name, run in names.items()},
        "scoring": figures.get("evaluate"),
        "ratios": ratios,
        "measured": measured,
        "missed": [row.what for row in (*ratios, *measured) if row.missed],
        "models": {**figures["sizes"]["sizes"], **figures["sizes of 8 billion"]["sizes"]},
        "edited": edited,
        "held": held,
    }


def edited(parts: Mapping[str, Mapping[str, float]], editor: str) -> str:
    """The seconds of an edit, by its steps."""
    steps = [parts.get(f"{editor}: {step}") for step in ("statistics", "solve", "update")]
    return " + ".join(f"{step['seconds']:.1f}" for step in steps if step) or "not run"


def held(parts: Mapping[str, Mapping[str, float]], editor: str) -> str:
    """The most memory of an edit, in GB."""
    most = [part["memory_mb"] for name, part in parts.items() if name.startswith(editor) and "memory_mb" in part]
    return f"{max(most) / 1024:.1f}" if most else ""


REPORT = Report(
    NAME, SCRIPT, (__doc__ or "").splitlines()[0], options, collect, written(NAME, SCRIPT, shown, timed=True)
)

if __name__ == "__main__":
    REPORT.main()
