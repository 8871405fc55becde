"""`KnowledgeBase`: a list of facts that is kept, with what was solved for each, on disk beside a model.

One file, an SQLite database: the facts and, for each solved entry, its key and value, its layer, settings, weights and
time. Several processes may have a base open; writers wait for one another. Which facts are in force is asked of the
whole list (`corrigenda.data.requests`): when a fact that superseded another is deleted, the other is in force again.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from corrigenda.data.plain import write_facts
from corrigenda.data.read import read_facts
from corrigenda.data.requests import active_facts
from corrigenda.edits.edit import Edit
from corrigenda.errors import KnowledgeBaseError
from corrigenda.facts import Fact, as_fact, as_facts
from corrigenda.knowledge.database import Database
from corrigenda.knowledge.entries import Compiler, Entry, Solver, request_hash, require_one_setting, solve_facts
from corrigenda.knowledge.stored import StoredEntries, fact_of
from corrigenda.knowledge.stored_facts import StoredFacts
from corrigenda.language_model import LanguageModel
from corrigenda.settings.checked import AtLeastOne, Share, check_value
from corrigenda.system.files import expanded
from corrigenda.system.progress import counted, track


class KnowledgeBase:
    """Facts and their solved entries, in a file; `KnowledgeBase.open` gives one.

    ::

        with KnowledgeBase.open("corrections.kb") as kb:
            kb.insert(facts)
            kb.solve(lm, solver)                  # what is in force and not solved yet
            edit = kb.compile(lm, Folding(...))   # of all that is in force

    Attributes:
        path: of the database.
    """

    def __init__(self, database: Database) -> None:
        self.path = database.path
        self._database = database
        self._facts = StoredFacts(database.path)
        self._entries = StoredEntries(database.path)

    @classmethod
    def open(cls, path: str | Path, create: bool = True) -> KnowledgeBase:
        """Opens a knowledge base; what this takes does not grow with it.

        Args:
            path: of the database, on a local disk.
            create: whether to make an empty one where there is none.

        Raises:
            FileNotFoundError: there is none, and it is not to be made.
            KnowledgeBaseError: the file is no knowledge base, damaged, or cannot be read or written.
        """
        return cls(Database(expanded(path), create))

    def close(self) -> None:
        """Closes the file."""
        self._database.close()

    def __enter__(self) -> KnowledgeBase:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """How many facts it has, in force or not."""
        with self._database.reading() as connection:
            return self._facts.count(connection)

    # -- the facts

    @property
    def facts(self) -> tuple[Fact, ...]:
        """All facts, in the order in which they were last said."""
        return self.find()

    @property
    def active(self) -> tuple[Fact, ...]:
        """The facts that are the last word on what they are about, in order."""
        return active_facts(self.facts)

    def find(self, subject: str | None = None, text: str | None = None) -> tuple[Fact, ...]:
        """Facts in order.

        Args:
            subject: of this subject, without regard to case and spacing; None for any.
            text: with this text in the statement, an object, an alias or a paraphrase; None for any.
        """
        for name, value in (("subject", subject), ("text", text)):
            check_value("KnowledgeBase.find", name, value, str | None)
        with self._database.reading() as connection:
            return self._facts.find(connection, subject, text)

    def insert(
        self, facts: Sequence[Fact], lm: LanguageModel | None = None, solver: Solver | None = None
    ) -> list[dict[str, str]]:
        """Adds facts: all of them, or none where anything goes wrong.

        Args:
            facts: they are said in this order, after all that the base has.
            lm: with `solver`: the model; edits that are applied are lifted meanwhile.
            solver: solves them first, so that they are added with their entries; None to add them unsolved. What a
                later one of them supersedes is not solved.

        Returns:
            for each fact ``{"repeats": id}`` or ``{"contradicts": id}`` of the latest earlier one about the same thing,
            which is no longer in force; ``{}`` where there is none.

        Raises:
            KnowledgeBaseError: the file cannot be written.
            ValueError: an id is in the base already, or twice in the list; or the solver gave what does not fit.
        """
        as_facts("KnowledgeBase.insert", facts)
        seen: set[str] = set()
        for fact in facts:
            if fact.id in seen:
                raise ValueError(
                    f"{self.path}: two of the facts to insert have the id {fact.id!r}; nothing was changed"
                )
            seen.add(fact.id)
        with self._database.reading() as connection:  # before the time of a solve is spent
            self._facts.require_new(connection, [fact.id for fact in facts])
        solved = solve_facts(lm, solver, active_facts(facts))
        with self._database.changing() as connection:
            reports = [self._facts.add(connection, fact) for fact in facts]
            self._entries.write(connection, solved)
        return reports

    def update(self, fact: Fact, lm: LanguageModel | None = None, solver: Solver | None = None) -> dict[str, str]:
        """Puts a fact in the place of the one with its id; it counts as said now, after all others.

        Its entries are kept if the subject, the prompt and the new object are the same.

        Args:
            fact: with the id of the one that it replaces.
            lm: with `solver`, as for `insert`.
            solver: solves it first, if what is asked for changed.

        Returns:
            as `insert` for this fact.

        Raises:
            KnowledgeBaseError: the file cannot be written.
            LookupError: no fact has this id.
            ValueError: the solver gave what does not fit.
        """
        as_fact("KnowledgeBase.update", fact)
        with self._database.reading() as connection:
            before = self._facts.get(connection, fact.id)
        changed = request_hash(before) != request_hash(fact)
        solved = solve_facts(lm, solver, [fact] if changed else [])
        with self._database.changing() as connection:
            request = self._facts.request(connection, fact.id)
            self._facts.delete(connection, fact.id)
            if request != request_hash(fact):
                self._entries.delete(connection, fact.id)
            report = self._facts.add(connection, fact)
            self._entries.write(connection, solved)
        return report

    def delete(self, id: str) -> Fact:
        """Takes a fact out, with its entries.

        Returns:
            the fact.

        Raises:
            KnowledgeBaseError: the file cannot be written.
            LookupError: no fact has this id.
        """
        with self._database.changing() as connection:
            record = self._facts.delete(connection, id)
            self._entries.delete(connection, id)
        return fact_of(record)

    def replace(self, facts: Sequence[Fact]) -> None:
        """Makes these the facts of the base, in this order; whatever else it has goes, with its entries.

        Entries are kept where the subject, the prompt and the new object are the same. It is one change: all of it
        comes about, or nothing.

        Raises:
            KnowledgeBaseError: the file cannot be written.
            ValueError: two of the facts have one id.
        """
        as_facts("KnowledgeBase.replace", facts)
        with self._database.changing() as connection:
            left = self._facts.requests(connection)
            connection.execute("DELETE FROM facts")
            for fact in facts:
                before = left.pop(fact.id, None)
                if before is not None and before != request_hash(fact):
                    self._entries.delete(connection, fact.id)
                self._facts.add(connection, fact)
            for id in left:
                self._entries.delete(connection, id)

    def export(self, path: str | Path) -> int:
        """Writes all facts in order as JSON Lines, which `read_facts` reads; entries are not in it.

        Returns:
            how many.
        """
        facts = self.facts
        write_facts(expanded(path), facts)
        return len(facts)

    def import_(self, path: str | Path, schema: str = "plain") -> list[dict[str, str]]:
        """Inserts the facts of a file, all or none; their entries are solved anew.

        Args:
            path: a file as `read_facts` takes it.
            schema: its schema; "auto" to recognise it.

        Returns:
            as `insert`.

        Raises:
            FileNotFoundError: there is no such file.
            RecordError: a record is damaged; it names the file and the line.
            ValueError: an id is in the base already.
        """
        return self.insert(read_facts(Path(path), schema=schema).facts)

    # -- the entries

    @property
    def solved_on(self) -> frozenset[str]:
        """The fingerprints of the weights on which there are entries."""
        with self._database.reading() as connection:
            return self._entries.fingerprints(connection)

    def unsolved(
        self, lm: LanguageModel, settings: Mapping[str, Any] | None = None, facts: Sequence[Fact] | None = None
    ) -> tuple[Fact, ...]:
        """The facts in force that have no entry for this model's weights.

        Args:
            lm: the model.
            settings: of the solver: entries of other settings do not count; None to count all.
            facts: a list that may take the place of the base's own (`replace`): what of it would have to be solved.
        """
        active = active_facts(self.facts if facts is None else facts)
        with self._database.reading() as connection:
            solved = self._entries.solved(connection, active, lm.fingerprint, settings)
        return tuple(fact for fact in active if fact.id not in solved)

    def solve(
        self,
        lm: LanguageModel,
        solver: Solver,
        batch: int = 32,
        anew: bool = False,
    ) -> int:
        """Solves the facts that are in force and have no entry for this model's weights, and keeps the entries.

        An entry that is damaged counts as none, which a warning says; so does one of other settings than the solver's,
        where it says its own (``solver.settings(lm)``, as an editor's does).
        What is solved is kept batch by batch, so that a process that was killed goes on where it was. A fact that
        another process changed meanwhile is left to the next call.

        Args:
            lm: the model; edits that are applied are lifted meanwhile.
            solver: solves them.
            batch: how many at once.
            anew: whether to solve again what has entries.

        Returns:
            how many facts were solved.

        Raises:
            KnowledgeBaseError: the file cannot be written.
            ValueError: the solver gave what does not fit.
        """
        check_value("KnowledgeBase.solve", "batch", batch, AtLeastOne)
        settings = getattr(solver, "settings", None)
        facts = self.active if anew else self._without_entries(lm, settings and settings(lm))
        batches = [facts[start : start + batch] for start in range(0, len(facts), batch)]
        for part in track(batches, f"Solving facts of {self.path.name}") if batches else ():
            solved = solve_facts(lm, solver, part)
            with self._database.changing() as connection:
                self._entries.write(connection, solved)
        return len(facts)

    def entries(self, lm: LanguageModel, facts: Sequence[Fact]) -> list[Entry]:
        """The entries of some facts for this model's weights, fact by fact and layer by layer.

        Raises:
            KnowledgeBaseError: an entry is damaged.
            WrongModelError: a fact was solved on other weights only.
            ValueError: a fact was not solved, or its text in the file is another than the one that was solved for.
        """
        with self._database.reading() as connection:
            return [entry for fact in facts for entry in self._entries.read(connection, lm, fact)]

    def compact(self, unused: Share = 0.0) -> int:
        """Makes the file smaller by the room that deleted entries, and those that were solved again, leave in it.

        What comes next would use that room, too. What is read meanwhile is read as it was; who wants to write waits.

        Args:
            unused: only if at least this share of the file is of no use any more.

        Returns:
            by how many bytes less it takes.

        Raises:
            KnowledgeBaseError: the file cannot be written, or is damaged; nothing is changed.
        """
        return self._database.compact(check_value("KnowledgeBase.compact", "unused", unused, Share))

    def compile(self, lm: LanguageModel, how: Compiler) -> Edit:
        """An edit that makes the model answer as the facts in force say.

        It is a function of the model and of the set of these facts: the bits do not depend on the order of what led
        there, nor on facts that were deleted.

        Args:
            lm: the model; edits that are applied are lifted meanwhile.
            how: makes the edit, e.g. `corrigenda.knowledge.attached.Attached`.

        Raises:
            KnowledgeBaseError: an entry is damaged.
            WrongModelError: the base was solved on other weights.
            ValueError: a fact was not solved, or not as it stands in the file now; or two were solved with different
                settings.
        """
        facts = sorted(self.active, key=lambda fact: fact.id)
        entries = self.entries(lm, facts)
        require_one_setting(entries, self.path)
        with lm.edits.suspended():
            return how(lm, facts, entries)

    # -- one step each

    def _without_entries(self, lm: LanguageModel, settings: Mapping[str, Any] | None) -> tuple[Fact, ...]:
        """The facts in force that have to be solved, those whose entries are damaged among them."""
        active, damaged = self.active, dict[str, str]()
        unsolved = {fact.id for fact in self.unsolved(lm, settings, active)}
        for fact in active:
            if fact.id not in unsolved:
                try:
                    self.entries(lm, [fact])
                except KnowledgeBaseError as error:
                    damaged[fact.id] = str(error)
                except ValueError:
                    pass  # another process changed it meanwhile
        if damaged:
            first = next(iter(damaged.values()))
            warnings.warn(f"{counted(len(damaged), 'fact')} to solve anew: {first}", stacklevel=3)
        return tuple(fact for fact in active if fact.id in unsolved or fact.id in damaged)
