"""Two parts of a fact set that share no subject: one to tune an editor on, one to score it on."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, Protocol, get_args

from corrigenda.data.factset import FactSet
from corrigenda.data.read import check_range
from corrigenda.data.requests import normalised
from corrigenda.facts import Fact

Part = Literal["tune", "score"]

TUNE_SHARE = 0.2
"""The share of subjects that is for tuning."""


def part_of(fact: Fact) -> Part:
    """The part that a fact belongs to: by a hash of its subject, so it is the same in every file and every run."""
    digest = hashlib.sha256(normalised(fact.subject).encode()).digest()
    return "tune" if int.from_bytes(digest[:8], "big") < TUNE_SHARE * 2**64 else "score"


def take_part(facts: FactSet, part: Part, limit: int | None = None, offset: int = 0) -> FactSet:
    """The facts of one part, at most `limit` of them from `offset` on.

    Raises ValueError: there is no such part, no fact is left, `limit` or `offset` is out of range, or the part shares a
    fact or subject with the other one.
    """
    check_range(limit, offset)
    if part not in get_args(Part):
        raise ValueError(f"data.part={part}: the parts are {' and '.join(get_args(Part))}, or null for all facts")
    parts: dict[str, list[Fact]] = {name: [] for name in get_args(Part)}
    for fact in facts:
        parts[part_of(fact)].append(fact)
    require_disjoint(parts["tune"], parts["score"])
    kept = parts[part][offset : None if limit is None else offset + limit]
    if not kept:
        raise ValueError(
            f"{facts.name}: the part {part!r} has {len(parts[part])} of the {len(facts)} facts, "
            f"and none is left after offset {offset}"
        )
    return replace(facts, facts=tuple(kept))


def require_disjoint(tuned: Sequence[Fact], scored: Sequence[Fact]) -> None:
    """Checks that no fact that is scored was tuned on.

    Raises:
        ValueError: two of them have the same id, or are about the same subject.
    """
    for fact, what in overlaps(tuned, scored):
        raise ValueError(
            f"fact {fact.id!r} ({fact.subject!r}) would be scored, but {what} is among the {len(tuned)} facts for "
            "tuning; figures on it would be too good (data.part=tune and data.part=score share no subject)"
        )


class Identified(Protocol):
    """What is told apart by an id, and is about a subject: a fact, or what is kept of one."""

    @property
    def id(self) -> str:
        """Unique in its set."""
        ...

    @property
    def subject(self) -> str:
        """The entity that it is about."""
        ...


def overlaps(tuned: Sequence[Identified], scored: Sequence[Fact]) -> list[tuple[Fact, str]]:
    """The facts for scoring that were tuned on, each with what says so: "the id" or "the subject"."""
    ids = {fact.id for fact in tuned}
    subjects = {normalised(fact.subject) for fact in tuned}
    found = []
    for fact in scored:
        if fact.id in ids:
            found.append((fact, "the id"))
        elif normalised(fact.subject) in subjects:
            found.append((fact, "the subject"))
    return found
