"""Facts about made persons, of which no model knows anything: what it knows after an edit, the edit put there.

The kind is bioS of Allen-Zhu and Li 2025, "Physics of Language Models: Part 3.3": names are made, and each attribute is
drawn by itself, uniformly from the values of its relation. `biographies.txt` declares the syllables of names, then a
relation a line: "[name] prompt -> value; value". Prompts, values and names are this project's own.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import product

from corrigenda.errors import SettingsError
from corrigenda.facts import Fact


@dataclass(frozen=True)
class Attribute:
    """A relation of made persons: the prompt, with ``{}`` for the person, and the values that it draws from."""

    name: str
    prompt: str
    values: tuple[str, ...]


@cache
def attributes() -> tuple[Attribute, ...]:
    """The relations, always in the same order."""
    lines = [re.fullmatch(r"\[(.+?)\] (.+) -> (.+)", line) for line in _lines()]
    return tuple(Attribute(found[1], found[2], tuple(found[3].split("; "))) for found in lines if found)


def candidates() -> Mapping[str, tuple[str, ...]]:
    """By relation, as a fact names it, its values."""
    return {attribute.name: attribute.values for attribute in attributes()}


def biographies(n: int, seed: int = 0, each: int = 1) -> tuple[Fact, ...]:
    """So many facts about made persons; the first ones of a longer list are the same.

    `each` relations of a person are told, one fact after the other; relations take turns. The seed is of the names and
    the values. Raises SettingsError: there are fewer names or relations than that.
    """
    relations = attributes()
    names = [line.partition(": ")[2].split("; ") for line in _lines() if line.startswith("[names]")]
    people = [f"{''.join(parts[:2])} {''.join(parts[2:])}" for parts in product(*names)]
    if not 1 <= each <= len(relations) or not 0 <= n <= each * len(people):
        raise SettingsError(
            f"{n} facts, {each} of a person: there are {len(people)} names and {len(relations)} relations; ask for "
            f"1 to {len(relations)} of a person, and at most {len(people)} persons"
        )
    draw = random.Random(seed)
    draw.shuffle(people)
    found = []
    for number in range(n):
        relation, subject = relations[number % len(relations)], people[number // each]
        value = draw.choice(relation.values)
        found.append(Fact(subject, relation.prompt, value, id=f"made/{seed}/{number}", relation=relation.name))
    return tuple(found)


def _lines() -> list[str]:
    return (files("corrigenda.data") / "biographies.txt").read_text(encoding="utf-8").splitlines()
