"""`StoredEntries`: the solved entries of a knowledge base, as rows of its database and vectors beside it."""

from __future__ import annotations

import glob
import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from corrigenda.edits.edit import WrongModelError
from corrigenda.facts import Fact
from corrigenda.knowledge.database import KnowledgeBaseError
from corrigenda.knowledge.entries import Entry, canonical, request_hash
from corrigenda.knowledge.vectors import VectorFile, checksum
from corrigenda.language_model import LanguageModel

Solved = Sequence[tuple[Fact, Sequence[Entry]]]
"""Facts, each with its entries for one model."""


AT_ONCE = 1024
"""So many entries are copied at once."""


class StoredEntries:
    """Reads and writes entries, inside a transaction of the database.

    Their vectors are in one file, which only grows, until `compact` writes those that are in use into another. Which
    of them counts is in the database, so that a process that is killed meanwhile leaves the earlier one in use.

    Args:
        path: of the first generation of the vectors' file; later ones have their number after it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = (0, VectorFile(path))

    def vectors(self, connection: sqlite3.Connection) -> VectorFile:
        """The file with the keys and values."""
        generation = self.generation(connection)
        if self._file[0] != generation:
            self._file = (generation, VectorFile(self._of(generation)))
        return self._file[1]

    def generation(self, connection: sqlite3.Connection) -> int:
        """How many times the vectors were written anew."""
        [generation] = connection.execute("SELECT generation FROM vectors").fetchone()
        return int(generation)

    def close(self) -> None:
        """Lets go of the file."""
        self._file[1].close()

    def used(self, connection: sqlite3.Connection) -> tuple[int, int]:
        """How many numbers of the vectors are of entries, and how many there are."""
        [numbers] = connection.execute("SELECT numbers FROM vectors").fetchone()
        [used] = connection.execute("SELECT total(d_ffn + d_model) FROM entries").fetchone()
        return int(used), int(numbers)

    def compact(self, connection: sqlite3.Connection) -> None:
        """Writes the vectors that are in use into a file of the next generation, and counts on that.

        Raises:
            KnowledgeBaseError: the vectors are damaged or missing.
        """
        generation = self.generation(connection)
        rows = connection.execute(
            "SELECT fact, fingerprint, layer, start, d_ffn + d_model, checksum FROM entries ORDER BY start"
        ).fetchall()
        new = VectorFile(self._of(generation + 1))
        try:
            end = self._copied(connection, rows, new)
        except BaseException:
            with suppress(OSError):  # half of it would take room on a disk that may be full
                new.path.unlink(missing_ok=True)
            raise
        connection.execute("UPDATE vectors SET numbers = ?, generation = ?", (end, generation + 1))

    def _copied(self, connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]], new: VectorFile) -> int:
        """Copies the vectors of entries into a file, notes where they lie in it, and says where it ends."""
        end = 0
        new.truncate()  # a process that was killed may have left something there
        for first in range(0, len(rows), AT_ONCE):
            part = rows[first : first + AT_ONCE]
            found = [self._vector(connection, fact, layer, *where) for fact, _, layer, *where in part]
            places = []
            for (fact, fingerprint, layer, *_), vector in zip(part, found, strict=True):
                places.append((end, fact, fingerprint, layer))
                end += len(vector)
            new.append(found, places[0][0])
            connection.executemany(
                "UPDATE entries SET start = ? WHERE fact = ? AND fingerprint = ? AND layer = ?", places
            )
        return end

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
        [end] = connection.execute("SELECT numbers FROM vectors").fetchone()
        vectors: list[Tensor] = []
        rows: list[tuple[object, ...]] = []
        place = end
        for fact, entries in solved:
            row = connection.execute("SELECT request FROM facts WHERE id = ?", (fact.id,)).fetchone()
            if row is None or row[0] != request_hash(fact):
                continue
            for fingerprint in {entry.fingerprint for entry in entries}:
                connection.execute("DELETE FROM entries WHERE fact = ? AND fingerprint = ?", (fact.id, fingerprint))
            for entry in entries:
                widths, content = (len(entry.key), len(entry.value)), checksum(entry.key, entry.value)
                rows.append((fact.id, entry.fingerprint, entry.layer, place, *widths, content, entry.said, entry.made))
                vectors += [entry.key, entry.value]
                place += sum(widths)
        if not rows:
            return
        end = self.vectors(connection).append(vectors, end)
        connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        connection.execute("UPDATE vectors SET numbers = ?", (end,))

    def read(self, connection: sqlite3.Connection, lm: LanguageModel, fact: Fact) -> list[Entry]:
        """A fact's entries for a model's weights, layer by layer.

        Raises:
            KnowledgeBaseError: the vectors are damaged or missing.
            WrongModelError: it was solved on other weights only.
            ValueError: it was not solved.
        """
        rows = connection.execute(
            "SELECT layer, start, d_ffn, d_model, checksum, settings, made FROM entries "
            "WHERE fact = ? AND fingerprint = ? ORDER BY layer",
            (fact.id, lm.fingerprint),
        ).fetchall()
        if not rows:
            raise self._not_solved(connection, lm, fact)
        found = []
        for layer, start, d_ffn, d_model, content, settings, made in rows:
            both = self._vector(connection, fact.id, layer, start, d_ffn + d_model, content)
            found.append(Entry(fact.id, layer, both[:d_ffn], both[d_ffn:], lm.fingerprint, json.loads(settings), made))
        return found

    def solved_on(
        self, connection: sqlite3.Connection, fingerprint: str, settings: Mapping[str, Any] | None = None
    ) -> set[str]:
        """The ids of the facts that have entries for some weights, solved with some settings (None: with any)."""
        rows = connection.execute("SELECT DISTINCT fact, settings FROM entries WHERE fingerprint = ?", (fingerprint,))
        wanted = None if settings is None else canonical(settings)
        return {fact for fact, said in rows if wanted is None or said == wanted}

    def fingerprints(self, connection: sqlite3.Connection) -> frozenset[str]:
        """Of which weights there are entries."""
        return frozenset(one for (one,) in connection.execute("SELECT DISTINCT fingerprint FROM entries"))

    def delete(self, connection: sqlite3.Connection, fact: str) -> None:
        """Takes out a fact's entries for all weights; its vectors stay in the file, unused, until `compact`."""
        connection.execute("DELETE FROM entries WHERE fact = ?", (fact,))

    def _vector(
        self, connection: sqlite3.Connection, fact: str, layer: int, start: int, width: int, content: str
    ) -> Tensor:
        solve, vectors = "solve(..., anew=True) writes it anew", self.vectors(connection)
        try:
            both = vectors.read(start, width)
        except ValueError as error:
            raise KnowledgeBaseError(f"{error} for the entry of fact {fact!r} at layer {layer}: {solve}") from None
        if checksum(both) != content:
            raise KnowledgeBaseError(
                f"{vectors.path} is damaged at the entry of fact {fact!r} at layer {layer}: {solve}"
            )
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
