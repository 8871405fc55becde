"""`StoredEntries`: the solved entries of a knowledge base, as rows of its database."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from torch import Tensor

from corrigenda.errors import KnowledgeBaseError, WrongModelError
from corrigenda.facts import Fact
from corrigenda.knowledge.database import DAMAGED
from corrigenda.knowledge.entries import Entry, canonical, solved_for
from corrigenda.language_model import LanguageModel

Solved = Sequence[tuple[Fact, Sequence[Entry]]]
"""Facts, each with its entries for one model."""


class _Row(NamedTuple):
    """A row of the table of entries.

    Its checksum is of all that stands here, and of how many entries the fact has.
    """

    fact: str
    fingerprint: str
    layer: int
    checksum: str
    settings: str
    made: str
    request: str
    key: bytes
    value: bytes

    def sealed(self, n: int) -> _Row:
        """The row with the checksum that it has as one of so many of its fact."""
        said = [n, self.fact, self.fingerprint, self.layer, self.settings, self.made, self.request, len(self.key)]
        digest = xxhash.xxh3_64(json.dumps(said).encode())
        digest.update(self.key)
        digest.update(self.value)
        return self._replace(checksum=digest.hexdigest())


def _packed(vector: Tensor) -> bytes:
    """The numbers of a vector as float32, little-endian."""
    return vector.numpy().astype("<f4", copy=False).tobytes()


def _vector(packed: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(packed, dtype="<f4").astype(np.float32))  # a copy, in this machine's order


class StoredEntries:
    """Reads and writes entries, inside a transaction of the database; `path` is its file, for messages."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, connection: sqlite3.Connection, solved: Solved) -> None:
        """Writes entries, in place of earlier ones for the same weights.

        Those of facts that are not in the database as they were solved are left out: somebody changed these meanwhile.
        """
        for fact, entries in solved:
            row = connection.execute("SELECT record FROM facts WHERE id = ?", (fact.id,)).fetchone()
            there = None if row is None else fact_of(row[0])
            if there is None or any(
                solved_for(there, e.settings_json) != solved_for(fact, e.settings_json) for e in entries
            ):
                continue
            for fingerprint in {entry.fingerprint for entry in entries}:
                connection.execute("DELETE FROM entries WHERE fact = ? AND fingerprint = ?", (fact.id, fingerprint))
            for entry in entries:
                how = entry.settings_json, entry.made, solved_for(fact, entry.settings_json)
                vectors = _packed(entry.key), _packed(entry.value)
                new = _Row(fact.id, entry.fingerprint, entry.layer, "", *how, *vectors).sealed(len(entries))
                connection.execute(f"INSERT INTO entries VALUES ({', '.join('?' * len(new))})", new)

    def read(self, connection: sqlite3.Connection, lm: LanguageModel, fact: Fact) -> list[Entry]:
        """A fact's entries for a model's weights, layer by layer.

        Raises:
            KnowledgeBaseError: an entry is damaged.
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
            try:
                whole = row.sealed(len(rows)) == row
            except TypeError:  # a damaged row has whatever in it
                whole = False
            if not whole:
                raise KnowledgeBaseError(
                    f"{self._path}: the entry of fact {fact.id!r} at layer {row.layer} is damaged: solve() solves it "
                    "anew"
                )
            if row.request != solved_for(fact, row.settings):
                raise ValueError(
                    f"fact {fact.id!r} ({fact.statement!r:.80}) was solved for when its text was another: solve() "
                    "solves it anew"
                )
            vectors = _vector(row.key), _vector(row.value)
            found.append(Entry(fact.id, row.layer, *vectors, lm.fingerprint, json.loads(row.settings), row.made))
        return found

    def solved(
        self,
        connection: sqlite3.Connection,
        facts: Sequence[Fact],
        fingerprint: str,
        settings: Mapping[str, Any] | None = None,
    ) -> set[str]:
        """The ids of those facts that have entries, for weights (and by settings), as they stand now."""
        rows = connection.execute(
            "SELECT DISTINCT fact, settings, request FROM entries WHERE fingerprint = ?", (fingerprint,)
        )
        wanted, by_id = None if settings is None else canonical(settings), {fact.id: fact for fact in facts}
        return {
            id_
            for id_, said, request in rows
            if id_ in by_id and wanted in (None, said) and request == solved_for(by_id[id_], said)
        }

    def fingerprints(self, connection: sqlite3.Connection) -> frozenset[str]:
        """Of which weights there are entries."""
        return frozenset(one for (one,) in connection.execute("SELECT DISTINCT fingerprint FROM entries"))

    def delete(self, connection: sqlite3.Connection, fact: str) -> None:
        """Takes out a fact's entries for all weights."""
        connection.execute("DELETE FROM entries WHERE fact = ?", (fact,))

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
