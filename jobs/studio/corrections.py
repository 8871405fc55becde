"""`Corrections`: the list that a studio works on, which lies on the disk at every moment as ``job=build`` reads it."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import RLock

from corrigenda import Fact
from corrigenda.data import FactSet, read_facts, write_facts
from corrigenda.data.fields import template
from corrigenda.errors import SettingsError
from corrigenda.facts import SLOT
from corrigenda.system.progress import counted


def fact_of(
    sentence: str, subject: str, target_new: str, target_true: str = "", paraphrases: str = "", neighbourhood: str = ""
) -> Fact:
    """A fact as a person writes it down: a sentence up to where the answer begins, with the subject, or ``{}``, in it.

    Paraphrases and neighbourhood prompts are one a line. Raises ValueError: a part is missing, or the sentence does not
    hold the subject; or as `Fact` says.
    """
    sentence, subject, target_new = sentence.strip(), subject.strip(), target_new.strip()
    for what, text in (("the sentence", sentence), ("whom it is about", subject), ("the new answer", target_new)):
        if not text:
            raise ValueError(f"{what} is empty; write it down")
    if SLOT not in sentence and subject not in sentence:
        raise ValueError(f"the sentence does not hold {subject!r}, which it is about; write it there in the same way")
    prompt = sentence if SLOT in sentence else template({"sentence": sentence}, "sentence", subject)
    asked, others = _lines(paraphrases), _lines(neighbourhood)
    return Fact(subject, prompt, target_new, target_true.strip() or None, paraphrases=asked, neighbourhood=others)


class Corrections:
    """A list of facts in a .jsonl file, which need not be there yet.

    What another program writes there is seen, and never written over unseen. Raises SettingsError: it is another kind
    of file; ValueError: it is no list; the message names the line.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix != ".jsonl" or path.is_dir():
            raise SettingsError(f"job.list={path}: the list is kept as a .jsonl file; name one, and import other files")
        self.path = path
        self.removed: list[tuple[int, Fact]] = []
        self._facts: tuple[Fact, ...] = ()
        self._seen: tuple[int, int, int] | None = None
        self._lock = RLock()
        self.facts  # noqa: B018 - a file that is no list is refused at once

    @property
    def seen(self) -> tuple[int, int, int] | None:
        """Another value whenever the file is another; None where there is none."""
        found = self.path.stat() if self.path.is_file() else None
        return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """The list as it lies on the disk."""
        with self._lock:
            if (seen := self.seen) != self._seen:
                blank = seen is None or not self.path.read_bytes().strip()
                self._facts = () if blank else read_facts(self.path, schema="plain").facts
                self._seen = seen
            return self._facts

    def put(self, fact: Fact, place: Fact | None = None) -> None:
        """Adds a fact; or puts it in the place of another, of which it keeps the id and what is still true.

        Args:
            fact: as `fact_of` makes it.
            place: the fact that was shown and changed; None for a new one.

        Raises:
            LookupError: it is not in the list any more, or is another by now.
        """

        def change(facts: list[Fact]) -> list[Fact]:
            if place is None:
                return [*facts, _named(fact, facts)]
            there = _place(facts, place.id)
            if facts[there] != place:
                raise LookupError(f"the correction {place.id!r} was changed meanwhile; press Change again to see it")
            written = {name for name in _WRITTEN if getattr(fact, name) != _typed(getattr(place, name))}
            gone = {
                *written,
                *(_OF_THE_ANSWER if "target_new" in written else ()),
                *(_OF_THE_PROMPT if {"subject", "prompt"} & written else ()),
                *(_OF_THE_SUBJECT if "subject" in written else ()),
            }
            kept = {name: value for name, value in place.to_dict().items() if name not in gone}
            facts[there] = Fact.from_dict(kept | {k: v for k, v in fact.to_dict().items() if k in written})
            return facts

        self._change(change)

    def remove(self, place: str) -> None:
        """Takes the fact with an id out; `put_back` undoes it. Raises LookupError: there is no fact of that id."""
        gone: list[tuple[int, Fact]] = []

        def change(facts: list[Fact]) -> list[Fact]:
            there = _place(facts, place)
            gone.append((there, facts.pop(there)))
            return facts

        self._change(change)
        self.removed += gone

    def put_back(self) -> None:
        """Puts the fact back that was removed last, under another id where its own is taken; nothing where none was."""

        def change(facts: list[Fact]) -> list[Fact]:
            if fact in facts:
                return facts
            taken = any(fact.id == other.id for other in facts)
            return [*facts[:there], _named(fact, facts) if taken else fact, *facts[there:]]

        with self._lock:
            if self.removed:
                there, fact = self.removed[-1]
                self._change(change)
                self.removed.pop()  # after it is on the disk: a failure loses nothing

    def take_in(self, path: Path) -> str:
        """Adds the facts of a file of any schema that `read_facts` knows; says what became of them.

        Raises:
            ValueError: it is no list of facts; as `read_facts` says.
        """
        new = read_facts(path).facts
        left: list[str] = []

        def change(facts: list[Fact]) -> list[Fact]:
            there = {fact.id: fact for fact in facts}
            left.extend(fact.id for fact in new if there.get(fact.id, fact) != fact)
            return [*facts, *(fact for fact in new if fact.id not in there)]

        before = len(self.facts)
        self._change(change)
        said = f"{counted(len(self.facts) - before, 'correction')} added of {len(new)} in {path.name}"
        return f"{said}; left out, since others have their ids: {', '.join(left[:5])}" if left else said

    def _change(self, change: Callable[[list[Fact]], list[Fact]]) -> None:
        with self._lock:
            facts = FactSet(self.path.name, tuple(change(list(self.facts)))).facts
            write_facts(self.path, facts)
            self._facts, self._seen = facts, self.seen


