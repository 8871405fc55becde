"""docs/lists.md: what builds of long lists hold, say and leave, and what they take.

    python docs/reports/lists.py collect [--ways scoped,memit] [--counts 300,1000]
    python docs/reports/lists.py page

Each build is an ordinary `job=build` of run.py, of the first so many facts of one list, in one folder for each way: a
longer one solves what the shorter one did not. What is built is not built again. `pages.py` says more of the steps.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pages import ROOT, Collected, Report, keeping_option, kept, made, making
from runs import relative
from words import written

from corrigenda.data import read_facts, write_facts

NAME, SCRIPT = "lists", "lists.py"
WAYS: Mapping[str, str] = {"scoped": "job.how=scoped", "memit": "editor=memit"}
"""By name, the setting that chooses it."""
NEIGHBOURS = 2
"""So many prompts about other subjects are asked of each fact."""
SETTINGS = (
    "eval=side_effects",
    "eval.only=[prompt,paraphrases,neighbourhood]",
    "eval.max_new_tokens=10",
    "eval.perplexity_windows=16",
)
COLUMNS = {
    "free_generation_strict": "holds",
    "paraphrase_free_generation_strict": "on paraphrases",
    "answer_kept": "kept",
    "bleed": "bleed",
    "preservation": "same ten words",
    "perplexity_drift": "drift",
}
RECORDS = (*range(100, 1000), *range(1600, 1700))
"""Of CounterFact's file: those between trained the gate, or settings were chosen on them."""


def options(parser: argparse.ArgumentParser) -> None:
    """The first step's options."""
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--ways", default=",".join(WAYS), help="comma-separated")
    parser.add_argument("--counts", default="300,1000", help="comma-separated, ascending")
    parser.add_argument("--facts", type=Path, default=ROOT.parent / "shared" / "data" / "counterfact.json")
    parser.add_argument("--work", type=Path, default=ROOT / "outputs" / NAME)
    keeping_option(parser)


def collect(arguments: argparse.Namespace) -> Collected:
    """All builds."""
    earlier = kept(NAME, arguments) or Collected({"builds": {}}, {})
    builds, runs = dict(earlier.figures["builds"]), dict(earlier.runs)
    listed = arguments.work / "facts.jsonl"
    if not listed.is_file():
        facts = list(read_facts(arguments.facts))
        write_facts(
            listed,
            [
                replace(fact, neighbourhood=fact.neighbourhood[:NEIGHBOURS], generation=())
                for fact in map(facts.__getitem__, RECORDS)
            ],
        )
    for way in arguments.ways.split(","):
        for count in map(int, arguments.counts.split(",")):
            name, folder = f"{arguments.model} {way} {count}", arguments.work / arguments.model / f"{way}-{count}"
            if not (folder / "report.json").is_file():
                with making(folder):
                    build(arguments, way, count, listed, folder / "report.json")
            report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
            told = {key: report[key] for key in ("n_facts", "n_in_force", "n_holding", "n_solved", "seconds")}
            metrics = {key: report["metrics"][key] for key in COLUMNS if key in report["metrics"]}
            builds[name] = {"model": arguments.model, "way": way, **told, "metrics": metrics}
            runs[name] = made(folder)
    return Collected({"builds": builds}, runs, earlier.earlier)


def build(arguments: argparse.Namespace, way: str, count: int, listed: Path, to: Path) -> None:
    """Builds the first facts of the list, and keeps the report."""
    folder = arguments.work / arguments.model / way
    overrides = [
        *("job=build", f"model={arguments.model}", f"model.dtype={arguments.dtype}", "data=facts"),
        *(f"data.path={relative(listed)}", f"data.limit={count}", WAYS[way]),
        *(f"job.folder={relative(folder)}", *SETTINGS),
    ]
    subprocess.run([sys.executable, str(ROOT / "run.py"), *overrides], cwd=ROOT, check=True)
    shutil.copyfile(folder / "report.json", to)


def shown(data: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows."""
    builds = sorted(data["figures"]["builds"].values(), key=lambda one: (one["model"], one["n_facts"], one["way"]))
    return {"builds": builds, "columns": COLUMNS, "neighbours": NEIGHBOURS}


PAGE = written(NAME, SCRIPT, shown, timed=True)
REPORT = Report(NAME, SCRIPT, (__doc__ or "").splitlines()[0], options, collect, PAGE)

if __name__ == "__main__":
    REPORT.main()
