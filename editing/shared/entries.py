"""Edits that hold an entry for each fact: which fact an entry answers, and which entries later facts leave."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from corrigenda import Edit, Fact
from corrigenda.data.requests import history, select_active
from corrigenda.edits.state import EditorState, StoredState

State = TypeVar("State", bound="EntriesState")


@dataclass(frozen=True, eq=False)
class EntriesState(EditorState):
    """What an editor goes on from, besides the entries; a kind of its own derives from it.

    Of each entry's fact there is no more than what it is compared by.
    """

    facts: tuple[Fact, ...]

    def stored(self) -> StoredState:
        """Without tensors."""
        return StoredState(self.kind, {}, {"facts": [fact.to_dict() for fact in self.facts]})

    @classmethod
    def restore(cls: type[State], stored: StoredState) -> State:
        """The state that `stored` gave."""
        return cls(tuple(Fact.from_dict(fact) for fact in stored.values["facts"]))

    def kept(self, facts: Sequence[Fact]) -> list[int]:
        """The entries that further facts do not supersede or repeat, by their numbers."""
        return [number for number in select_active([*self.facts, *facts]).active if number < len(self.facts)]

    def followed(self: State, kept: Sequence[int], facts: Sequence[Fact]) -> State:
        """The state with the entries that are kept, and those of further facts after them."""
        asked = (Fact(fact.subject, fact.prompt, fact.target_new, relation=fact.relation) for fact in facts)
        return type(self)((*(self.facts[number] for number in kept), *asked))


def names_of(facts: Sequence[Fact]) -> tuple[tuple[str, ...], ...]:
    """Of each fact the names of its subject."""
    return tuple((fact.subject, *fact.other_names) for fact in facts)


def label_of(fact: Fact) -> str:
    """What a cluster of facts that answer the same is told apart by: the new object as it stands behind the prompt."""
    return fact.claim.removeprefix(fact.statement).removeprefix(" ")


def reports_after(
    own: Edit | None, facts: Sequence[Fact], report: Sequence[dict[str, Any]]
) -> tuple[list[Fact], list[dict[str, Any]]]:
    """All facts of an edit that goes on from another, and their reports: with what each repeats or contradicts."""
    before, reports = ((), ()) if own is None else (own.origin.facts, own.origin.report)
    refused = {number for number, figures in enumerate(reports) if "refused" in figures}
    notes = history([*before, *facts], refused)[len(before) :]
    said = [note | figures for note, figures in zip(notes, report, strict=True)]
    return [*before, *facts], [*reports, *said]
