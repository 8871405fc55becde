"""Writes docs/leaderboard.md, .html, .csv and .json: every editor on CounterFact and zsRE, on SmolLM2.

    python docs/reports/leaderboard.py [--facts 100] [--minutes 8] [--store outputs/leaderboard]

or `make leaderboard`. Each run is an ordinary run of run.py in the store. What is finished is not done again, and what
was cut short goes on. So the command can be stopped and given again (with --minutes it stops by itself). The files are
written when all runs are done; --write writes them from what there is.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from corrigenda.runs.environment import machine, versions
from corrigenda.runs.store import Store, StoredRun
from editing import EDITORS
from eval.leaderboard import leaderboard, write_leaderboard

ROOT = Path(__file__).resolve().parents[2]

DATA = {"counterfact": "counterfact.json", "zsre": "zsre.json"}

SETTINGS = ("eval.max_new_tokens=20",)
"""Of all runs: the answers are names, so they are short; and the drift of each of thousands of edits is measured."""

# The controls first: they take least time, and all others are compared with them.
CHOICES: dict[str, tuple[str, ...]] = {
    "none": ("none",),
    "in_context": ("in_context",),
    "finetune": ("finetune", "ft_l"),
    "rome": ("rome",),
    "random": ("random",),
    "grace": ("grace",),
    "wise_whitened": ("wise_whitened", "wise_paper"),
    "update_neurons": ("update_neurons",),
}
"""By editor, its configurations that are in the table."""

LIKE = "rome"
"""The random edits are as large as those of this editor. Its edits are kept, so that they are not made twice."""

OTHER_AIMS: dict[str, str] = {
    "suppress": "makes a fact less likely, and puts no other in its place",
    "enhance": "makes a fact more likely, and puts no other in its place",
    "erase_neurons": "erases the old object, and puts no other in its place",
    "saved": "has no edits of its own",
}
"""The editors that are not in the table, and why."""

NO_BOUND = "with the bound of the literature it learns almost nothing in this model (docs/sequential.md)"

ON_REQUEST: dict[tuple[str, str], str] = {
    ("single", "ft_l"): NO_BOUND,
    ("batch", "ft_l"): NO_BOUND,
    ("batch", "in_context"): "all statements before every prompt take hours on a CPU",
    ("batch", "update_neurons"): "the neurons of each fact are located as in single mode, in many seconds each",
}
"""What is run only if it is asked for (--only), and why."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--facts", type=int, default=100, help="facts of each data set")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the data files")
    parser.add_argument("--store", type=Path, default=ROOT / "outputs" / "leaderboard")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of the files that are written")
    parser.add_argument("--modes", default="single,batch")
    parser.add_argument("--only", default="", help="configurations, e.g. rome,finetune; all by default")
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long, to go on another time")
    parser.add_argument("--write", action="store_true", help="run nothing, write what there is")
    parser.add_argument("--remark", default="", help="added to what the page says of itself")
    parser.add_argument("overrides", nargs="*", help="of the configuration, for all runs, e.g. eval.max_new_tokens=20")
    options = parser.parse_args()
    unknown = sorted({EDITORS.base(name) for name in EDITORS} - set(CHOICES) - set(OTHER_AIMS))
    if unknown:
        print(f"not in the table, and no reason is given (CHOICES, OTHER_AIMS): {', '.join(unknown)}")
    deadline = time.monotonic() + 60 * options.minutes if options.minutes else None
    done = options.write or all(run(job, Store(options.store), deadline) for job in jobs(options))
    if not done:
        print("not finished yet; give the same command again to go on")
        sys.exit(3)
    for path in write_leaderboard(leaderboard(Store(options.store).runs()), options.out, about=about(options)):
        print(path)


def jobs(options: argparse.Namespace) -> list[list[str]]:
    """The overrides of every run, in the order in which they are done."""
    only = [name for name in options.only.split(",") if name]
    chosen = [choice for choices in CHOICES.values() for choice in choices if not only or choice in only]
    return [
        [
            *(f"mode={mode}", f"data={data}", f"data.path={_relative(options.data / file)}"),
            *(f"data.limit={options.facts}", "data.on_error=skip", f"editor={editor}"),
            *(f"store={_relative(options.store)}", f"before={_relative(options.store / 'before')}"),
            f"save_edits={str(editor == LIKE).lower()}",
            *SETTINGS,
            *options.overrides,
        ]
        for mode in options.modes.split(",")
        for editor in chosen
        if only or (mode, editor) not in ON_REQUEST
        for data, file in DATA.items()
    ]


def _relative(path: Path) -> str:
    """As seen from the root, where the runs are started: the page shows it."""
    return os.path.relpath(path.resolve(), ROOT)


def run(overrides: list[str], store: Store, deadline: float | None) -> bool:
    """One run; False if it was stopped at the deadline. A run that fails is said and passed over."""
    overrides = overrides + size_of(overrides, store)
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        return False
    print("run.py", *overrides, flush=True)
    try:
        finished = subprocess.run(
            [sys.executable, str(ROOT / "run.py"), *overrides], cwd=ROOT, timeout=left, check=False
        )
    except subprocess.TimeoutExpired:
        return False  # killed; what it finished is kept
    if finished.returncode:
        print(f"failed with exit status {finished.returncode}", flush=True)
    return True


def size_of(overrides: Sequence[str], store: Store) -> list[str]:
    """For a random update, where the edits lie whose size it takes; else nothing."""
    asked = dict(override.split("=", 1) for override in overrides)
    if asked["editor"] != "random":
        return []
    for found in finished(store):
        choices = found.config["choices"]
        same = (choices["editor"], choices["data"], found.config["mode"]) == (LIKE, asked["data"], asked["mode"])
        if same and found.done == int(asked["data.limit"]):
            return ["editor@editor.like=saved", f"editor.like.run={_relative(found.path)}"]
    return []


def finished(store: Store) -> list[StoredRun]:
    """The finished runs of the store, the newest first."""
    return [run for run in reversed(store.runs()) if run.state == "finished" and "choices" in run.config]


def about(options: argparse.Namespace) -> str:
    """How the figures were made."""
    found = versions() | {name: str(value) for name, value in machine().items()}
    packages = ", ".join(f"{name} {found[name]}" for name in ("python", "torch", "transformers"))
    where = f"{found['system']} {found['processor']}, {found.get('gpu', 'CPU')}, {found['threads']} threads"
    command = " ".join(["python docs/reports/leaderboard.py --facts", str(options.facts), *options.overrides])
    runs = finished(Store(options.store))
    there = {(run.config["mode"], run.config["choices"]["editor"], run.config["choices"]["data"]) for run in runs}
    asked = [(mode, editor) for mode in options.modes.split(",") for names in CHOICES.values() for editor in names]
    left_out = []
    for mode, editor in asked:
        missing = [data for data in DATA if (mode, editor, data) not in there]
        if missing:
            on = "" if len(missing) == len(DATA) else f" on {', '.join(missing)}"
            why = f": {ON_REQUEST[mode, editor]}" if (mode, editor) in ON_REQUEST else ""
            left_out.append(f"{editor} in {mode} mode{on}{why}.")
    return (
        f"The first {options.facts} facts of each data set, seed 0, with {' '.join(SETTINGS)}. "
        f"Command: {command} ({packages}; {where}). "
        + " ".join([*(["Not run:"] if left_out else []), *left_out, options.remark]).strip()
    )


if __name__ == "__main__":
    main()
