"""The prompts of facts about other subjects: unrelated prompts in the form of the edits themselves."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.data.embedded import embedded_facts
from corrigenda.prompts import encode
from editing.memory_based.wise.coordinates import Coordinates
from editing.memory_based.wise.unrelated import run_unrelated

OtherSubject = tuple[str, Tensor]
"""A subject, and the coefficients of some fact's prompt about it, (its tokens but the first, d_ffn)."""


def other_subjects(
    lm: LanguageModel,
    layer: int,
    coordinates: Coordinates,
    facts: Mapping[int, Fact],
    edited: Collection[str],
    each: int,
    seed: int,
) -> dict[int, list[OtherSubject]]:
    """For each fact some subjects that are not edited, with its prompt about them, in the coordinates of a layer.

    `edited` are the subjects of all edits; a fact gets `each` others, or fewer where there are not so many, which
    depend on the seed and on its number alone.
    """
    subjects = sorted({fact.subject for fact in embedded_facts()} - set(edited))
    drawn: list[tuple[int, str]] = []
    for number in facts:
        chosen = random.Random(f"{seed} {number} others").sample(subjects, min(each, len(subjects)))
        drawn += [(number, subject) for subject in chosen]
    prompts = [lm.reads(facts[number].prompt.replace("{}", subject)) for number, subject in drawn]
    ran = run_unrelated(lm, layer, [encode(lm.tokenizer, prompt) for prompt in prompts])
    found: dict[int, list[OtherSubject]] = {number: [] for number in facts}
    for (number, subject), m in zip(drawn, coordinates.turned(ran), strict=True):
        if len(m):  # a prompt of one token has no score
            found[number].append((subject, m))
    return found


def not_edited(found: Sequence[OtherSubject], edited: Collection[str]) -> list[OtherSubject]:
    """Those whose subject is not edited (any more): an edited one must be answered."""
    return [(subject, m) for subject, m in found if subject not in edited]
