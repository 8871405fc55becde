"""`KeyHistory`: what a closed form goes on from: the keys of the facts that it has written, and its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from corrigenda import Fact
from corrigenda.data.requests import select_active
from corrigenda.edits.state import EditorState, StoredState
from editing.locate_then_edit.least_squares import System


@dataclass(frozen=True, eq=False)
class Solutions:
    """What was found out about earlier keys and costs much to find again; nothing of it is saved.

    Attributes:
        systems: by layer the system that was solved last, which has all of the keys.
        directions: C^-1 k at the first layer, (fact, d_ffn), float32; None where they are not known.
    """

    systems: Mapping[int, System] = field(default_factory=dict)
    directions: Tensor | None = None


@dataclass(frozen=True, eq=False)
class KeyHistory(EditorState):
    """The keys of earlier updates, which later ones have to leave alone: H = sum of k k^T.

    Keys are kept, and not H: they are fewer numbers up to 2 d_ffn facts, and a fact that is superseded by a later one
    can be taken out, since it no longer counts.

    Attributes:
        facts: those that were written.
        keys: by layer their keys, (fact, d_ffn), float32, as they were measured when they were written; of no layer
            where the editor keeps no history.
        weights: by layer lambda (or L2) as the first update had it; later updates keep it.
        n_written: how many facts were written in all, also without history.
        solutions: of the systems of these keys; not stored: after it was read it is found again once.
    """

    facts: tuple[Fact, ...] = ()
    keys: Mapping[int, Tensor] = field(default_factory=dict)
    weights: Mapping[int, float] = field(default_factory=dict)
    n_written: int = 0
    solutions: Solutions = field(default_factory=Solutions)
    kind: ClassVar[str] = "key_history"

    def stored(self) -> StoredState:
        """Facts and weights as plain values."""
        values = {
            "facts": [fact.to_dict() for fact in self.facts],
            "weights": {str(layer): weight for layer, weight in self.weights.items()},
            "n_written": self.n_written,
        }
        return StoredState(self.kind, {str(layer): keys for layer, keys in self.keys.items()}, values)

    @classmethod
    def restore(cls, stored: StoredState) -> KeyHistory:
        """The state that `stored` gave."""
        return cls(
            tuple(Fact.from_dict(record) for record in stored.values["facts"]),
            {int(layer): keys for layer, keys in stored.tensors.items()},
            {int(layer): float(weight) for layer, weight in stored.values["weights"].items()},
            int(stored.values["n_written"]),
        )

    def before(self, facts: Sequence[Fact]) -> KeyHistory:
        """The part that still counts when further facts are written: without what these supersede or repeat."""
        kept = [number for number in select_active([*self.facts, *facts]).active if number < len(self.facts)]
        if len(kept) == len(self.facts):
            return self
        keys = {layer: rows[kept] for layer, rows in self.keys.items()}
        known = self.solutions.directions
        left = Solutions({}, None if known is None else known[kept])  # a system has the keys of all
        return KeyHistory(tuple(self.facts[number] for number in kept), keys, self.weights, self.n_written, left)

    def and_then(
        self,
        facts: Sequence[Fact],
        keys: Mapping[int, Tensor],
        weights: Mapping[int, float],
        kept: bool,
        solutions: Solutions,
    ) -> KeyHistory:
        """With one more update of facts: by layer their keys, (fact, d_ffn), and the weights that were used.

        With `kept` the keys count for later updates; the solutions are of the systems of all keys.
        """
        n_written = self.n_written + len(facts)
        if not kept:
            return KeyHistory((), {}, dict(weights), n_written)
        joined = {n: torch.cat([self.keys[n], rows]) if n in self.keys else rows for n, rows in keys.items()}
        return KeyHistory((*self.facts, *facts), joined, dict(weights), n_written, solutions)
