"""`StoredFacts`: the table of a knowledge base's facts, in the order in which they were said."""

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from corrigenda.data.requests import Request, normalised
from corrigenda.facts import Fact
from corrigenda.knowledge.entries import request_hash
from corrigenda.knowledge.stored import fact_of


class StoredFacts:
    """The facts of a base; each method is a part of what the caller's connection reads or changes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def count(self, connection: sqlite3.Connection) -> int:
        """How many there are, in force or not."""
        return int(connection.execute("SELECT count(*) FROM facts").fetchone()[0])

    def find(self, connection: sqlite3.Connection, subject: str | None, text: str | None) -> tuple[Fact, ...]:
        """Those of a subject and with a text, in order; None for any."""
        wanted = {"subject = ?": subject, "instr(text, ?) > 0": text}
        asked = {condition: normalised(value) for condition, value in wanted.items() if value is not None}
        where = f"WHERE {' AND '.join(asked)} " if asked else ""
        rows = connection.execute(f"SELECT record FROM facts {where}ORDER BY place", [*asked.values()]).fetchall()
        return tuple(fact_of(record) for (record,) in rows)

    def get(self, connection: sqlite3.Connection, id: str) -> Fact:
        """The fact with an id (LookupError: there is none)."""
        return fact_of(self._column(connection, "record", id))

    def request(self, connection: sqlite3.Connection, id: str) -> str:
        """What is asked for by the fact with an id: its `request_hash` (LookupError: there is none)."""
        return self._column(connection, "request", id)

    def requests(self, connection: sqlite3.Connection) -> dict[str, str]:
        """By id: the hash of what is asked for (`request_hash`)."""
        return dict(connection.execute("SELECT id, request FROM facts").fetchall())

    def require_new(self, connection: sqlite3.Connection, ids: Sequence[str]) -> None:
        """Refuses ids that there are (ValueError)."""
        for id in ids:
            if connection.execute("SELECT 1 FROM facts WHERE id = ?", (id,)).fetchone():
                raise self._known(id)

    def delete(self, connection: sqlite3.Connection, id: str) -> str:
        """Takes one out, and gives its record (LookupError: there is none)."""
        record = self._column(connection, "record", id)
        connection.execute("DELETE FROM facts WHERE id = ?", (id,))
        return record

    def add(self, connection: sqlite3.Connection, fact: Fact) -> dict[str, str]:
        """Writes a fact after all others, and tells what it is to the latest earlier one about the same thing."""
        request = Request.of(fact)
        # All that can be about the same thing, by the indices; `Request` decides.
        rows = connection.execute(
            "SELECT id, subject, prompt, relation, object FROM facts "
            "WHERE subject = ?1 AND (prompt = ?2 OR relation = ?3) ORDER BY place DESC",
            (request.subject, request.prompt, request.relation),
        ).fetchall()
        earlier = next(((id, one) for id, *said in rows if request.same_thing(one := Request(*said))), None)
        text = [fact.statement, fact.target_new or "", fact.target_true or "", *fact.aliases, *fact.paraphrases]
        try:
            connection.execute(
                "INSERT INTO facts (id, subject, relation, prompt, object, text, request, record) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    fact.id,
                    request.subject,
                    request.relation,
                    request.prompt,
                    request.object,
                    normalised("\n".join(text)),
                    request_hash(fact),
                    json.dumps(fact.to_dict(), ensure_ascii=False, allow_nan=False),
                ),
            )
        except sqlite3.IntegrityError:
            raise self._known(fact.id) from None
        if earlier is None:
            return {}
        return {"repeats" if earlier[1].object == request.object else "contradicts": earlier[0]}

    def _column(self, connection: sqlite3.Connection, column: str, id: str) -> str:
        row = connection.execute(f"SELECT {column} FROM facts WHERE id = ?", (id,)).fetchone()
        if row is None:
            raise LookupError(f"{self._path}: no fact has the id {id!r}; find() lists them")
        return str(row[0])

    def _known(self, id: str) -> ValueError:
        return ValueError(f"{self._path}: a fact with the id {id!r} is there already; update() changes it")
