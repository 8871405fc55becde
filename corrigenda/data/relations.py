"""Relations: the kind of subject each has, what answers it, and the forms in which it is asked; written here.

`relations.txt` holds them in paragraphs: "[kind] name -> answer (Wikidata id)", then a form a line, each with one
``{}`` for the subject, which ends where the answer begins. `questions.txt` holds others in the same layout, in more
forms, from which gates learn: so that what is asked by the former is new to them. `subjects.txt` has names of each
kind: "[kind] name; name".
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path

from corrigenda.errors import SettingsError
from corrigenda.facts import SLOT, Fact
from corrigenda.system.files import expanded


@dataclass(frozen=True)
class Relation:
    """A relation.

    Attributes:
        kind: of subjects: "person", "country", "work", ...
        name: the relation's, unique within its kind.
        answer: what kind of thing answers it: "city", "date", ...
        wikidata: its Wikidata id; "" where it has none. Kinds may share one, as P136: what a person plays, or a band.
        forms: ways to ask it, with ``{}`` for the subject.
    """

    kind: str
    name: str
    answer: str
    wikidata: str
    forms: tuple[str, ...]


@cache
def relations() -> tuple[Relation, ...]:
    """All by which edits are probed, always in the same order."""
    return _shipped("relations.txt")


@cache
def relations_to_learn() -> tuple[Relation, ...]:
    """Others, from which gates learn; a few ask what one of `relations` asks, in no form that is there."""
    return _shipped("questions.txt")


def _shipped(name: str) -> tuple[Relation, ...]:
    return _parsed((files("corrigenda.data") / name).read_text(encoding="utf-8"), name)


def relations_in(path: str) -> tuple[Relation, ...]:
    """Those of a file in the layout of `relations.txt`.

    Raises:
        SettingsError: there is no such file, or something in it is no relation and no form.
    """
    try:
        text = Path(expanded(path)).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: the relations cannot be read ({error}); name a text file in UTF-8") from None
    return _parsed(text, path)


@lru_cache(4)
def _parsed(text: str, where: str) -> tuple[Relation, ...]:
    found = []
    for head, *forms in (paragraph.splitlines() for paragraph in re.split(r"\n\s*\n", text.strip())):
        named = re.fullmatch(r"\[(\w+)\] (.+) -> (\w+)(?: \((P\d+)\))?", head)
        if named is None:
            raise SettingsError(f"{where}: {head!r} must be '[kind] name -> answer (P1)', with its forms below it")
        for form in forms:
            if form.count(SLOT) != 1 or form != form.rstrip():
                raise SettingsError(f"{where}: {form!r} needs one '{SLOT}' for the subject, and no space at its end")
        kind, name, answer, wikidata = named.groups()
        found.append(Relation(kind, name, answer, wikidata or "", tuple(forms)))
    return tuple(found)


@cache
def subjects() -> dict[str, tuple[str, ...]]:
    """By kind of subject some names, well known and of many sorts; always in the same order."""
    text = (files("corrigenda.data") / "subjects.txt").read_text(encoding="utf-8")
    lines = (line[1:].split("] ", 1) for line in text.splitlines())
    return {kind: tuple(names.split("; ")) for kind, names in lines}


def relations_of(fact: Fact, among: Sequence[Relation] | None = None) -> tuple[Relation, ...]:
    """Those that a fact may be of: whose Wikidata id it names, or one of whose forms its prompt is; else none."""
    known = relations() if among is None else among
    return tuple(one for one in known if fact.relation in (one.wikidata, one.name) or fact.prompt in one.forms)
