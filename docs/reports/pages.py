"""The data files of pages, and how their figures were made.

    {"page": "localization", "command": "python docs/reports/layers.py collect",
     "made": [{"code": ..., "commit": ..., "versions": {...}, "machine": {...}}, ...],
     "runs": {"layer 3": [{"made": 0, "begun": ..., "ended": ..., "load": [0.1, 1.0]}], ...},
     "figures": ..., "digest": ...}

"made" has each way in which runs were made once; a run that was stopped and went on has several entries.
"digest" is what is worked out from the figures of single facts: means, intervals, p-values.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from options import ROOT as ROOT
from options import Data, Options

from corrigenda.intervals import interval
from corrigenda.runs.environment import machine, versions
from corrigenda.runs.ids import code_version
from corrigenda.system.files import write_json, write_text

DOCS = ROOT / "docs"
MADE = "made.json"
TIMES = ("begun", "ended", "load")
UNKNOWN = "unknown"
# Options that say where things lie on one machine, or how long one call may take; each takes a value.
HERE = ("--docs", "--files", "--store", "--minutes")
Made = list[dict[str, Any]]  # how a run was made: an entry for each time that a command worked on it


@dataclass(frozen=True)
class Collected:
    """What the first step found; one that adds to what is `kept` writes into it."""

    figures: Any  # what the page is written from; JSON values
    runs: dict[str, Made]  # how each of the runs behind them was made, by a name of the run
    earlier: tuple[str, ...] = ()  # the commands of a data file that this one added to, in order; see `kept`


def anywhere(given: Sequence[str]) -> list[str]:
    """A command's arguments without those that hold for one machine or one call alone (`HERE`), and without folders."""
    found: list[str] = []
    words = iter(given)
    for word in words:
        if word in HERE:
            next(words, None)
        elif word.partition("=")[0] not in HERE:
            found.append(Path(word).name if Path(word).is_absolute() else word)
    return found


@contextmanager
def making(folder: Path, uses: Iterable[str] = ()) -> Iterator[None]:
    """Notes in a run's folder how it is made (`noting`): `made` reads it. Of a killed command there is a beginning."""
    earlier = made(folder)
    with ExitStack() as last, noting(uses) as note:
        write_json(folder / MADE, [*earlier, note])
        last.callback(write_json, folder / MADE, [*earlier, note])
        yield


@contextmanager
def noting(uses: Iterable[str] = ()) -> Iterator[dict[str, Any]]:
    """How something is made: code version (of what `uses` names, by default all), packages, machine, times, loads."""
    note: dict[str, Any] = {"code": code_version(entry=uses), "commit": commit(), "versions": versions()}
    note |= {"machine": machine(), "begun": _now(), "ended": None, "load": [_load(), None]}
    try:
        yield note
    finally:
        note |= {"ended": _now(), "load": [note["load"][0], _load()]}


def add_note(folder: Path, note: Data) -> None:
    """Adds what `noting` noted to a run's folder."""
    write_json(folder / MADE, [*made(folder), note])


def made(folder: Path) -> Made:
    """What `making` noted; nothing where a run is older than that."""
    path = folder / MADE
    return read_json(path) if path.is_file() else []


def commit() -> str:
    """The commit of the working tree, with a "+" where files of the program are changed; "unknown" without git."""
    try:
        found = _git("rev-parse", "--short=12", "HEAD").strip()
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs").strip()
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    return found + "+" * bool(changed)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _now() -> str:
    return datetime.now().isoformat(timespec="seconds")


def _load() -> float | None:
    """The load average of the last minute: how many processes ran or wanted to; None where the system has none."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def data_path(name: str, docs: Path = DOCS) -> Path:
    """Where the data of a page lie."""
    return docs / "data" / f"{name}.json"


def write_data(name: str, command: str, found: Collected, docs: Path = DOCS) -> None:
    """Writes the data of a page."""
    ways: list[dict[str, Any]] = []
    ways += (way for made in found.runs.values() for entry in made if (way := way_of(entry)) not in ways)
    runs = {
        run: [{"made": ways.index(way_of(entry)), **{key: entry[key] for key in TIMES}} for entry in made]
        for run, made in found.runs.items()
    }
    earlier = [one for one in dict.fromkeys(found.earlier) if one != command]
    told = {"page": name, "command": command, **({"earlier": earlier} if earlier else {})}
    write_rows(data_path(name, docs), {**told, "made": ways, "runs": runs, "figures": found.figures})


def write_rows(path: Path, data: Any) -> None:
    """Writes a data file: JSON as elsewhere, but a list of numbers takes one line, and not one for each."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    plain = r"(?:-?[\d.eE+-]+|true|false|null)"
    rows = re.sub(rf"\[\n\s+({plain}(?:,\n\s+{plain})*)\n\s+\]", lambda one: f"[{' '.join(one[1].split())}]", text)
    write_text(path, rows + "\n")


def way_of(entry: Data) -> dict[str, Any]:
    """How a run was made, whenever it was."""
    return {key: value for key, value in entry.items() if key not in TIMES}


def read_data(name: str, docs: Path = DOCS) -> dict[str, Any]:
    """The data of a page; an end of the command where there are none."""
    path = data_path(name, docs)
    if not path.is_file():
        raise SystemExit(f"{path}: there are no data for this page yet; make them with the step 'collect'")
    return read_json(path)


def read_json(path: Path) -> Any:
    """What a file of JSON has."""
    return json.loads(path.read_text(encoding="utf-8"))


def numbers_in(ranges: str, n: int = sys.maxsize) -> list[int]:
    """The numbers of some ranges, as "3-5,8-9", of `n` facts that are counted from 1; else an end of the command."""
    found: list[int] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= n):
            raise SystemExit(f"--facts {part}: write FIRST-LAST, of the {n} facts of the file")
        found += range(int(first), int(last) + 1)
    return found


def kept(name: str, arguments: Options) -> Collected | None:
    """What a page's data file has already, for a first step that adds to it: a store may be gone when more is run."""
    # None where there is no file, and with --anew.
    if arguments.anew or not data_path(name, arguments.docs).is_file():
        return None
    data = read_data(name, arguments.docs)
    runs = {
        run: [{**data["made"][one["made"]], **{key: one[key] for key in TIMES}} for one in made]
        for run, made in data["runs"].items()
    }
    return Collected(data["figures"], runs, (*data.get("earlier", ()), data["command"]))


def beside(name: str, model: str, figures: Any, runs: Mapping[str, Made], arguments: Options) -> Collected:
    """What was found of one model, beside what the page's data file has of others (without --anew)."""
    # The figures have "models", by name; the names of the runs begin with the model's.
    earlier = kept(name, arguments) or Collected({"models": {}}, {})
    models = {**earlier.figures["models"], model: figures}
    return Collected({"models": models}, beside_runs(earlier.runs, model, runs), earlier.earlier)


def beside_runs(earlier: Mapping[str, Made], of: str, runs: Mapping[str, Made]) -> dict[str, Made]:
    """The runs of one thing, whose names begin with it, in the place of its earlier ones and beside those of others."""
    others = {run: made for run, made in earlier.items() if not run.startswith(f"{of}: ")}
    return others | {f"{of}: {run}": made for run, made in runs.items()}


def mean(values: Sequence[float], groups: Sequence[Hashable], shares: bool = False) -> dict[str, float | None]:
    """A mean with its 95 % interval over groups (subjects), for a digest; `shares` as in `corrigenda.intervals`."""
    low, high = interval([values], groups, shares=shares) or (None, None)
    return {"mean": fmean(values), "low": low, "high": high}
