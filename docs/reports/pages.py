"""What the commands of this folder share: their steps, the data file between them, and how its figures were made.

    python docs/reports/NAME.py collect ...     runs -> docs/data/PAGE.json; can be stopped, and goes on
    python docs/reports/NAME.py digest          the statistics in docs/data/PAGE.json anew, from its figures
    python docs/reports/NAME.py page            docs/data/PAGE.json -> docs/PAGE.md and its pictures, in seconds

The last two need no model: the same data give the same page. `collect` ends with the digest; its options are told by
--help. It can be stopped (after --minutes it stops by itself) and given again: what is finished is kept in a work
folder or a store. Where it adds to what the data file has, --anew forgets that. A data file:

    {"page": "localization", "command": "python docs/reports/layers.py collect",
     "made": [{"code": ..., "commit": ..., "versions": {...}, "machine": {...}}, ...],
     "runs": {"layer 3": [{"made": 0, "begun": ..., "ended": ..., "load": [0.1, 1.0]}], ...},
     "figures": ..., "digest": ...}

"made" has each way in which runs were made once; a run that was stopped and went on has several entries.
"digest" is what is worked out from the figures of single facts: means, intervals, p-values.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from options import ROOT as ROOT
from options import NotFinishedError

from corrigenda.intervals import interval
from corrigenda.runs.environment import machine, versions
from corrigenda.runs.ids import code_version
from corrigenda.system.files import write_json, write_text

DOCS = ROOT / "docs"
MADE = "made.json"
TIMES = ("begun", "ended", "load")
UNKNOWN = "unknown"
HERE = ("--docs", "--files", "--store", "--minutes")
"""Options that say where things lie on one machine, or how long one call may take; each takes a value."""

Made = list[dict[str, Any]]
"""How a run was made: an entry for each time that a command worked on it."""


@dataclass(frozen=True)
class Collected:
    """What the first step found.

    Attributes:
        figures: what the page is written from; JSON values. A first step that adds to what is `kept` writes into them.
        runs: how each of the runs behind them was made, by a name of the run; the same holds for them.
        earlier: the commands of a data file that this one added to, in order; see `kept`.
    """

    figures: Any
    runs: dict[str, Made]
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """A page of figures.

    Attributes:
        name: of the page and of its data, docs/NAME.md and docs/data/NAME.json.
        script: the command's file in docs/reports.
        title: what the command is for, in its first line.
        options: adds the first step's options.
        collect: the first step, from the options to what it found; None where it is not,
            as with `NotFinishedError`.
        page: writes the page from the data into a folder, and returns the files.
        digest: the statistics that the page shows, from the figures; JSON values.
        pictures: by file name in docs/figures, what draws it from the data to a path.
    """

    name: str
    script: str
    title: str | None
    options: Callable[[argparse.ArgumentParser], None]
    collect: Callable[[argparse.Namespace], Collected | None]
    page: Callable[[Mapping[str, Any], Path], list[Path]]
    digest: Callable[[Any], Mapping[str, Any]] | None = None
    pictures: Mapping[str, Callable[[Mapping[str, Any], Path], None]] = field(default_factory=dict)

    def main(self, arguments: list[str] | None = None) -> None:
        """The command line of all steps."""
        parser = argparse.ArgumentParser(description=(self.title or "").partition("\n")[0])
        steps = parser.add_subparsers(dest="step", required=True)
        told = {"collect": f"make docs/data/{self.name}.json from runs; goes on where it stopped"}
        told["page"] = f"make docs/{self.name}.md from docs/data/{self.name}.json"
        if self.digest:
            told["digest"] = f"work out the intervals and p-values in docs/data/{self.name}.json anew"
        for step, what in told.items():
            steps.add_parser(step, help=what).add_argument(
                "--docs", type=Path, default=DOCS, help="folder of the page; its data are in data/"
            )
        self.options(steps.choices["collect"])
        options = parser.parse_args(arguments)
        if options.step == "page":
            print(*self.write(options.docs), sep="\n")
            return
        if options.step == "collect":
            given = sys.argv[1:] if arguments is None else arguments
            try:
                found = self.collect(options)
            except NotFinishedError:
                found = None
            if found is None:
                print("not finished yet; give the same command again to go on")
                sys.exit(3)
            command = " ".join([f"python docs/reports/{self.script}", *anywhere(given)])
            write_data(self.name, command, found, options.docs)
        if self.digest:
            write_rows(data_path(self.name, options.docs), self.digested(read_data(self.name, options.docs)))
        print(data_path(self.name, options.docs))

    def digested(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The data with their statistics, made anew."""
        return {**data, "digest": self.digest(data["figures"])} if self.digest else dict(data)

    def write(self, docs: Path) -> list[Path]:
        """The page and its pictures, made from the data."""
        data = read_data(self.name, docs)
        pages, pictures = self.page(data, docs), docs / "figures"
        pictures.mkdir(parents=True, exist_ok=True)
        for name, draw in self.pictures.items():
            draw(data, pictures / name)
        return [*pages, *(pictures / name for name in self.pictures)]


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
    """Notes in a run's folder how it is made, while it is made: `made` reads it.

    Of a command that is killed there is a beginning alone.

    Args:
        folder: it is made if need be.
        uses: see `noting`.
    """
    earlier = made(folder)
    with ExitStack() as last, noting(uses) as note:
        write_json(folder / MADE, [*earlier, note])
        last.callback(write_json, folder / MADE, [*earlier, note])
        yield


