"""The knowledge base's SQLite file: its tables, its transactions, and what can go wrong with it in words.

In WAL mode several processes read while one writes. WAL needs shared memory, so the file must lie on a local disk.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corrigenda.errors import KnowledgeBaseError

PATIENCE = 60.0
"""Seconds that a writer waits for another."""
APPLICATION = 0x436F7272
"""Marks the file as a knowledge base ("Corr")."""
FORMAT = 5
"""The version of the tables."""

# Facts keep the order in which they were last said (`place`). subject, relation, prompt and object are as
# `corrigenda.data.requests` compares them. The vectors, float32 and little-endian, come last: who asks for what stands
# before them reads no page of theirs.
_TABLES = """
CREATE TABLE facts (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    subject TEXT NOT NULL,
    relation TEXT,
    prompt TEXT NOT NULL,
    object TEXT,
    text TEXT NOT NULL,
    request TEXT NOT NULL,
    record TEXT NOT NULL
);
CREATE INDEX facts_by_relation ON facts (subject, relation);
CREATE INDEX facts_by_prompt ON facts (subject, prompt);
CREATE TABLE entries (
    fact TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    layer INTEGER NOT NULL,
    checksum TEXT NOT NULL,
    settings TEXT NOT NULL,
    made TEXT NOT NULL,
    request TEXT NOT NULL,
    key BLOB NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (fact, fingerprint, layer)
);
"""

DAMAGED = "it is damaged: take an earlier copy, or import the facts into a new one"


class Database:
    """An open file; with `create` it is made where there is none.

    Raises FileNotFoundError: there is none, and it is not to be made; KnowledgeBaseError: it is no knowledge base, of a
    later version, damaged, or cannot be read or written.
    """

    def __init__(self, path: Path, create: bool) -> None:
        self.path = path
        if path.is_dir():
            raise KnowledgeBaseError(f"{path} is a folder, and a knowledge base is a file: name a file in it")
        if not path.exists() and not create:
            raise FileNotFoundError(f"no knowledge base at {path}; name another file, or open it with create=True")
        with self._in_words():
            path.parent.mkdir(parents=True, exist_ok=True)
            self.connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
        try:
            with self._in_words():
                self._prepare()
        except BaseException:
            self.connection.close()
            raise

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that writes: all that is done in it comes about, or nothing.

        Raises:
            KnowledgeBaseError: the file cannot be written, or another process writes for longer than `PATIENCE`.
        """
        with self._in_words():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # SQLite ends some by itself, such as those on a full disk
                    self.connection.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """What is read inside the block is of one moment, whatever others write meanwhile."""
        with self._in_words():
            self.connection.execute("BEGIN")
            try:
                yield self.connection
            finally:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")

    def close(self) -> None:
        """Closes the file."""
        self.connection.close()

    def compact(self, unused: float) -> int:
        """Gives the room back to the disk that is of no use, if it is that share of the file; by how many bytes.

        Raises:
            KnowledgeBaseError: the file cannot be written, or is damaged.
        """
        with self._in_words():
            size, pages, free = (
                int(self.connection.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("page_size", "page_count", "freelist_count")
            )
            if not free or free < unused * pages:
                return 0
            self.connection.execute("VACUUM")
            self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            [left] = self.connection.execute("PRAGMA page_count").fetchone()
        return size * (pages - int(left))

    def _prepare(self) -> None:
        # Refuses another program's file before anything in it is changed.
        with self.reading() as connection:
            marks = self._marks()
            empty = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        new = empty and marks == (0, 0)
        if not new:
            self._require(marks)
        self._use_wal()
        self.connection.execute("PRAGMA synchronous=FULL")
        if not new:
            return
        with self.changing() as connection:
            if self._marks() == (0, 0):  # nobody else has made the tables meanwhile
                for statement in _TABLES.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id={APPLICATION}")
                connection.execute(f"PRAGMA user_version={FORMAT}")
        self._require(self._marks())

    def _marks(self) -> tuple[int, int]:
        """Whose file it is, and of which version; zeros where it is new."""
        application, version = (
            int(self.connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("application_id", "user_version")
        )
        return application, version

    def _require(self, marks: tuple[int, int]) -> None:
        application, version = marks
        if application != APPLICATION:
            raise KnowledgeBaseError(f"{self.path} is an SQLite file, but no knowledge base: name another file")
        if version != FORMAT:
            raise KnowledgeBaseError(
                f"{self.path} has format {version}, and this version of Corrigenda reads format {FORMAT}: export the "
                "facts with the version that wrote it, and import them into a new one"
            )

    def _use_wal(self) -> None:
        # SQLite does not wait by itself where two processes ask for this at once.
        until = time.monotonic() + PATIENCE
        while True:
            try:
                [mode] = self.connection.execute("PRAGMA journal_mode=WAL").fetchone()
                break
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(0.01)
        if mode != "wal":
            raise KnowledgeBaseError(
                f"{self.path} cannot be used by several processes (journal mode {mode}): put it on a local disk that "
                "can be written"
            )

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """Gives errors of SQLite and of the system in one line with the file's name."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise KnowledgeBaseError(f"{self.path}: {_WHAT_TO_DO.get(_code(error), str(error))}") from error
        except TypeError as error:  # in a damaged file any cell may hold a value of any type
            raise KnowledgeBaseError(f"{self.path}: {DAMAGED}") from error
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise
            where = error.filename or self.path
            raise KnowledgeBaseError(f"{where}: {error.strerror or error}; nothing was changed") from error


def _code(error: sqlite3.DatabaseError) -> str:
    """SQLite's own name of an error, without what follows the first part; empty where Python does not tell it."""
    name = str(getattr(error, "sqlite_errorname", ""))  # from Python 3.11 on
    return next((code for code in _WHAT_TO_DO if name.startswith(code)), name)


_WHAT_TO_DO = {
    "SQLITE_FULL": "the disk is full; nothing was changed: make room and try again",
    "SQLITE_READONLY": "it cannot be written; nothing was changed: copy it to where you may write",
    "SQLITE_CANTOPEN": "it cannot be opened: you may not read or write it, or its folder",
    "SQLITE_BUSY": f"another process has been writing it for {PATIENCE:.0f} s; nothing was changed: try again",
    "SQLITE_NOTADB": "it is no SQLite file, and so no knowledge base: name another file",
    "SQLITE_CORRUPT": DAMAGED,
}
