"""`FactSet`: the facts that were read, in order, with what was skipped; `RecordError`: why a record was refused."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from corrigenda.errors import RecordError
from corrigenda.facts import Fact


@dataclass(frozen=True)
class FactSet(Sequence[Fact]):
    """An ordered set of facts with unique ids.

    Indexing gives a `Fact`; slicing gives a `FactSet` of the same name, so ``facts[:100]`` can go wherever ``facts``
    can. Two sets are equal when their names and facts are.

    Attributes:
        name: what the set is called in tables and file names.
        facts: the facts, in the order of the source.
        skipped: the records that were refused on the way (``on_error="skip"``); a slice keeps them all.
        order: the seed that the facts were put in order by (`shuffled`); None for the order of the source.
        schema: how the records were read, by its name in `SCHEMAS`; empty where no reader of these did.

    Raises:
        ValueError: two facts have the same id.
    """

    name: str
    facts: tuple[Fact, ...]
    skipped: tuple[RecordError, ...] = field(default=(), compare=False)
    order: int | None = field(default=None, compare=False)
    schema: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "facts", tuple(self.facts))
        object.__setattr__(self, "skipped", tuple(self.skipped))
        repeated = next((id_ for id_, n in Counter(fact.id for fact in self.facts).items() if n > 1), None)
        if repeated is not None:
            raise ValueError(f"fact set {self.name!r} has two facts with the id {repeated!r}; ids must be unique")

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the facts as canonical JSON; independent of the name and of what was skipped.

        The same facts in the same order give the same fingerprint on every machine.
        """
        return _digest([fact.to_dict() for fact in self.facts])

    @property
    def unordered_fingerprint(self) -> str:
        """The same, but equal for the same facts in any order: what runs over several orders have in common."""
        return _digest(sorted(_digest(fact.to_dict()) for fact in self.facts))

    def shuffled(self, order: int) -> FactSet:
        """The same facts in an order of their own for each seed.

        By a hash of the seed and each fact's id: the same on every machine, and whatever order the source has.

        Args:
            order: the seed.
        """

        def place(fact: Fact) -> bytes:
            return hashlib.sha256(f"{order}\0{fact.id}".encode()).digest()

        return replace(self, facts=tuple(sorted(self.facts, key=place)), order=order)

    def __len__(self) -> int:
        return len(self.facts)

    @overload
    def __getitem__(self, index: int) -> Fact: ...

    @overload
    def __getitem__(self, index: slice) -> FactSet: ...

    def __getitem__(self, index: int | slice) -> Fact | FactSet:
        if isinstance(index, slice):
            return replace(self, facts=self.facts[index])
        return self.facts[index]

    def __repr__(self) -> str:
        skipped = f", {len(self.skipped)} skipped" if self.skipped else ""
        return f"FactSet({self.name!r}, {len(self.facts)} facts{skipped})"


def _digest(values: Any) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
