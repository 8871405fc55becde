"""What editors share that go on from an earlier edit of theirs: WISE and GRACE."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from corrigenda import Edit, Fact, LanguageModel
from corrigenda.edits.routed import RoutedEdit
from corrigenda.prompts import encode, encode_target
from editing.editor import EditRefusedError


def end_token(lm: LanguageModel) -> int:
    """The token that ends an answer in a training target.

    Raises:
        EditRefusedError: the model has none.
    """
    if lm.tokenizer.eos_token_id is not None:
        return int(lm.tokenizer.eos_token_id)
    if not lm.end_ids:
        raise EditRefusedError(f"{lm.name} has no end token; an answer learned without one would not end")
    return min(lm.end_ids)


def target_rows(lm: LanguageModel, fact: Fact, prompt: str | None = None) -> tuple[list[int], int]:
    """The tokens of a prompt (the fact's own if none), the target and the end token; and how many are the prompt's.

    Raises:
        EditRefusedError: the prompt has fewer than two tokens: its first says nothing (see `SideMemoryEdit`), so that
            nothing would tell this prompt from others.
    """
    assert fact.target_new is not None
    prompt = lm.reads(fact.statement if prompt is None else prompt)
    ids = encode(lm.tokenizer, prompt)
    if len(ids) < 2:
        raise EditRefusedError(f"fact {fact.id!r}: the prompt {prompt!r} has one token only; nothing to route by")
    return [*ids, *encode_target(lm.tokenizer, prompt, fact.target_new), end_token(lm)], len(ids)


def thinned(fact: Fact, share: float, draw: random.Random) -> str:
    """The fact's statement with some of its words left out: each with the given probability, the subject's never.

    A side of the prompt that touches the subject without a space between them (quotation marks, "'s") stays whole. Rows
    like this make what is learned hang on the subject and on few of the other words, as a paraphrase needs it.
    """
    left, right = fact.prompt.split("{}")
    parts = [" ".join(word for word in part.split() if draw.random() >= share) for part in (left, right)]
    if left and not left[-1].isspace():
        parts[0] = left
    if right and not right[0].isspace():
        parts[1] = right
    before = parts[0] + " " if parts[0] and parts[0] != left else parts[0]
    after = " " + parts[1] if parts[1] and parts[1] != right else parts[1]
    return before + fact.subject + after


def check_previous(editor: str, lm: LanguageModel, layer: int, previous: Edit | None, kind: type[RoutedEdit]) -> None:
    """Raises EditRefusedError where an editor cannot go on from an edit."""
    if previous is None:
        return
    if not isinstance(previous, kind):
        raise EditRefusedError(f"{editor} goes on from a {kind.kind} edit, not from a {previous.kind} edit")
    if previous.origin.fingerprint != lm.fingerprint:
        raise EditRefusedError(
            f"{editor}: the edit to go on from was made on {previous.origin.model} (weights "
            f"{previous.origin.fingerprint[:12]}), not on {lm.name} (weights {lm.fingerprint[:12]})"
        )
    if previous.layer != layer:
        raise EditRefusedError(
            f"{editor}: the edit to go on from is of layer {previous.layer}, this editor's layer is {layer}"
        )


@contextmanager
def without(lm: LanguageModel, edit: Edit | None) -> Iterator[None]:
    """The model without one edit, inside a ``with`` block; it may or may not be applied."""
    if edit is None or edit not in lm.edits:
        yield
        return
    edits = list(lm.edits)
    with lm.edits.suspended():
        others = [other for other in edits if other is not edit]
        for other in others:
            lm.edits.push(other)
        try:
            yield
        finally:
            for other in reversed(others):
                lm.edits.remove(other)
