"""The fixed locality set: prompts that nobody edits, the same at every point of a sequence of edits."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from corrigenda import Fact
from corrigenda.facts import Probe
from corrigenda.text.words import Phrases

logger = logging.getLogger(__name__)

Fixed: TypeAlias = Sequence[Fact] | Mapping[str, Sequence[Fact]]
"""Facts whose neighbourhood and locality prompts make the fixed locality set.

By name where its parts, one from each data set, say, are reported apart, too: one mean says little where their prompts
are of very different kinds."""


def parts_of(fixed: Fixed) -> dict[str, list[Fact]]:
    """The facts by the name of their part; without parts all of them under the empty name."""
    parts = fixed if isinstance(fixed, Mapping) else {"": fixed}
    return {name: list(facts) for name, facts in parts.items()}


def untouched(fixed: Sequence[Fact], facts: Sequence[Fact]) -> list[Fact]:
    """The fixed locality set: of some other facts, the prompts that name no subject that is edited.

    Facts with neither neighbourhood nor locality prompts left are left out.
    """
    subjects = Phrases([fact.subject for fact in facts])
    found = []
    for fact in fixed:
        neighbourhood = tuple(prompt for prompt in fact.neighbourhood if not subjects.within(prompt))
        locality = tuple(probe for probe in fact.locality if not subjects.within(probe.prompt))
        if neighbourhood or locality:
            found.append(
                replace(
                    fact, neighbourhood=neighbourhood, locality=locality, paraphrases=(), portability=(), generation=()
                )
            )
    return found


def own_prompts(facts: Sequence[Fact]) -> list[Fact]:
    """The same facts, whose own prompt is their locality prompt now, and which have no other prompts.

    Of facts that nobody edits these are prompts of the same form as the edits. Measured like any locality prompt, they
    tell whether an edit answers what only looks like what was edited.
    """
    found = []
    for fact in facts:
        probe = Probe(fact.statement, str(fact.target_new if fact.target_true is None else fact.target_true))
        found.append(replace(fact, locality=(probe,), neighbourhood=(), paraphrases=(), portability=(), generation=()))
    return found


def fixed_locality(given: Sequence[Fact], facts: Sequence[Fact]) -> list[Fact]:
    """The fixed locality set: of the facts `given` the prompts that name no edited subject.

    Raises ValueError: every one names an edited subject, so that the set would be empty.
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