_WRITTEN = ("subject", "prompt", "target_new", "target_true", "paraphrases", "neighbourhood")
"""What a person writes down of a fact (`fact_of`)."""
_OF_THE_ANSWER = ("aliases", "portability", "reversals")
"""What is not true of another answer: its spellings, what follows from it, and what names it."""
_OF_THE_PROMPT = ("relation", "frames", "negations", "reversals", "same_subject")
"""What is not true of another subject or prompt."""
_OF_THE_SUBJECT = ("other_names", "portability", "generation")
"""What is not true of another subject."""


def shown(fact: Fact) -> dict[str, str]:
    """A fact as a person reads and changes it, by the names of `fact_of`."""
    lines = {name: "\n".join(getattr(fact, name)) for name in ("paraphrases", "neighbourhood")}
    answers = {name: getattr(fact, name) or "" for name in ("target_new", "target_true")}
    return {"sentence": fact.prompt, "subject": fact.subject, **answers, **lines}


def _typed(value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
    """What `fact_of` makes of a field that is left as it is `shown`: a line break in a prompt would make two of it."""
    if isinstance(value, tuple):
        return _lines("\n".join(value))
    return value and value.strip()


def _lines(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.splitlines())))


def _place(facts: Sequence[Fact], place: str) -> int:
    found = [number for number, fact in enumerate(facts) if fact.id == place]
    if not found:
        raise LookupError(f"there is no correction {place!r} any more; somebody removed it")
    return found[0]


def _named(fact: Fact, facts: Sequence[Fact]) -> Fact:
    """The fact with an id that a person can read, of its subject: by it a later change is known as one."""
    base = re.sub(r"\W+", "-", fact.subject.casefold()).strip("-") or "fact"
    taken = {other.id for other in facts}
    ids = (base, *(f"{base}-{number}" for number in range(2, len(facts) + 3)))
    return Fact.from_dict(fact.to_dict() | {"id": next(one for one in ids if one not in taken)})
