"""`StoredEntries`: the solved entries of a knowledge base, as rows of its database and vectors beside it."""

from __future__ import annotations

import glob
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from corrigenda.errors import ForeignFileError, KnowledgeBaseError, WrongModelError
from corrigenda.facts import Fact
from corrigenda.knowledge.database import DAMAGED
from corrigenda.knowledge.entries import Entry, canonical, request_hash
from corrigenda.knowledge.vectors import VectorFile, checksum
from corrigenda.language_model import LanguageModel

Solved = Sequence[tuple[Fact, Sequence[Entry]]]
"""Facts, each with its entries for one model."""


AT_ONCE = 1024
"""So many entries are copied at once."""


class _Row(NamedTuple):
    """A row of the table of entries.

    Its checksum is of the vectors, of all that stands here but `start`, and of how many entries the fact has.
    """

    fact: str
    fingerprint: str
    layer: int
    start: int
    d_ffn: int
    d_model: int
    checksum: str
    settings: str
    made: str
    request: str

    @property
    def width(self) -> int:
        return self.d_ffn + self.d_model

    @property
    def place(self) -> tuple[str, str, int]:
        """The key of the table."""
        return self.fact, self.fingerprint, self.layer

    def sealed(self, n: int, *vectors: Tensor) -> _Row:
        """The row with the checksum that it has for some vectors, as one of so many of its fact."""
        about = [n, *(getattr(self, name) for name in self._fields if name not in ("start", "checksum"))]
        return self._replace(checksum=checksum(*vectors, about=json.dumps(about)))


