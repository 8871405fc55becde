"""Relations: the kind of subject each has, what answers it, and the forms in which it is asked; written here.

`relations.txt` holds them in paragraphs: "[kind] name -> answer (Wikidata id)", then a form a line, each with one
``{}`` for the subject, which ends where the answer begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from corrigenda.facts import Fact


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
    """All that ship, always in the same order."""
    text = (files("corrigenda.data") / "relations.txt").read_text(encoding="utf-8")
    found = []
    for head, *forms in (paragraph.splitlines() for paragraph in text.strip().split("\n\n")):
        named = re.fullmatch(r"\[(\w+)\] (.+) -> (\w+)(?: \((P\d+)\))?", head)
        assert named is not None, head
        kind, name, answer, wikidata = named.groups()
        found.append(Relation(kind, name, answer, wikidata or "", tuple(forms)))
    return tuple(found)


def relations_of(fact: Fact) -> tuple[Relation, ...]:
    """Those that a fact may be of: whose Wikidata id it names, or one of whose forms its prompt is; else none."""
    return tuple(one for one in relations() if fact.relation in (one.wikidata, one.name) or fact.prompt in one.forms)
