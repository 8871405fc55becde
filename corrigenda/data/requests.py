"""What supersedes what: the one rule for requests that repeat, contradict or overwrite earlier ones.

Two requests are about the same thing if they have the same subject and the same relation where both name one, else the
same prompt, all `normalised`. A later one with the same object *repeats* the earlier; one with another object
*supersedes* it, and the earlier no longer counts. An erasure asks for no object: it supersedes what asks for one, and
repeats another erasure. The rule is not transitive, so requests are compared with one another and not sorted into
groups; an index makes that linear in their number.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corrigenda.facts import Fact
from corrigenda.text.words import seen

_TYPED = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "„": '"', "‐": "-", "–": "-", "−": "-"})
"""Quotes and dashes as they are typed for those as they are set; NFKC makes one hyphen of two."""


def normalised(text: str) -> str:
    """A text as the rule compares it: Unicode NFKC, without case, with single spaces and none at the ends.

    Typographic quotes and dashes count as those on a keyboard: "O’Brien" is "O'Brien". What is not seen, as a soft
    hyphen, does not count.
    """
    return " ".join(unicodedata.normalize("NFKC", seen(text)).translate(_TYPED).casefold().split())


@dataclass(frozen=True)
class Request:
    """What a fact asks about, and for, normalised, to be compared; an erasure has no object, and some no relation."""

    subject: str
    prompt: str
    relation: str | None
    object: str | None

    @classmethod
    def of(cls, fact: Fact) -> Request:
        """What a fact requests."""
        return cls(
            normalised(fact.subject),
            normalised(fact.prompt),
            None if fact.relation is None else normalised(fact.relation),
            None if fact.target_new is None else normalised(fact.target_new),
        )

    def same_thing(self, other: Request) -> bool:
        """Whether both are about the same thing, whatever they ask for."""
        return self.subject == other.subject and self.same_relation(other)

    def same_relation(self, other: Request) -> bool:
        """Whether both ask the same of a subject: the same relation where both name one, else by the same prompt."""
        if self.relation is not None and other.relation is not None:
            return self.relation == other.relation
        return self.prompt == other.prompt


class _Last:
    """An index of numbered requests: of those that are about the same thing, the one with the largest number."""

    def __init__(self) -> None:
        self._by_relation: dict[tuple[str, str], int] = {}
        self._by_prompt: dict[tuple[str, str], int] = {}
        self._without_relation: dict[tuple[str, str], int] = {}

    def add(self, number: int, request: Request) -> None:
        prompt = (request.subject, request.prompt)
        _raise(self._by_prompt, prompt, number)
        if request.relation is None:
            _raise(self._without_relation, prompt, number)
        else:
            _raise(self._by_relation, (request.subject, request.relation), number)

    def find(self, request: Request) -> int | None:
        prompt = (request.subject, request.prompt)
        if request.relation is None:
            return self._by_prompt.get(prompt)
        same_relation = self._by_relation.get((request.subject, request.relation), -1)
        number = max(same_relation, self._without_relation.get(prompt, -1))
        return None if number < 0 else number


def _raise(numbers: dict[tuple[str, str], int], key: tuple[str, str], number: int) -> None:
    numbers[key] = max(number, numbers.get(key, -1))


def history(facts: Sequence[Fact], refused: Collection[int] = ()) -> list[dict[str, int]]:
    """For each request what it is to the latest earlier one about the same thing, in the words of edits' reports.

    ``{"repeats": number}`` if that one asks for the same object, ``{"contradicts": number}`` if it asks for another
    (and is superseded), ``{}`` if there is none. The requests of the numbers `refused` are no predecessors: nothing was
    made of them.
    """
    requests = [Request.of(fact) for fact in facts]
    last, found = _Last(), list[dict[str, int]]()
    for number, request in enumerate(requests):
        earlier = last.find(request)
        if earlier is None:
            found.append({})
        else:
            same = requests[earlier].object == request.object
            found.append({"repeats" if same else "contradicts": earlier})
        if number not in refused:
            last.add(number, request)
    return found


@dataclass(frozen=True)
class ActiveRequests:
    """Requests 0 .. t-1 sorted by what became of them, as indices in order.

    Attributes:
        active: the last word on what they are about.
        overwritten: superseded: the last word on the same thing asks for another object.
        repeated: the last word on the same thing asks for the same object; only that one counts.
        last: for each of the overwritten and repeated, the number of the last word on it.
    """

    active: tuple[int, ...]
    overwritten: tuple[int, ...]
    repeated: tuple[int, ...]
    last: Mapping[int, int] = field(default_factory=dict, compare=False)


def select_active(facts: Sequence[Fact]) -> ActiveRequests:
    """What became of each request when all of them were made in order.

    The last word decides, also where an editor failed at it: whether the model still follows a request that was
    superseded says nothing good or bad about an edit.
    """
    requests = [Request.of(fact) for fact in facts]
    last, sorted_out = _Last(), (list[int](), list[int](), list[int]())
    words: dict[int, int] = {}
    for number in reversed(range(len(requests))):
        later = last.find(requests[number])
        if later is not None:
            words[number] = later
        place = 0 if later is None else 1 if requests[later].object != requests[number].object else 2
        sorted_out[place].append(number)
        last.add(number, requests[number])
    active, overwritten, repeated = (tuple(reversed(numbers)) for numbers in sorted_out)
    return ActiveRequests(active, overwritten, repeated, words)


def active_facts(facts: Sequence[Fact]) -> tuple[Fact, ...]:
    """The facts that are the last word on what they are about, in order."""
    return tuple(facts[number] for number in select_active(facts).active)


SUPERSEDED_BY, REPEATED_BY = "superseded_by", "repeated_by"
"""In the report of a fact that an edit of several facts leaves out: the id of the one that stands in its place."""


def reports_together(facts: Sequence[Fact], now: ActiveRequests) -> list[dict[str, Any]]:
    """What one edit of several facts has to report of what they are to one another.

    For each fact: where it is left out, ``{"superseded_by": id}`` or ``{"repeated_by": id}`` of the last word on the
    same thing; that one has ``{"contradicts": id}`` or ``{"repeats": id}`` of the latest it stands for; ``{}`` for the
    others.
    """
    found: list[dict[str, Any]] = [{} for _ in facts]
    for numbers, left_out, kept in (
        (now.overwritten, SUPERSEDED_BY, "contradicts"),
        (now.repeated, REPEATED_BY, "repeats"),
    ):
        for number in numbers:
            last = now.last[number]
            found[number][left_out] = facts[last].id
            found[last][kept] = facts[number].id
    return found


def left_out(report: Mapping[str, Any] | None) -> bool:
    """Whether an edit left a fact out, by what it reports of it, since another stands in its place."""
    return report is not None and (SUPERSEDED_BY in report or REPEATED_BY in report)
