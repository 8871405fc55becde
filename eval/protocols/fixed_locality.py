"""The fixed locality set: prompts that nobody edits, the same at every point of a sequence of edits."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from corrigenda import Fact

logger = logging.getLogger(__name__)


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


def fixed_locality(given: Sequence[Fact], facts: Sequence[Fact]) -> list[Fact]:
    """The fixed locality set: of some other facts the prompts that name no edited subject.

    Args:
        given: the other facts; none where no such set is wanted.
        facts: the facts that are edited.

    Raises:
        ValueError: every prompt of the facts given names an edited subject, so that the set would be empty.
    """
    left = untouched(given, facts)
    if left or not given:
        return left
    if any(fact.neighbourhood or fact.locality for fact in given):
        raise ValueError(
            f"the fixed locality set is empty: all neighbourhood and locality prompts of its {len(given)} facts (the "
            f"first is {given[0].id!r}) name a subject that is edited; take other facts for it (job.locality.path=, "
            "job.locality.offset=), or do without it (job.locality.limit=0)"
        )
    logger.warning("the fixed locality set is empty: its %d facts have no neighbourhood or locality prompt", len(given))
    return left
