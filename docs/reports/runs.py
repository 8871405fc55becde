"""What reports of runs share: run.py, started in a store, which goes on where it was stopped; files of facts."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from options import ROOT, Data
from pages import UNKNOWN, Made, add_note, made, noting, numbers_in, read_json

from corrigenda import Fact
from corrigenda.data import FactSet, write_facts
from corrigenda.runs.store import Store, StoredRun

LIKE = "rome"
"""The random edits are as large as those of this editor. Its edits are kept, so that they are not made twice."""
ASKED = ("mode", "editor", "data", "model")  # what tells the runs of a report apart


def relative(path: Path) -> str:
    """As seen from the root, where the runs are started: the page shows it."""
    return os.path.relpath(path.resolve(), ROOT)


def run(overrides: list[str], store: Store, deadline: float | None) -> bool:
    """One run; False if it was stopped at the deadline. A run that fails is said and passed over."""
    overrides = overrides + size_of(overrides, store)
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        return False
    print("run.py", *overrides, flush=True)
    before = {stored.path: (stored.state, stored.done) for stored in store.runs()}
    status: int | None = None  # stopped; what it finished is kept
    with noting() as note:
        command = [sys.executable, str(ROOT / "run.py"), *overrides]
        with suppress(subprocess.TimeoutExpired):
            status = subprocess.run(command, cwd=ROOT, timeout=left, check=False).returncode
    for stored in store.runs():
        if before.get(stored.path) != (stored.state, stored.done) and is_of(stored, overrides):
            add_note(stored.path, note)
    if status:
        print(f"failed with exit status {status}", flush=True)
    return status is not None


def size_of(overrides: Sequence[str], store: Store) -> list[str]:
    """For a random update, where the edits lie whose size it takes; else nothing."""
    asked = values(overrides)
    if asked["editor"] != "random" or "editor@editor.like" in asked:
        return []
    like = (one for one in finished(store) if is_of(one, [*overrides, f"editor={LIKE}"]))
    found = next((one for one in like if one.done == int(asked["data.limit"])), None)
    return ["editor@editor.like=saved", f"editor.like.run={relative(found.path)}"] if found else []


def values(overrides: Sequence[str]) -> dict[str, str]:
    """Overrides by name; the last of a name counts."""
    return dict(override.split("=", 1) for override in overrides)


def is_of(stored: StoredRun, overrides: Sequence[str]) -> bool:
    """Whether a stored run was begun by run.py, with what is asked for (`ASKED`)."""
    asked, choices = values(overrides), stored.config.get("choices") or {}
    there = {**choices, "mode": stored.config.get("mode")}
    return bool(choices) and all(there[key] == asked[key] for key in ASKED)


def finished(store: Store) -> list[StoredRun]:
    """The finished runs of the store, the newest first."""
    return [run for run in reversed(store.runs()) if run.state == "finished" and "choices" in run.config]


def how_made(stored: StoredRun) -> Made:
    """How a stored run was made: as this command noted it, else as far as the run itself tells."""
    path = stored.path / "versions.json"
    if (notes := made(stored.path)) or not path.is_file():
        return notes
    told = read_json(path)
    unknown = {"code": UNKNOWN, "commit": UNKNOWN, "ended": None, "load": [None, None]}
    return [
        unknown | {key: one[key] for key in ("begun", "versions", "machine")} for one in (told, *told.get("later", ()))
    ]


def chosen(given: str, known: Data, what: str) -> list[str]:
    """The names that were asked for, divided by commas; by default all. An unknown one ends the command."""
    names = [name for name in given.split(",") if name] or list(known)
    if unknown := set(names) - set(known):
        raise SystemExit(f"no such {what}: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


def picked(facts: FactSet, ranges: str) -> FactSet:
    """The facts of some ranges, as "3-5,8-9": the third to the fifth, the eighth and the ninth (`numbers_in`)."""
    return FactSet(facts.name, tuple(facts[number - 1] for number in numbers_in(ranges, len(facts))))


def without_generation(facts: FactSet, neighbours: int | None = None) -> FactSet:
    """Without the prompts for fluency, which take long, and with so many neighbourhood prompts of each (None: all)."""
    kept = (replace(fact, generation=(), neighbourhood=fact.neighbourhood[:neighbours]) for fact in facts)
    return FactSet(facts.name, tuple(kept))


def write_others(others: Iterable[Fact], scored: Sequence[Fact], edited: Iterable[Fact], path: Path) -> Path:
    """Writes facts that are neither edited nor scored to a file, if there are any."""
    # Without the locality and neighbourhood prompts of `scored` (CounterFact's facts have some in common), and without
    # those that name an edited subject.
    asked = {prompt for fact in scored for prompt in (*fact.neighbourhood, *(probe.prompt for probe in fact.locality))}
    subjects = {fact.subject for fact in edited}

    def apart(prompt: str) -> bool:
        return prompt not in asked and not any(subject in prompt for subject in subjects)

    found = []
    for fact in others:
        locality = tuple(probe for probe in fact.locality if apart(probe.prompt))
        found.append(replace(fact, neighbourhood=tuple(filter(apart, fact.neighbourhood)), locality=locality))
    if found:
        write_facts(path, found)
    return path


def combinations(grid: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """The settings of trials: all combinations of a grid."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def at_edge(found: Data) -> list[str]:
    """The chosen settings that are the least or the greatest that was tried."""
    tried = {key: [trial["settings"][key] for trial in found["trials"]] for key in found["chosen"]}
    return [key for key, value in found["chosen"].items() if value in (min(tried[key]), max(tried[key]))]
