"""Relations of a tiny model: what it says of some subjects counts as their objects."""

import random
from collections.abc import Sequence

import torch

from corrigenda import Fact, LanguageModel
from corrigenda.linear_relations import read_samples
from locate.lens.words import read_states

SUBJECTS = ["Paris", "Rome", "London", "Berlin", "France", "Italy", "England", "Germany", "Eiffel", "Big Ben"]
OBJECTS = ["English", "French", "German", "Dutch", "Spanish"]


def known(lm: LanguageModel, template: str = "the language of {} is", n: int = 4, name: str = "tongue") -> list[Fact]:
    """Facts of which the model knows all that a locator with `n` samples and seed 0 draws for its tests."""
    facts = [
        Fact(subject, template, None, OBJECTS[number % len(OBJECTS)], relation=name)
        for number, subject in enumerate(SUBJECTS)
    ]
    drawn = list(facts)
    random.Random(0).shuffle(drawn)
    training, tests = drawn[:n], drawn[n:]
    says = read_states(lm, states(lm, tests, [training] * len(tests), (1,)).o).argmax(-1).tolist()
    object_of = {fact.subject: str(lm.tokenizer.decode([token])) for fact, token in zip(tests, says, strict=True)}
    return [Fact(f.subject, template, None, object_of.get(f.subject, f.target_true), relation=name) for f in facts]


def states(lm: LanguageModel, facts: Sequence[Fact], examples: Sequence[Sequence[Fact]], layers: Sequence[int]):  # type: ignore[no-untyped-def]
    """`read_samples`, which keeps all that it looks at."""
    with torch.no_grad():
        return read_samples(lm, facts, examples, layers, layers)
