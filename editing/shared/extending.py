"""What editors share that go on from an earlier edit of their own: the checks, the model without it, or with it."""

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from corrigenda import Edit, Fact, LanguageModel, WeightEdit
from corrigenda.edits.added_neurons import AddedNeuronsEdit
from corrigenda.edits.routed import RoutedEdit
from corrigenda.edits.state import TENSORS, VALUES, State, as_kind
from corrigenda.models.alone import one_thread
from editing.editor import EditRefusedError

Kind = TypeVar("Kind", bound=Edit)
Made = TypeVar("Made", bound=Edit, covariant=True)


class Extendable(Generic[Made]):
    """An editor that goes on from its own edits; an edit of some facts alone goes on from none."""

    @one_thread
    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> Made:
        """The edit of some facts; it returns and raises what `extend` does."""
        return self.extend(lm, None, facts)

    @abstractmethod
    def extend(self, lm: LanguageModel, previous: Edit | None, facts: Sequence[Fact]) -> Made:
        """An earlier edit with further facts; the earlier edit itself stays as it is.

        Args:
            lm: the model; `previous` may be applied or not.
            previous: what to go on from; None for nothing.
            facts: what is to be added, in the order in which they are to be edited.
        """


def check_previous(
    editor: str,
    lm: LanguageModel,
    layers: Sequence[int],
    previous: Edit | None,
    kind: type[Kind],
    maker: str | None = None,
) -> Kind | None:
    """The edit to go on from, as the kind that the editor makes of these layers.

    `maker` is the name that the editor's edits carry, where only its own will do: what it takes from them (a weight, a
    history, where steps may go) means something else in another's. Raises EditRefusedError: it is of another kind,
    maker, model or layer.
    """
    if previous is None:
        return None
    if not isinstance(previous, kind):
        wanted = getattr(kind, "kind", "weight")  # of a base class of several kinds
        raise EditRefusedError(f"{editor} goes on from a {wanted} edit, not from a {previous.kind} edit")
    if maker is not None and previous.origin.editor != maker:
        raise EditRefusedError(
            f"{editor} goes on from an edit by {maker}, not from one by {previous.origin.editor}; let "
            f"{previous.origin.editor} go on from it, or edit all facts anew"
        )
    if previous.origin.fingerprint != lm.fingerprint:
        raise EditRefusedError(
            f"{editor}: the edit to go on from was made on {previous.origin.model} (weights "
            f"{previous.origin.fingerprint[:12]}), not on {lm.name} (weights {lm.fingerprint[:12]})"
        )
    edited = layers_of(previous)
    if edited != sorted(layers):
        raise EditRefusedError(
            f"{editor}: the edit to go on from is of {_named(edited)}, this editor's layer is {_numbers(layers)}"
        )
    return previous


def require_shared(editor: str, mine: Any, previous: Edit, names: Sequence[str]) -> None:
    """Refuses an edit to go on from that was made with other hyper-parameters, of those named, than an editor's own.

    `mine` is the editor, a dataclass. Raises EditRefusedError: one of them differs.
    """
    made_with, own = previous.origin.settings, dataclasses.asdict(mine)
    defaults = {field.name: field.default for field in dataclasses.fields(mine)}
    for name in names:
        # A setting that an older edit does not name did not exist then: what it did is the default.
        theirs = made_with.get(name, defaults[name])
        if theirs != own[name]:
            raise EditRefusedError(
                f"{editor}: the edit to go on from was made with {name}={theirs!r}, this editor has "
                f"{name}={own[name]!r}; take the same, or edit all facts anew"
            )


def layers_of(edit: Edit) -> list[int]:
    """The layers that an edit acts on, ascending; none for a kind that has no layers."""
    if isinstance(edit, WeightEdit):
        return sorted({place if isinstance(place, int) else place[0] for place in edit.touched})
    return [edit.layer] if isinstance(edit, (RoutedEdit, AddedNeuronsEdit)) else []


def state_of(editor: str, previous: Edit, kind: type[State]) -> State:
    """The editor state of an edit to go on from. Raises EditRefusedError: the edit has none, or another editor's."""
    if previous.state is None:
        raise EditRefusedError(
            f"{editor}: the edit to go on from has no editor state: {VALUES} and {TENSORS}, which are saved beside an "
            "edit that can be extended, were not there when it was read. It can be applied; to extend it, put them "
            "back, or edit all facts anew"
        )
    found = as_kind(previous.state, kind)
    if found is None:
        raise EditRefusedError(
            f"{editor} goes on from an editor state of kind {kind.kind!r}, the edit has one of {previous.state.kind!r}"
        )
    return found


@contextmanager
def without(lm: LanguageModel, edit: Edit | None) -> Iterator[None]:
    """The model without one edit, inside a ``with`` block; it may or may not be applied."""
    if edit is None or edit not in lm.edits:
        yield
        return
    with lm.edits.suspended(edit):
        yield


@contextmanager
def present(lm: LanguageModel, edit: Edit | None) -> Iterator[None]:
    """The model with one edit, inside a ``with`` block; it may or may not be applied."""
    if edit is None or edit in lm.edits:
        yield
        return
    with edit.applied(lm):
        yield


def _named(layers: Sequence[int]) -> str:
    return f"layer {_numbers(layers)}" if len(layers) == 1 else f"layers {_numbers(layers)}"


def _numbers(layers: Sequence[int]) -> str:
    return ", ".join(str(layer) for layer in layers) or "none"
