"""Which of many requests, made one after another, are in force: later ones may contradict or repeat earlier ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from corrigenda import Fact


@dataclass(frozen=True)
class Standing:
    """Requests 0 .. t-1 sorted by what became of them, as indices in order.

    Attributes:
        in_force: the last word on what they ask for.
        overwritten: contradicted by a later request: the same subject and the same prompt or relation, another object.
        repeated: asked for again later in the same words; only the last time counts.
    """

    in_force: tuple[int, ...]
    overwritten: tuple[int, ...]
    repeated: tuple[int, ...]


def standing(facts: Sequence[Fact]) -> Standing:
    """What became of each request when all of them were made in order.

    The last request about a subject's property decides, also when an editor failed at it: an earlier request that it
    contradicts is overwritten, and whether the model still follows that one says nothing good or bad about an edit.
    """
    overwritten, repeated = [], []
    for number, fact in enumerate(facts):
        later = [other for other in facts[number + 1 :] if _same_question(fact, other)]
        if later and _object(later[-1]) != _object(fact):
            overwritten.append(number)
        elif any(_repeats(fact, other) for other in later):
            repeated.append(number)
    out = {*overwritten, *repeated}
    return Standing(tuple(n for n in range(len(facts)) if n not in out), tuple(overwritten), tuple(repeated))


def repeats_what_holds(earlier: Sequence[Fact], fact: Fact) -> int | None:
    """The number of the earlier request that a fact merely repeats, if that one is still in force; else None."""
    same = [number for number, other in enumerate(earlier) if _same_question(other, fact)]
    if not same or _object(earlier[same[-1]]) != _object(fact):
        return None
    return next((number for number in reversed(same) if _repeats(earlier[number], fact)), None)


def untouched(fixed: Sequence[Fact], facts: Sequence[Fact]) -> list[Fact]:
    """The fixed locality set: of some other facts, the prompts that name no subject that is edited.

    Facts with neither neighbourhood nor locality prompts left are left out.
    """
    subjects = {fact.subject for fact in facts}

    def names_none(prompt: str) -> bool:
        return not any(subject in prompt for subject in subjects)

    found = []
    for fact in fixed:
        neighbourhood = tuple(prompt for prompt in fact.neighbourhood if names_none(prompt))
        locality = tuple(probe for probe in fact.locality if names_none(probe.prompt))
        if neighbourhood or locality:
            found.append(
                replace(
                    fact, neighbourhood=neighbourhood, locality=locality, paraphrases=(), portability=(), generation=()
                )
            )
    return found


def _same_question(left: Fact, right: Fact) -> bool:
    related = left.relation is not None and left.relation == right.relation
    return left.subject == right.subject and (left.prompt == right.prompt or related)


def _repeats(left: Fact, right: Fact) -> bool:
    return left.subject == right.subject and left.prompt == right.prompt and _object(left) == _object(right)


def _object(fact: Fact) -> str | None:
    return None if fact.target_new is None else fact.target_new.strip()
