"""What an editor is, and how one refuses."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from corrigenda import ContextLengthError, Edit, EditRefusedError, Fact, LanguageModel
from corrigenda.facts import as_facts
from corrigenda.models.alone import one_thread
from corrigenda.text.display import quoted
from editing.shared.layers import named_layers

__all__ = [
    "EditRefusedError",
    "Editor",
    "FactRefusedError",
    "prepare",
    "refusing_long",
    "require_room",
    "require_targets",
]

MOST_EDIT_TOKENS = 512
"""A prompt with its target may have so many tokens in an edit, which runs it in dozens of contexts and steps."""


class FactRefusedError(EditRefusedError):
    """One fact of an edit is refused, and why, whatever the others are."""

    def __init__(self, fact: Fact, why: str) -> None:
        super().__init__(f"fact {fact.id!r}: {why}")
        self.fact = fact
        self.why = why


@runtime_checkable
class Editor(Protocol):
    """A frozen dataclass of hyper-parameters that turns facts into an `Edit`.

    `edit` is pure: the model is, bit for bit, what it was when it returns or raises.

    What an editor may have besides: ``prepare(lm)`` (see `prepare`); ``extend(lm, edit, facts)``, to go on from its own
    edit; and ``layers``, a tuple: the layers that its user told it to write, as they were named, empty for its default
    (`editing.shared.layers.OneLayer` has it for editors with a field ``layer``).
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


@one_thread
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


@contextmanager
def refusing_long(fact: Fact) -> Iterator[None]:
    """Turns what is longer than the model reads, inside the ``with`` block, into a refusal of the fact by name.

    Raises:
        FactRefusedError: in place of ContextLengthError.
    """
    try:
        yield
    except ContextLengthError as error:
        raise FactRefusedError(fact, str(error)) from error


def require_room(lm: LanguageModel, fact: Fact, n_tokens: int) -> None:
    """Refuses a fact whose prompt and target, in a context, are longer than an edit is computed on.

    Raises:
        FactRefusedError: they have more tokens than the model reads, or than `MOST_EDIT_TOKENS`.
    """
    what = f"the prompt {quoted(fact.statement)} with its target"
    with refusing_long(fact):
        lm.require_room(n_tokens, what)
    if n_tokens > MOST_EDIT_TOKENS:
        raise FactRefusedError(
            fact, f"{what} has {n_tokens} tokens, and an edit is computed on at most {MOST_EDIT_TOKENS}; shorten it"
        )
