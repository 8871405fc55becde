"""Planted faults: a list of them, where each one's text stands, and whether the tests see it.

A fault is a text of the code and what stands in its place, such as a wrong axis or a key that lacks a part. It is
planted in a copy of the project, and the tests that are to see it are run there.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("corrigenda", "editing", "locate", "eval")
LONGEST = 600.0
"""Seconds for the tests of one fault; code that never ends is a fault that was seen."""


@dataclass(frozen=True)
class Mutant:
    """A planted fault.

    Attributes:
        name: of the fault.
        what: what is wrong with it.
        file: where its text stood last; it may have moved within its package.
        before: the text, which stands once in the package.
        after: what is put in its place.
        tests: the files, or folders, that are to see it, with a space between them.
    """

    name: str
    what: str
    file: str
    before: str
    after: str
    tests: str


@dataclass(frozen=True)
class Outcome:
    """What came of a fault: "caught", "survived", or "gone", where its text or its tests are not there; and more."""

    word: str
    said: str = ""


def mutants() -> list[Mutant]:
    """All of them, package by package."""
    folder = Path(__file__).parent
    return [
        Mutant(**entry) for package in PACKAGES for entry in yaml.safe_load((folder / f"{package}.yaml").read_text())
    ]


def place_of(mutant: Mutant, root: Path = ROOT) -> Path:
    """The file in which the fault's text stands, once: the one that is named, or else another of its package.

    Raises:
        LookupError: it stands nowhere, or more than once; or one of its tests is not there.
    """
    if missing := [path for path in mutant.tests.split() if not (root / path).exists()]:
        raise LookupError(f"there is no {missing[0]}")
    texts = _texts(root / Path(mutant.file).parts[0])
    named = root / mutant.file
    counts = {path: text.count(mutant.before) for path, text in texts.items() if mutant.before in text}
    if counts.get(named) == 1:
        return named
    if sum(counts.values()) != 1:
        raise LookupError(
            f"{mutant.before.strip()!r} stands {sum(counts.values())} times in {mutant.file.split('/')[0]}/"
        )
    [path] = counts
    return path


@cache
def _texts(folder: Path) -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))}


def copy_of(root: Path, folder: Path) -> Path:
    """Copies what git knows of the project, as it is now, and what is new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, folder / name)
    return folder


def run(chosen: Sequence[Mutant], root: Path, copy: Path) -> Iterator[tuple[Mutant, Outcome]]:
    """Plants the faults in a copy, one at a time, and runs their tests.

    Raises:
        ValueError: the tests fail without any fault.
    """
    known = [mutant for mutant in chosen if _problem(mutant, root) == ""]
    paths = {path for mutant in known for path in mutant.tests.split()}
    inside = {path for path in paths if not any(path.startswith(f"{other}/") for other in paths)}
    if known and (said := _failure(copy, sorted(inside))):
        raise ValueError(f"the tests fail without any fault: {said}")
    for number, mutant in enumerate(chosen):
        if problem := _problem(mutant, root):
            yield mutant, Outcome("gone", problem)
            continue
        path = copy / place_of(mutant, root).relative_to(root)
        text, was = path.read_text(encoding="utf-8"), path.stat()
        path.write_text(text.replace(mutant.before, mutant.after), encoding="utf-8")
        # Python takes a compiled file for that of a source of the same second and size.
        os.utime(path, (was.st_atime, was.st_mtime + 2 * number + 2))
        try:
            failure = _failure(copy, mutant.tests.split())
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, (was.st_atime, was.st_mtime))
        yield mutant, Outcome("caught", failure) if failure else Outcome("survived")


def _problem(mutant: Mutant, root: Path) -> str:
    try:
        place_of(mutant, root)
    except LookupError as problem:
        return str(problem.args[0])
    return ""


def _failure(folder: Path, tests: Sequence[str]) -> str:
    """The first test that fails; empty where all of them pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", "--quick", *tests]
    beside = {"CORRIGENDA_SHARED": os.environ.get("CORRIGENDA_SHARED", str(ROOT.parent / "shared"))}
    try:
        done = subprocess.run(
            command, cwd=folder, env=os.environ | beside, capture_output=True, text=True, timeout=LONGEST
        )
    except subprocess.TimeoutExpired:
        return f"no end in {LONGEST:.0f} s"
    if done.returncode == 0:
        return ""
    if done.returncode > 2:  # no test was run at all
        raise ValueError(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    lines = done.stdout.splitlines()
    return next((line.split(" ", 1)[1] for line in lines if line.startswith(("FAILED ", "ERROR "))), lines[-1])
