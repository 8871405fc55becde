"""docs/lists.md: what builds of long lists hold, say and leave, and what they take.

Each build is an ordinary `job=build`, in one folder for each way: a longer one solves what the shorter one did not.
Editors that cannot keep a list edit those of the facts that are in force at once.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from options import FILES, OUTPUTS, ROOT, Data, Options, asking, some_of
from pages import Collected, kept, made, making, read_json
from report import Report
from runs import chosen, finished, relative, without_generation

from corrigenda.data import FactSet, read_facts, write_facts
from corrigenda.data.requests import active_facts
from corrigenda.runs.store import Store
from corrigenda.system.files import write_json

NAME, SCRIPT = "lists", "lists.py"
EDITS = ("retrieval", "memoir", "grace_wide")  # editors that cannot keep a list
WAYS: Mapping[str, str] = {  # by name, the setting that chooses it
    **{"scoped": "job.how=scoped", "memit": "editor=memit"},
    **{editor: f"editor={editor}" for editor in EDITS},
}
NEIGHBOURS = 2  # so many prompts about other subjects are asked of each fact
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
options = asking(
    "--anew",
    model="qwen2.5-coder-0.5b",
    dtype="bfloat16",
    ways=some_of(WAYS),
    counts=("300,1000", "comma-separated, ascending"),
    facts=FILES / "counterfact.json",
    work=OUTPUTS / NAME,
)


def collect(arguments: Options) -> Collected:
    found = kept(NAME, arguments) or Collected({"builds": {}}, {})
    listed = arguments.work / "facts.jsonl"
    if not listed.is_file():
        facts = read_facts(arguments.facts)
        chosen_facts = FactSet(NAME, tuple(facts[record] for record in RECORDS))
        write_facts(listed, without_generation(chosen_facts, NEIGHBOURS))
    for way in chosen(arguments.ways, WAYS, "way"):
        for count in map(int, arguments.counts.split(",")):
            name, folder = f"{arguments.model} {way} {count}", arguments.work / arguments.model / f"{way}-{count}"
            if not (folder / "report.json").is_file():
                with making(folder):
                    (edit if way in EDITS else build)(arguments, way, count, listed, folder / "report.json")
            report = read_json(folder / "report.json")
            told = {key: report[key] for key in ("n_facts", "n_in_force", "n_holding", "n_solved", "seconds")}
            metrics = {key: report["metrics"][key] for key in COLUMNS if key in report["metrics"]}
            found.figures["builds"][name] = {"model": arguments.model, "way": way, **told, "metrics": metrics}
            found.runs[name] = made(folder)
    return found


def build(arguments: Options, way: str, count: int, listed: Path, to: Path) -> None:
    """Builds the first facts of the list, and keeps the report."""
    folder = arguments.work / arguments.model / way
    run(arguments, way, listed, "job=build", f"data.limit={count}", f"job.folder={relative(folder)}")
    shutil.copyfile(folder / "report.json", to)


def edit(arguments: Options, way: str, count: int, listed: Path, to: Path) -> None:
    """Edits the first facts of the list at once, and keeps of it what a build's report has."""
    given = FactSet(NAME, active_facts(read_facts(listed)[:count]))
    write_facts(path := to.parent / "facts.jsonl", given)
    store = Store(to.parent / "runs")
    begun = time.monotonic()
    places = (f"store={relative(store.root)}", f"before={relative(arguments.work / 'before')}")
    run(arguments, way, path, "mode=batch", *places)
    seconds, made_run = time.monotonic() - begun, finished(store)[0]
    solved = made_run.summary["seconds_per_edit"] * len(given)
    holding = [case["after"]["values"].get("free_generation_strict") for case in made_run.cases()]
    report: dict[str, Any] = {
        "n_facts": count,
        "n_in_force": len(given),
        "n_holding": holding.count(1.0),
        "n_solved": len(given),
        "seconds": {"solve": solved, "verify": seconds - solved},
        "metrics": made_run.summary["metrics"],
    }
    write_json(to, report)


def run(arguments: Options, way: str, facts: Path, *overrides: str) -> None:
    """One run of run.py over the facts of a file."""
    asked = [f"model={arguments.model}", f"model.dtype={arguments.dtype}", "data=facts", f"data.path={relative(facts)}"]
    command = [sys.executable, str(ROOT / "run.py"), *asked, WAYS[way], *overrides, *SETTINGS]
    subprocess.run(command, cwd=ROOT, check=True)


def shown(data: Data) -> dict[str, Any]:
    builds = sorted(data["figures"]["builds"].values(), key=lambda one: (one["model"], one["n_facts"], one["way"]))
    return {"builds": builds, "columns": COLUMNS, "neighbours": NEIGHBOURS, "edits": EDITS}


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, shown=shown, timed=True)
if __name__ == "__main__":
    REPORT.main()
