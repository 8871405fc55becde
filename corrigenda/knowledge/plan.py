"""`Plan`: by what a list of facts differs from an earlier one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from corrigenda.facts import Fact


@dataclass(frozen=True)
class Plan:
    """What is to be done to make one list of another, by the facts' ids.

    `new` facts and `changed` ones, which say something else than the one with the same id, are as they are now;
    `removed` are only in the earlier list; `kept` are the others.
    """

    new: tuple[Fact, ...] = ()
    changed: tuple[Fact, ...] = ()
    removed: tuple[Fact, ...] = ()
    kept: tuple[Fact, ...] = ()

    @classmethod
    def between(cls, before: Sequence[Fact], now: Sequence[Fact]) -> Plan:
        """The plan that makes `now` of `before`."""
        old = {fact.id: fact for fact in before}
        ids = {fact.id for fact in now}
        return cls(
            tuple(fact for fact in now if fact.id not in old),
            tuple(fact for fact in now if fact.id in old and old[fact.id] != fact),
            tuple(fact for fact in before if fact.id not in ids),
            tuple(fact for fact in now if old.get(fact.id) == fact),
        )
