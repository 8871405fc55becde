"""`BuildFolder`: what a list of facts was built into, put in place as a whole.

facts.kb                     the knowledge base: the facts and what was solved for each
model/ adapter/ gguf/ edit/  the edited model, the edit as a PEFT adapter and as one for llama.cpp, and the edit
facts.jsonl                  the list that they were built from
report.json report.html      the verification report
.before/                     what the unedited model does with the facts, for the next verification

A new build is written into ``.new``; one rename to ``.ready`` makes it the build of the folder, and its parts take the
places of the earlier ones: first of all the earlier report.json goes, last of all the new one comes. So where there is
a report.json, all parts beside it are of one build, also after a kill at any moment. While ``.ready`` is there, what is
read here is read from it, and the next process moves the rest (`recover`).
"""

import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from corrigenda import Fact
from corrigenda.data import read_facts
from corrigenda.errors import LockedError
from corrigenda.runs.folder import read_object
from corrigenda.runs.locks import locked
from eval.verification.report import FORMAT

REPORT = "report.json"
PARTS = ("model", "adapter", "gguf", "edit", "facts.jsonl", REPORT, "report.html")
"""What a build is made of; a build of some kinds of edits lacks some."""

NEW, READY, OLD, WHOLE, LOCK = ".new", ".ready", ".old", "whole.json", ".lock"


class BuildFolder:
    """The folder of a list; nothing is made by naming it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @property
    def base(self) -> Path:
        """Where the knowledge base lies."""
        return self.path / "facts.kb"

    @property
    def before(self) -> Path:
        """Where what the unedited model does is kept."""
        return self.path / ".before"

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The list that the build there was made from; empty where there is none.

        Raises:
            RecordError: the file is damaged.
        """
        path = self._part("facts.jsonl")
        return read_facts(path, schema="plain").facts if path.is_file() else ()

    @property
    def report(self) -> dict[str, Any] | None:
        """The report of the build there; None where there is none.

        Raises:
            ValueError: the file is damaged, or of another version.
        """
        path = self._part(REPORT)
        if not path.is_file():
            return None
        remedy = "delete it to build without a look at the last build"
        report = read_object(path, remedy)
        if report.get("format") != FORMAT:
            raise ValueError(f"{path}: has format {report.get('format')!r}, and this version writes {FORMAT}; {remedy}")
        return report

    def _part(self, name: str) -> Path:
        """Where a part of the build lies, while the parts are moved, too."""
        ready = self.path / READY / name
        return ready if ready.exists() else self.path / name

    def require_own(self, source: str | None) -> None:
        """Refuses a folder where a build would replace what is no build's, or the list's own file (FileExistsError)."""
        there = [name for name in PARTS if (self.path / name).exists()]
        if there and not self.base.exists() and not (self.path / LOCK).exists():
            raise FileExistsError(
                f"job.folder={self.path}: {there[0]} there is not of a build (there is no {self.base.name}), and a "
                "build would take its place; name a folder of its own"
            )
        if source is None:
            return
        parts, place = [(self.path / name).resolve() for name in PARTS], Path(source).resolve()
        if any(place == part or part in place.parents for part in parts):
            raise FileExistsError(
                f"data.path={source}: this file is a part of the build in {self.path}, which each build writes anew; "
                "keep the list beside the folder"
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps other processes from building here; makes the folder, and ends what a killed process began to move.

        Raises:
            LockedError: another process is building here.
            OSError: the folder cannot be made or written.
        """
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"job.folder={self.path}: this is a file; name a folder")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with locked(self.path / LOCK):
                self.recover()
                yield
        except LockedError:
            raise LockedError(
                f"job.folder={self.path}: another process is building there; wait for it, or name another folder"
            ) from None

    def recover(self) -> None:
        """Ends what a killed process left undone: puts a whole build in place, and removes half of one."""
        if (self.path / READY).is_dir():
            self._put_in_place()
        for name in (NEW, OLD):
            shutil.rmtree(self.path / name, ignore_errors=True)

    def replace(self, write: Callable[[Path], None]) -> None:
        """Puts a new build, which `write` writes into a folder, in the place of the one there.

        Raises OSError: it cannot be written (the disk is full); the build there is untouched.
        """
        new = self.path / NEW
        try:
            new.mkdir()
            write(new)
            there = [name for name in PARTS if (new / name).exists()]
            (new / WHOLE).write_text(json.dumps(there), encoding="utf-8")
            mode = stat.S_IMODE((new / WHOLE).stat().st_mode)
            for path in sorted(new.rglob("*")):
                if path.is_file():
                    path.chmod(mode)  # whole models are written by safetensors for their owner alone
                    with path.open("r+b") as file:
                        os.fsync(file.fileno())
        except (OSError, SafetensorError) as error:
            shutil.rmtree(new, ignore_errors=True)
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise OSError(
                f"job.folder={self.path}: the build cannot be written ({why}); the earlier one is untouched, and what "
                "was solved and verified is kept"
            ) from error
        os.replace(new, self.path / READY)
        self._put_in_place()
        shutil.rmtree(self.path / OLD, ignore_errors=True)

    def _put_in_place(self) -> None:
        ready, old = self.path / READY, self.path / OLD
        old.mkdir(exist_ok=True)
        there = json.loads((ready / WHOLE).read_text(encoding="utf-8"))
        if (ready / REPORT).exists() or REPORT not in there:
            self._put_away(REPORT)
        for name in (*(name for name in PARTS if name != REPORT), REPORT):
            if name in there and not (ready / name).exists():
                continue  # it was moved before a kill
            self._put_away(name)
            if name in there:
                os.replace(ready / name, self.path / name)
        _remove(old / READY)
        os.replace(ready, old / READY)  # at once: without its list of parts nobody could go on with it

    def _put_away(self, name: str) -> None:
        """Moves a part of the earlier build out of the way."""
        if (self.path / name).exists():
            _remove(self.path / OLD / name)
            os.replace(self.path / name, self.path / OLD / name)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def wrong_weights(folder: Path, made_on: Mapping[str, str], name: str, fingerprint: str) -> str:
    """What to say where a list was made on other weights, whose fingerprints, with models' names, are `made_on`."""
    [(other, said), *_] = made_on.items()
    return (
        f"job.folder={folder}: the list there was built for {said or 'a model'} with the weights {other[:12]}, and "
        f"{name} has {fingerprint[:12]}; name that model, or another folder for this one"
    )
