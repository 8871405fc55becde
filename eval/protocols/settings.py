"""`SequentialSettings`: how a sequence of edits is made and scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from corrigenda.settings import AtLeastOne, Count, checked

Regime = Literal["auto", "stack", "extend", "together"]


@dataclass(frozen=True)
@checked
class SequentialSettings:
    """How a sequence of edits is made and scored.

    Attributes:
        checkpoints: after how many edits all of them are scored: those below the number of facts, and that number.
        every: after how many edits what was done is written down, so that a killed run goes on from there.
        regime: how the edits come together. "stack": each fact is edited on the model as the earlier edits left it, and
            its edit put on top; "extend": the editor's own `extend` goes on from its edit of the earlier facts (side
            memories); "together": at each checkpoint all facts so far are edited at once, from the unedited model;
            "auto": "extend" where the editor has it, else "stack".
        after_each: what is measured of a fact right after its edit: all ("full"), or only what follows from
            probabilities ("probabilities"). It adds up: this is done after every edit.
        generate_until: beyond so many edits the checkpoints measure no free generation of the edits; None: all do.
        chunk: facts measured together.
    """

    checkpoints: tuple[AtLeastOne, ...] = (1, 10, 30, 100, 300, 1000)
    every: AtLeastOne = 10
    regime: Regime = "auto"
    after_each: Literal["full", "probabilities"] = "full"
    generate_until: Count | None = None
    chunk: AtLeastOne = 10

    def __post_init__(self) -> None:
        object.__setattr__(self, "checkpoints", tuple(sorted(set(self.checkpoints))))

    def due(self, n_facts: int) -> list[int]:
        """The T at which `n_facts` facts are scored."""
        return [t for t in self.checkpoints if t < n_facts] + [n_facts]
