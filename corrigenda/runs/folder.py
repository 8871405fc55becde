"""`RunFolder`: what a run leaves behind, written so that a run killed at any moment loses nothing it finished.

config.yaml     the resolved configuration
versions.json   when it was begun, versions of everything, and the machine; with those that it went on with "later"
identity.json   the run's id and the fingerprints of what it works on
cases.jsonl     one line a fact, in the order they were finished (see `corrigenda.runs.records`)
journal.jsonl   what else was done, in batches and sequences: a killed run goes on from it
retention.jsonl the cases after the last edit of a sequential run; written when it is made
edits/          the edits, as `Edit.save` writes them
records.sha256  digests of the finished records
summary.json    the figures; written last
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corrigenda.runs.environment import environment
from corrigenda.runs.locks import locked
from corrigenda.runs.records import (
    DIGESTS,
    RECORDS,
    check_digest,
    last_line,
    read_lines,
    records_in,
    seal_of,
    sealed,
    sealed_lines,
    write_digests,
)
from corrigenda.system.files import saying_full, write_file, write_json, write_text
from corrigenda.system.plain_data import read_json

if TYPE_CHECKING:
    from corrigenda.edits.edit import Edit


class RunFolder:
    """The folder of one run; it is made if need be."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)

    @property
    def config(self) -> str | None:
        """The text of the configuration that the run was begun with; None for a new run."""
        path = self.path / "config.yaml"
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def begin(self, config: str) -> None:
        """Writes the configuration and the versions."""
        write_json(self.path / "versions.json", environment())
        write_text(self.path / "config.yaml", config)

    def go_on_in_this_environment(self) -> list[str]:
        """Notes the environment of a run that goes on where it is another; what differs from the one before."""
        path = self.path / "versions.json"
        if not path.is_file():
            return []
        noted = read_object(path, "delete this file; then what the run was made with is not known")
        last, now = [noted, *noted.get("later", ())][-1], environment()
        before, here = ({**one.get("versions", {}), **one.get("machine", {})} for one in (last, now))
        found = [
            f"another {name} ({here.get(name, 'none')}, before {before.get(name, 'none')})"
            for name in sorted({*before, *here} - {"threads"})
            if before.get(name) != here.get(name)
        ]
        if found:
            write_json(path, noted | {"later": [*noted.get("later", ()), now]})
        return found

    @property
    def identity(self) -> dict[str, str]:
        """What the run works on, as it was noted; empty if it was not. Raises ValueError: the file is damaged."""
        path = self.path / "identity.json"
        if not path.is_file():
            return {}
        return read_object(path, "begin a new run, or delete this file to go on without a check of what it works on")

    def identify(self, **identity: str) -> None:
        """Notes what the run works on (fingerprints); when it goes on later, that has to be the same.

        Raises:
            ValueError: it is not.
        """
        begun = self.identity
        if not begun:
            write_json(self.path / "identity.json", identity)
        for name, value in identity.items():
            if begun and begun.get(name) != value:
                raise ValueError(
                    f"{self.path}: the run was begun with another {name} ({begun.get(name)}, now {value}); "
                    "begin a new run"
                )

    def go_on_with(self, **identity: str) -> None:
        """Notes that a run goes on with something else than it was begun with (another version of the code)."""
        write_json(self.path / "identity.json", self.identity | identity)

    def append(self, case: Mapping[str, Any], to: str = "cases") -> None:
        """Adds a finished case; it is on the disk when this returns. Where that fails nothing of it is.

        A value that JSON has no word for (NaN) is an error here and not a surprise later.

        Raises:
            OSError: the disk is full.
        """
        path = self.path / f"{to}.jsonl"
        above = last_line(path)
        if above and not seal_of(above):  # of an earlier version: from now on all of its lines are sealed
            self.write(list(read_lines(path)), to)
            above = last_line(path)
        line = sealed(case, seal_of(above))
        (self.path / DIGESTS).unlink(missing_ok=True)  # what is added was not there when the run was finished
        size = path.stat().st_size if path.is_file() else 0
        try:
            with saying_full(path), path.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                os.truncate(path, size)  # who goes on in this process adds to whole lines
            raise

    def write(self, records: Iterable[Mapping[str, Any]], to: str) -> None:
        """Writes records in the place of those that are there."""
        content = sealed_lines(records)
        (self.path / DIGESTS).unlink(missing_ok=True)  # they are not of what is written now
        write_file(self.path / f"{to}.jsonl", lambda scratch: scratch.write_bytes(content))

    def cases(self, of: str = "cases") -> Iterator[dict[str, Any]]:
        """The finished cases. What is damaged in the file of a run that is under way is taken out of it.

        Raises:
            ValueError: the records are damaged.
        """
        path = self.path / f"{of}.jsonl"
        if path.is_file():
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole != len(content):
                with path.open("r+b") as file:
                    file.truncate(whole)
            if not check_digest(self.path, of):
                kept = list(read_lines(path, repair=True))
                if len(kept) != content.count(b"\n"):
                    self.write(kept, of)
        yield from records_in(self.path, of)

    def edit_path(self, number: int, name: str) -> Path:
        """Where the edit of a fact (or of all facts, under a name of their own) goes."""
        readable = re.sub(r"[^\w-]+", "-", name).strip("-")[:60]
        return self.path / "edits" / f"{number:04d}-{readable}"

    def save_edit(self, edit: Edit, number: int, name: str) -> None:
        """Saves an edit."""
        edit.save(self.edit_path(number, name))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Notes the digests of the records and writes the summary. Raises ValueError: the records are damaged."""
        for of in RECORDS:
            for _ in records_in(self.path, of):
                pass
        write_digests(self.path)
        write_json(self.path / "summary.json", dict(summary))

    def held(self) -> AbstractContextManager[None]:
        """Marks the folder as being written by this process, as long as the context lasts or the process lives.

        Raises:
            LockedError: another process is writing it.
        """
        return locked(self.path / ".lock")


def read_object(path: Path, remedy: str) -> dict[str, Any]:
    """The named values of a JSON file in a run's folder; `remedy` is what to do if it is damaged (ValueError)."""
    try:
        found = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path}: damaged ({error}); {remedy}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path}: damaged (holds {type(found).__name__}, not named values); {remedy}")
    return found