@contextmanager
def noting(uses: Iterable[str] = ()) -> Iterator[dict[str, Any]]:
    """How something is made: code version, packages, machine; when, and the load average, at both ends.

    Args:
        uses: dotted names of what makes the figures; the code version is of their files, so all runs of a page name the
            same. By default of all files.

    Yields:
        the note; it is complete when the context is left.
    """
    note: dict[str, Any] = {"code": code_version(entry=uses), "commit": commit(), "versions": versions()}
    note |= {"machine": machine(), "begun": _now(), "ended": None, "load": [_load(), None]}
    try:
        yield note
    finally:
        note |= {"ended": _now(), "load": [note["load"][0], _load()]}


def add_note(folder: Path, note: Mapping[str, Any]) -> None:
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


# -- the data file


def data_path(name: str, docs: Path = DOCS) -> Path:
    """Where the data of a page lie."""
    return docs / "data" / f"{name}.json"


def write_data(name: str, command: str, found: Collected, docs: Path = DOCS) -> Path:
    """Writes the data of a page."""
    ways: list[dict[str, Any]] = []
    runs: dict[str, list[dict[str, Any]]] = {}
    for run, entries in found.runs.items():
        runs[run] = []
        for entry in entries:
            way = way_of(entry)
            if way not in ways:
                ways.append(way)
            runs[run].append({"made": ways.index(way), **{key: entry[key] for key in TIMES}})
    path = data_path(name, docs)
    earlier = [one for one in dict.fromkeys(found.earlier) if one != command]
    told = {"command": command, **({"earlier": earlier} if earlier else {})}
    write_rows(path, {"page": name, **told, "made": ways, "runs": runs, "figures": found.figures})
    return path


def write_rows(path: Path, data: Any) -> None:
    """Writes a data file: JSON as elsewhere, but a list of numbers takes one line, and not one for each."""
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    plain = r"(?:-?[\d.eE+-]+|true|false|null)"
    rows = re.sub(rf"\[\n\s+({plain}(?:,\n\s+{plain})*)\n\s+\]", lambda one: f"[{' '.join(one[1].split())}]", text)
    write_text(path, rows + "\n")


def way_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """How a run was made, whenever it was."""
    return {key: value for key, value in entry.items() if key not in TIMES}


def read_data(name: str, docs: Path = DOCS) -> dict[str, Any]:
    """The data of a page.

    Raises:
        SystemExit: there are none.
    """
    path = data_path(name, docs)
    if not path.is_file():
        raise SystemExit(f"{path}: there are no data for this page yet; make them with the step 'collect'")
    return read_json(path)


def read_json(path: Path) -> Any:
    """What a file of JSON has."""
    return json.loads(path.read_text(encoding="utf-8"))


def numbers_in(ranges: str, n: int = sys.maxsize) -> list[int]:
    """The numbers of some ranges, as "3-5,8-9", of facts that are counted from 1.

    Raises:
        SystemExit: a range is not one, or goes beyond the `n` facts that there are.
    """
    found: list[int] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= n):
            raise SystemExit(f"--facts {part}: write FIRST-LAST, of the {n} facts of the file")
        found += range(int(first), int(last) + 1)
    return found


def kept(name: str, arguments: argparse.Namespace) -> Collected | None:
    """What a page's data file has already, for a first step that adds to it: a store may be gone when more is run.

    Args:
        name: of the page.
        arguments: the options, --anew among them.

    Returns:
        the figures and how their runs were made, with the commands that made them; None where there is no file, and
        with --anew.
    """
    if arguments.anew or not data_path(name, arguments.docs).is_file():
        return None
    data = read_data(name, arguments.docs)
    runs = {
        run: [{**data["made"][one["made"]], **{key: one[key] for key in TIMES}} for one in made]
        for run, made in data["runs"].items()
    }
    return Collected(data["figures"], runs, (*data.get("earlier", ()), data["command"]))


def beside(name: str, model: str, figures: Any, runs: Mapping[str, Made], arguments: argparse.Namespace) -> Collected:
    """What was found of one model, beside what the page's data file has of others.

    Args:
        name: of the page.
        model: the model's name.
        figures: of this model.
        runs: how each of its runs was made.
        arguments: the options, --anew among them.

    Returns:
        figures with "models", by name; the runs' names begin with the model's.
    """
    earlier = kept(name, arguments) or Collected({"models": {}}, {})
    others = {run: made for run, made in earlier.runs.items() if not run.startswith(f"{model}: ")}
    mine = {f"{model}: {run}": made for run, made in runs.items()}
    return Collected({"models": {**earlier.figures["models"], model: figures}}, {**others, **mine}, earlier.earlier)


def of_each_model(digest: Callable[[Any], Mapping[str, Any]]) -> Callable[[Any], Mapping[str, Any]]:
    """The statistics of figures that `beside` put together: those of each model, by name."""
    return lambda figures: {"models": {model: digest(found) for model, found in figures["models"].items()}}


def model_by_model(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a template shows of such data: "models", by name the figures with their statistics."""
    digests = data["digest"]["models"]
    return {"models": {model: {**found, **digests[model]} for model, found in data["figures"]["models"].items()}}


def mean(values: Sequence[float], groups: Sequence[Hashable], shares: bool = False) -> dict[str, float | None]:
    """A mean with its 95 % interval over groups (subjects), for a digest; `shares` as in `corrigenda.intervals`."""
    low, high = interval([values], groups, shares=shares) or (None, None)
    return {"mean": fmean(values), "low": low, "high": high}
