"""`StoredEntries`: the solved entries of a knowledge base, as rows of its database and vectors beside it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
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


class StoredEntries:
    """Reads and writes entries, inside a transaction of the database.

    Args:
        vectors: the file with their keys and values.
    """

    def __init__(self, vectors: VectorFile) -> None:
        self.vectors = vectors

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
        end = self.vectors.append(vectors, end)
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
            both = self._vector(fact.id, layer, start, d_ffn + d_model, content)
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
        """Takes out a fact's entries for all weights; its vectors stay in the file, unused."""
        connection.execute("DELETE FROM entries WHERE fact = ?", (fact,))

    def _vector(self, fact: str, layer: int, start: int, width: int, content: str) -> Tensor:
        solve = "solve(..., anew=True) writes it anew"
        try:
            both = self.vectors.read(start, width)
        except ValueError as error:
            raise KnowledgeBaseError(f"{error} for the entry of fact {fact!r} at layer {layer}: {solve}") from None
        if checksum(both) != content:
            raise KnowledgeBaseError(
                f"{self.vectors.path} is damaged at the entry of fact {fact!r} at layer {layer}: {solve}"
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
