"""docs/speed.md: every benchmark, run with what ships; each compares the plain way with ours in one run.

The files of benchmarks/ are run one after another, each in a process of its own; let nothing else run meanwhile. What
`--only` leaves out stays as the data file has it.
"""

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from options import OUTPUTS, ROOT, Data, Options, asking, some_of
from pages import Collected, kept, made
from report import Report
from runs import chosen
from work import once

NAME, SCRIPT = "speed", "speed.py"


class Run(NamedTuple):
    """A run of a benchmark."""

    file: str  # in benchmarks/
    options: tuple[str, ...] = ()
    facts: bool = False  # whether it asks for facts


RUNS: dict[str, Run] = {  # all of them; a file of benchmarks/ that none of these names makes a test fail
    "rome": Run("rome.py", facts=True),
    "many_facts": Run("many_facts.py", ("--count", "100"), facts=True),
    "causal_trace": Run("causal_trace.py"),
    "knowledge_neurons": Run("knowledge_neurons.py"),
    "wise": Run("wise.py", facts=True),
    "ffn_lens": Run("ffn_lens.py"),
    "evaluate": Run("evaluate.py", ("--model", "qwen2.5-coder-0.5b", "--count", "4"), facts=True),
    "dictionary": Run("dictionary.py"),
    "knowledge_base": Run("knowledge_base.py", ("--indices", "--attached")),
    "sizes": Run("sizes.py", ("--sizes", "0.1,0.5,1.5")),
    "sizes of 8 billion": Run("sizes.py", ("--sizes", "8", "--editors", "rome")),
}
options = asking(
    "--anew",
    facts=("embedded", "the facts that are edited, as `data.path` takes them"),
    only=some_of(RUNS),
    store=OUTPUTS / NAME,
)


def collect(arguments: Options) -> Collected | None:
    """The results of all benchmarks, or beside kept data those that there are; None while some are still to be run."""
    asked = chosen(arguments.only, RUNS, "benchmark")
    paths = {name: arguments.store / name.replace(" ", "_") / "result.json" for name in RUNS}
    for name in asked if arguments.anew else ():
        shutil.rmtree(paths[name].parent, ignore_errors=True)
    earlier = kept(NAME, arguments) or Collected({}, {})
    figures, runs = dict(earlier.figures), dict(earlier.runs)
    for name, path in paths.items():
        if name in asked or path.is_file():
            figures[name] = once(path, partial(run, RUNS[name], arguments.facts))
            runs[name] = made(path.parent)
    if not figures.keys() >= (earlier.figures or RUNS).keys():
        return None
    names = [name for name in RUNS if name in figures]
    return Collected({name: figures[name] for name in names}, {name: runs[name] for name in names}, earlier.earlier)


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


def shown(data: Data) -> dict[str, Any]:
    return {"runs": data["figures"]}


REPORT = Report(NAME, SCRIPT, __doc__, options, collect, shown=shown, timed=True)
if __name__ == "__main__":
    REPORT.main()
