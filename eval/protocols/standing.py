"""The fixed locality set: prompts that nobody edits, the same at every point of a sequence of edits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from corrigenda import Fact


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
