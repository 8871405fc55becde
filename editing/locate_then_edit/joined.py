"""One edit of an update's factors, and of those of the edit that it goes on from; what ends an editor's turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel, LowRankEdit, Origin, ValueEdit, WeightEdit
from corrigenda.edits.state import EditorState
from editing.editor import Editor
from editing.locate_then_edit.guards import Guards
from editing.locate_then_edit.least_squares import Factors


def finished(
    lm: LanguageModel,
    editor: Editor,
    own: WeightEdit | None,
    factors: Mapping[int, Factors],
    facts: Sequence[Fact],
    report: Sequence[dict[str, Any]],
    state: EditorState | None,
    n_written: int,
    refuse_norm: float,
) -> LowRankEdit | ValueEdit:
    """The edit of a turn and of the edit that it goes on from, with their facts and reports.

    Args:
        lm: the model, unedited or not.
        editor: whose edit it is.
        own: the edit that it goes on from; None for the first.
        factors: by layer the turn's update.
        facts: those of the turn.
        report: what there is to report of each.
        state: what a further turn needs; None where there is none to come.
        n_written: how many facts were written in all.
        refuse_norm: see `Guards.refuse_whole`.

    Raises:
        EditRefusedError: the update of a layer is out of all proportion.
    """
    before: tuple[Sequence[Fact], Sequence[Any]] = ((), ()) if own is None else (own.origin.facts, own.origin.report)
    origin = Origin.of(lm, editor, [*before[0], *facts], [*before[1], *report])
    edit = dataclasses.replace(joined(lm, own, factors, origin), state=state)
    guards = Guards(editor.name, refuse_norm, refuse_norm)
    for layer in factors:
        guards.refuse_whole(layer, edit.norm(layer) / float(unedited(lm, layer).float().norm()), n_written)
    return edit


def unedited(lm: LanguageModel, layer: int) -> Tensor:
    """A layer's values without any edit, (d_ffn, d_model)."""
    return lm.edits.untouched.get(layer, lm.memory(layer).values)


def joined(
    lm: LanguageModel, own: WeightEdit | None, factors: Mapping[int, Factors], origin: Origin
) -> LowRankEdit | ValueEdit:
    """An edit of the new factors, and of those of the edit that it goes on from.

    Factors are kept while their rank is at most half of d_ffn.
    """
    if own is None or isinstance(own, LowRankEdit):
        both = dict(factors) if own is None else {n: _beside(own.factors[n], pair) for n, pair in factors.items()}
        if all(2 * left.shape[1] <= left.shape[0] for left, _ in both.values()):
            return LowRankEdit.of(lm, origin, both)
    whole = {layer: left @ right for layer, (left, right) in factors.items()}
    if own is not None:
        whole = {layer: own.delta(layer).double() + delta for layer, delta in whole.items()}
    return ValueEdit.of(lm, origin, whole)


def _beside(one: Factors, other: Factors) -> Factors:
    """The factors of the sum of two changes."""
    return torch.cat([one[0].double(), other[0]], 1), torch.cat([one[1].double(), other[1]])
