"""A solver that makes entries up, the same for the same request; and facts for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from corrigenda import Fact, LanguageModel
from corrigenda.knowledge.entries import Entry, request_hash

LAYERS = (1, 2)


@dataclass(frozen=True)
class MadeUp:
    """A solver whose keys and values are drawn by the hash of what is asked for."""

    layers: tuple[int, ...] = LAYERS
    steps: int = 20

    def __call__(self, lm: LanguageModel, facts: Sequence[Fact]) -> list[Entry]:
        entries = []
        for fact in facts:
            for layer in self.layers:
                draw = torch.Generator().manual_seed(int(request_hash(fact)[:12], 16) + layer)
                memory = lm.memory(layer)
                key, value = (torch.randn(size, generator=draw) for size in (memory.d_ffn, memory.d_model))
                entries.append(Entry(fact.id, layer, key, value, lm.fingerprint, {"steps": self.steps}))
        return entries


def a_fact(number: int, target: str = "Rome", prompt: str = "{} is in", **fields: object) -> Fact:
    """A fact with the id "fact-NUMBER" about a subject of its own."""
    return Fact.from_dict(
        {"id": f"fact-{number}", "subject": f"Tower {number}", "prompt": prompt, "target_new": target, **fields}
    )