class StoredEntries:
    """Reads and writes entries, inside a transaction of the database.

    Their vectors are in one file, which only grows, until `compact` writes those that are in use into another, named
    with a number behind `path`. Which of them counts is in the database, so that a process that is killed meanwhile
    leaves the earlier one in use.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, VectorFile] | None = None

    def vectors(self, connection: sqlite3.Connection) -> VectorFile:
        """The file with the keys and values. Raises KnowledgeBaseError: it is of another knowledge base."""
        _, generation, identity = self._state(connection)
        if self._file is None or self._file[0] != generation:
            try:
                self._file = (generation, VectorFile(self._of(generation), identity))
            except ForeignFileError as error:
                raise KnowledgeBaseError(
                    f"{error}, and not of {self._path.stem} beside it: put its own in its place; or delete it, and "
                    "solve() solves all facts anew"
                ) from None
        return self._file[1]

    def _state(self, connection: sqlite3.Connection) -> tuple[int, int, str]:
        """How many numbers there are, how many times they were written anew, and the identity."""
        row = connection.execute("SELECT numbers, generation, identity FROM vectors").fetchone()
        if row is None or [type(one) for one in row] != [int, int, str]:
            raise KnowledgeBaseError(f"{self._path.with_suffix('')}: {DAMAGED}")
        return int(row[0]), int(row[1]), str(row[2])

    def generation(self, connection: sqlite3.Connection) -> int:
        """How many times the vectors were written anew."""
        return self._state(connection)[1]

    def close(self) -> None:
        """Lets go of the file."""
        if self._file is not None:
            self._file[1].close()

    def used(self, connection: sqlite3.Connection) -> tuple[int, int]:
        """How many numbers of the vectors are of entries, and how many there are."""
        [used] = connection.execute("SELECT total(d_ffn + d_model) FROM entries").fetchone()
        return int(used), self._state(connection)[0]

    def compact(self, connection: sqlite3.Connection) -> None:
        """Writes the vectors that are in use into a file of the next generation, and counts on that.

        Raises:
            KnowledgeBaseError: the vectors are damaged or missing.
        """
        _, generation, identity = self._state(connection)
        path = self._of(generation + 1)
        try:
            new = VectorFile(path, identity, anew=True)
            rows = self._rows(connection)
            end, rest, n = 0, iter(rows), Counter(row.place[:2] for row in rows)
            while part := list(islice(rest, AT_ONCE)):
                found = [self._vector(connection, row, n[row.place[:2]]) for row in part]
                moved = []
                first = end
                for row, vector in zip(part, found, strict=True):
                    moved.append((end, row.sealed(n[row.place[:2]], vector).checksum, *row.place))
                    end += len(vector)
                new.append(found, first)
                connection.executemany(
                    "UPDATE entries SET start = ?, checksum = ? WHERE fact = ? AND fingerprint = ? AND layer = ?", moved
                )
        except BaseException:
            with suppress(OSError):  # half of it would take room on a disk that may be full
                path.unlink(missing_ok=True)
            raise
        connection.execute("UPDATE vectors SET numbers = ?, generation = ?", (end, generation + 1))

    def _rows(self, connection: sqlite3.Connection) -> list[_Row]:
        """All entries, in the order of their vectors."""
        found = connection.execute(f"SELECT {', '.join(_Row._fields)} FROM entries ORDER BY start").fetchall()
        return [_Row(*row) for row in found]

    def forget_others(self, connection: sqlite3.Connection) -> None:
        """Removes the files of other generations; who reads one has it until the end of what it reads."""
        used = self.vectors(connection).path
        for path in self._path.parent.glob(f"{glob.escape(self._path.name)}*"):
            generation = path.name.removeprefix(self._path.name)
            if path != used and (not generation or re.fullmatch(r"\.[0-9]+", generation)):  # others are not ours
                with suppress(PermissionError):  # Windows does not while it is in use; the next time will do
                    path.unlink(missing_ok=True)

    def _of(self, generation: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{generation}") if generation else self._path

    def write(self, connection: sqlite3.Connection, solved: Solved) -> None:
        """Writes entries, in place of earlier ones for the same weights.

        Those of facts that are not in the database as they were solved are left out: somebody changed these meanwhile.
        """
        vectors: list[Tensor] = []
        rows: list[_Row] = []
        place = end = self._state(connection)[0]
        for fact, entries in solved:
            request = request_hash(fact)
            row = connection.execute("SELECT record FROM facts WHERE id = ?", (fact.id,)).fetchone()
            if row is None or request_hash(fact_of(row[0])) != request:
                continue
            for fingerprint in {entry.fingerprint for entry in entries}:
                connection.execute("DELETE FROM entries WHERE fact = ? AND fingerprint = ?", (fact.id, fingerprint))
            for entry in entries:
                widths, how = (len(entry.key), len(entry.value)), (entry.settings_json, entry.made, request)
                new = _Row(fact.id, entry.fingerprint, entry.layer, place, *widths, "", *how)
                rows.append(new.sealed(len(entries), entry.key, entry.value))
                vectors += [entry.key, entry.value]
                place += new.width
        if not rows:
            return
        end = self.vectors(connection).append(vectors, end)
        named = f"({', '.join(_Row._fields)}) VALUES ({', '.join('?' * len(_Row._fields))})"
        connection.executemany(f"INSERT INTO entries {named}", rows)
        connection.execute("UPDATE vectors SET numbers = ?", (end,))

    def read(self, connection: sqlite3.Connection, lm: LanguageModel, fact: Fact) -> list[Entry]:
        """A fact's entries for a model's weights, layer by layer.

        Raises:
            KnowledgeBaseError: an entry or its vectors are damaged or missing.
            WrongModelError: it was solved on other weights only.
            ValueError: it was not solved, or solved as another text.
        """
        rows = connection.execute(
            f"SELECT {', '.join(_Row._fields)} FROM entries WHERE fact = ? AND fingerprint = ? ORDER BY layer",
            (fact.id, lm.fingerprint),
        ).fetchall()
        if not rows:
            raise self._not_solved(connection, lm, fact)
        found = []
        for row in map(_Row._make, rows):
            both = self._vector(connection, row, len(rows))
            if row.request != request_hash(fact):
                raise ValueError(
                    f"fact {fact.id!r} ({fact.statement!r:.80}) was solved for when its text was another: solve() "
                    "solves it anew"
                )
            settings = json.loads(row.settings)
            key, value = both[: row.d_ffn], both[row.d_ffn :]
            found.append(Entry(fact.id, row.layer, key, value, lm.fingerprint, settings, row.made))
        return found

    def solved_on(
        self, connection: sqlite3.Connection, fingerprint: str, settings: Mapping[str, Any] | None = None
    ) -> dict[str, str]:
        """By id the facts that have entries for weights (and settings), and the hash of what these were solved for."""
        rows = connection.execute(
            "SELECT DISTINCT fact, settings, request FROM entries WHERE fingerprint = ?", (fingerprint,)
        )
        wanted = None if settings is None else canonical(settings)
        return {fact: request for fact, said, request in rows if wanted is None or said == wanted}

    def fingerprints(self, connection: sqlite3.Connection) -> frozenset[str]:
        """Of which weights there are entries."""
        return frozenset(one for (one,) in connection.execute("SELECT DISTINCT fingerprint FROM entries"))

    def delete(self, connection: sqlite3.Connection, fact: str) -> None:
        """Takes out a fact's entries for all weights; its vectors stay in the file, unused, until `compact`."""
        connection.execute("DELETE FROM entries WHERE fact = ?", (fact,))

    def _vector(self, connection: sqlite3.Connection, row: _Row, n: int) -> Tensor:
        vectors, of = self.vectors(connection), f"the entry of fact {row.fact!r} at layer {row.layer}"
        solve = "solve() solves it anew"
        try:
            both = vectors.read(row.start, row.width)
            whole = row.sealed(n, both) == row
        except (ValueError, TypeError) as error:  # a damaged row has whatever in it
            raise KnowledgeBaseError(f"{error} for {of}: {solve}") from None
        if not whole:
            raise KnowledgeBaseError(f"{vectors.path} is damaged at {of}, or the entry itself is: {solve}")
        return both

    def _not_solved(self, connection: sqlite3.Connection, lm: LanguageModel, fact: Fact) -> ValueError:
        row = connection.execute("SELECT fingerprint FROM entries WHERE fact = ?", (fact.id,)).fetchone()
        said = f"fact {fact.id!r} ({fact.statement!r:.80})"
        if row is None:
            return ValueError(f"{said} is not solved yet: call solve()")
        return WrongModelError(
            f"{said} was solved on the weights {row[0][:12]}, and {lm.name} has {lm.fingerprint[:12]}: solve() solves "
            "it for these, too"
        )


def fact_of(record: str) -> Fact:
    """A fact as the database has it. Raises KnowledgeBaseError: it is damaged."""
    try:
        return Fact.from_dict(json.loads(record))
    except (ValueError, TypeError, KeyError) as error:
        raise KnowledgeBaseError(f"a fact in the base is damaged ({error}): {DAMAGED}") from None
