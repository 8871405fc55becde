"""A solver that makes entries up, the same for the same request; facts for it, and what is done with them."""

import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from corrigenda import Fact, KnowledgeBase, ValueEdit
from corrigenda.edits.origin import Origin
from corrigenda.knowledge.entries import Entry, by_layer, request_hash

LAYERS = (1, 2)


@dataclass(frozen=True)
class MadeUp:
    """A solver whose keys and values are drawn by the hash of what is asked for."""

    layers: tuple[int, ...] = LAYERS
    steps: int = 20

    def __call__(self, lm: Any, facts: Sequence[Fact]) -> list[Entry]:
        entries = []
        for fact in facts:
            for layer in self.layers:
                draw = torch.Generator().manual_seed(int(request_hash(fact)[:12], 16) + layer)
                memory = lm.memory(layer)
                key, value = (torch.randn(size, generator=draw) for size in (memory.d_ffn, memory.d_model))
                entries.append(Entry(fact.id, layer, key, value, lm.fingerprint, {"steps": self.steps}))
        return entries


def same(found: Sequence[Entry], expected: Sequence[Entry]) -> bool:
    """Whether entries are the same, to the bit."""
    return all(
        torch.equal(a.key, b.key)
        and torch.equal(a.value, b.value)
        and all(getattr(a, name) == getattr(b, name) for name in ("fact", "layer", "fingerprint", "settings"))
        for a, b in zip(found, expected, strict=True)
    )


@dataclass(frozen=True)
class Folding:
    """V = A^-1 B, A = lambda C + sum k k^T, B = lambda C V0 + sum k v^T, in float64 (Larimar's algebra)."""

    moments: dict[int, torch.Tensor]
    weight: float

    def __call__(self, lm: Any, facts: Sequence[Fact], entries: Sequence[Entry]) -> ValueEdit:
        changes = {}
        for layer, found in by_layer(entries).items():
            V0 = lm.memory(layer).values.double()
            A = self.weight * self.moments[layer]
            B = A @ V0
            for entry in found:
                k, v = entry.key.double(), entry.value.double()
                A, B = A + torch.outer(k, k), B + torch.outer(k, v)
            changes[layer] = torch.linalg.solve(A, B) - V0
        return ValueEdit.of(lm, Origin(lm.name, lm.fingerprint, "folding", {}, tuple(facts)), changes)


def folding_of(lm: Any, weight: float) -> Folding:
    """Of the second moments of random text."""
    draw = torch.Generator().manual_seed(5)
    moments = {}
    for layer in LAYERS:
        text = torch.randn(200, lm.memory(layer).d_ffn, generator=draw, dtype=torch.float64)
        moments[layer] = text.T @ text / len(text)
    return Folding(moments, weight)


def a_fact(number: int, target: str = "Rome", prompt: str = "{} is in", **fields: object) -> Fact:
    """A fact with the id "fact-NUMBER" about a subject of its own."""
    return Fact.from_dict(
        {"id": f"fact-{number}", "subject": f"Tower {number}", "prompt": prompt, "target_new": target, **fields}
    )


def verbs(seed: int, n_facts: int = 8) -> Iterator[tuple[str, Fact, dict[str, Fact]]]:
    """Endlessly a verb at random, the fact that it is of, and the facts by id that there are after it, in order."""
    draw = random.Random(seed)
    facts: dict[str, Fact] = {}
    while True:
        fact = a_fact(draw.randrange(n_facts), draw.choice(["Rome", "Oslo", "Bern"]))
        verb = draw.choice(["update", "delete"]) if fact.id in facts else "insert"
        facts.pop(fact.id, None)
        if verb != "delete":
            facts[fact.id] = fact
        yield verb, fact, dict(facts)


def do(kb: KnowledgeBase, verb: str, fact: Fact, lm: Any) -> None:
    """Does one of the verbs."""
    if verb == "insert":
        kb.insert([fact], lm, MadeUp())
    elif verb == "update":
        kb.update(fact, lm, MadeUp())
    else:
        kb.delete(fact.id)


class WidthsAlone:
    """As much of a model as a made-up solver needs."""

    name, fingerprint = "widths", "f" * 32

    def __init__(self, d_ffn: int = 48, d_model: int = 32) -> None:
        self._memory = SimpleNamespace(d_ffn=d_ffn, d_model=d_model)
        self.edits = self

    def memory(self, _layer: int) -> Any:
        return self._memory

    def suspended(self) -> AbstractContextManager[None]:
        return nullcontext()
