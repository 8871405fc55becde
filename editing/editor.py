"""What an editor is, and how one refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from corrigenda import Edit, EditRefusedError, Fact, LanguageModel
from corrigenda.facts import as_facts
from editing.layers import named_layers

__all__ = ["EditRefusedError", "Editor", "prepare", "require_targets"]


@runtime_checkable
class Editor(Protocol):
    """A frozen dataclass of hyper-parameters that turns facts into an `Edit`.

    `edit` is pure: the model is, bit for bit, what it was when it returns or raises.

    What an editor may have besides: ``prepare(lm)`` (see `prepare`); ``extend(lm, edit, facts)``, to go on from its own
    edit; and ``layers``, a tuple: the layers that its user told it to write, as they were named, empty for its default
    (`editing.layers.OneLayer` has it for editors with a field ``layer``).
    """

    @property
    def name(self) -> str:
        """What results call it; a class attribute, or a setting where one class serves several methods."""
        ...

    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> Edit:
        """One edit that makes all the facts true of the model.

        Raises:
            EditRefusedError: it cannot or will not.
        """
        ...


def prepare(editor: Editor, lm: LanguageModel) -> None:
    """Lets an editor compute, and keep on disk, what all its edits of a model share.

    An editor may have a method ``prepare(lm)`` for it; without this the first edit does the work. A layer that the
    model does not have is said here: a run would take it for an edit that failed, at every fact.

    Raises:
        IndexError: the model has no such layer.
        ValueError: an editor's layer is no number.
    """
    for layer in named_layers(editor):
        lm.memory(layer)
    method = getattr(editor, "prepare", None)
    if method is not None:
        method(lm)


def require_targets(editor: str, facts: Sequence[Fact]) -> None:
    """Refuses what an editor that inserts and modifies cannot do.

    Raises:
        TypeError: what is given is no list of facts.
        EditRefusedError: there is no fact, or one asks for an erasure.
    """
    as_facts(editor, facts)
    if not facts:
        raise EditRefusedError(f"{editor}: no fact to edit")
    for fact in facts:
        if fact.target_new is None:
            raise EditRefusedError(
                f"{editor} inserts and modifies; fact {fact.id!r} asks to erase (it has no target_new)"
            )
