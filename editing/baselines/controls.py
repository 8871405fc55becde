"""The controls that every editor is held against: no edit, and the fact in the context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from corrigenda import ContextEdit, Fact, LanguageModel, LowRankEdit, Origin
from corrigenda.facts import as_facts
from corrigenda.models.alone import one_thread
from corrigenda.settings.checked import checked
from editing.editor import require_targets
from editing.registry import register
from editing.shared.statements import STATEMENT, stated
from editing.shared.together import deduplicate


@register("none", aim="control: the unedited model", space="it does nothing")
@dataclass(frozen=True)
@checked
class NoEdit:
    """Changes nothing: the unedited model in the place of an edited one."""

    name: ClassVar[str] = "none"

    @one_thread
    @deduplicate
    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> LowRankEdit:
        """An edit of no layer."""
        return LowRankEdit.of(lm, Origin.of(lm, self, as_facts(self.name, facts)), {})


@register(
    "in_context", aim="control: the facts stand before every prompt", space="it has no number, and changes no weight"
)
@dataclass(frozen=True)
@checked
class InContext:
    """Puts the facts before every prompt; no weight changes.

    All the facts of an edit, whatever the prompt: `retrieval` puts the nearest alone there.

    Attributes:
        template: what is written of each fact: ``{statement}`` and ``{target}`` are filled in; where a space stands
            between the two, what follows from the statement's end does (`corrigenda.text.joints.joint`).
    """

    name: ClassVar[str] = "in_context"

    template: str = STATEMENT

    @one_thread
    @deduplicate
    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> ContextEdit:
        """The text of all facts.

        Raises:
            EditRefusedError: a fact asks for an erasure.
        """
        require_targets("in_context", facts)
        return ContextEdit(Origin.of(lm, self, facts), "".join(stated(self.template, fact) for fact in facts))
