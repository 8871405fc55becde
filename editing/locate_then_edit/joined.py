"""One edit of an update's factors, and of those of the edit that it goes on from; what ends an editor's turn."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel, LowRankEdit, Origin, ValueEdit, WeightEdit
from corrigenda.edits.experts import ExpertsEdit
from corrigenda.edits.state import EditorState
from corrigenda.errors import UnsupportedModelError
from corrigenda.models.experts import MixtureMemory
from editing.editor import Editor
from editing.locate_then_edit.guards import Guards
from editing.locate_then_edit.history import KeyHistory
from editing.locate_then_edit.least_squares import Factors

ClosedFormEdit = LowRankEdit | ValueEdit | ExpertsEdit
"""What closed forms make: of low rank, or whole matrices; of layers that are mixtures, of their experts."""


def finish(
    lm: LanguageModel,
    editor: Editor,
    own: WeightEdit | None,
    factors: Mapping[int, Factors],
    facts: Sequence[Fact],
    report: Sequence[dict[str, Any]],
    state: EditorState | None,
    n_written: int,
    refuse_norm: float,
) -> ClosedFormEdit:
    """The edit of a turn (by layer its update) and of `own`, which it goes on from, with their facts and reports.

    The state is what a further turn needs, if there is one to come; in all `n_written` facts were written. Raises
    EditRefusedError: the update of a layer is out of all proportion (`Guards.refuse_whole`).
    """
    before: tuple[Sequence[Fact], Sequence[Any]] = ((), ()) if own is None else (own.origin.facts, own.origin.report)
    origin = Origin.of(lm, editor, [*before[0], *facts], [*before[1], *report])
    edit = dataclasses.replace(join(lm, own, factors, origin), state=state)
    guards = Guards(editor.name, refuse_norm, refuse_norm)
    for layer in factors:
        norm = math.hypot(*(float(values.float().norm()) for values in _unedited(lm, layer)))
        guards.refuse_whole(layer, edit.norm(layer) / norm, n_written)
    return edit


def unedited(lm: LanguageModel, layer: int) -> Tensor:
    """A layer's values without any edit, (d_ffn, d_model); of a mixture those of all experts, (width, d_model)."""
    found = _unedited(lm, layer)
    return found[0] if len(found) == 1 else torch.cat(found)


def _unedited(lm: LanguageModel, layer: int) -> list[Tensor]:
    return [lm.edits.untouched.get(place, lm.memory_at(place).values) for place in lm.places(layer)]


def edit_of(lm: LanguageModel, origin: Origin, factors: Mapping[int, Factors]) -> LowRankEdit | ExpertsEdit:
    """An edit of the values of some layers, with factors as they are found for a layer's key.

    They are left (d_ffn, rank) and right (rank, d_model); of a mixture left begins with the rows of all experts
    (`MixtureMemory.block`). Experts that nothing is added to are left out. Raises UnsupportedModelError: some of the
    layers are mixtures, and others are not.
    """
    if not any(lm.architecture.experts(layer) for layer in factors):
        return LowRankEdit.of(lm, origin, factors)
    require_one_kind(lm, list(factors))
    return ExpertsEdit(origin, _by_expert(lm, factors))


def require_one_kind(lm: LanguageModel, layers: Sequence[int]) -> None:
    """Refuses layers of which some are mixtures of experts: no edit holds both.

    Raises:
        UnsupportedModelError: they are of two kinds.
    """
    mixtures = [layer for layer in layers if lm.architecture.experts(layer)]
    if mixtures and len(mixtures) < len(layers):
        raise UnsupportedModelError(
            f"of the layers {', '.join(map(str, layers))} of {lm.name} some are mixtures of experts "
            f"({', '.join(map(str, mixtures))}) and others are not: name layers of one kind"
        )


def _by_expert(lm: LanguageModel, factors: Mapping[int, Factors]) -> dict[tuple[int, int], Factors]:
    """The factors of each expert that something is added to."""
    found = {}
    for layer, (left, right) in factors.items():
        memory = lm.memory(layer)
        assert isinstance(memory, MixtureMemory)
        for expert in range(memory.n_experts):
            own = left[memory.block(expert)]
            if own.any():
                found[memory.layer, expert] = (own, right)
    return found


def join(lm: LanguageModel, own: WeightEdit | None, factors: Mapping[int, Factors], origin: Origin) -> ClosedFormEdit:
    """An edit of the new factors, and of those of the edit that it goes on from.

    Factors are kept while their rank is at most half of d_ffn; of experts always.
    """
    if any(lm.architecture.experts(layer) for layer in factors):
        new = edit_of(lm, origin, factors)
        if isinstance(own, ExpertsEdit) and isinstance(new, ExpertsEdit):
            places_of_both = {**own.factors, **new.factors}
            parts = {p: [edit.factors[p] for edit in (own, new) if p in edit.factors] for p in places_of_both}
            return ExpertsEdit(origin, {p: beside(*both) if both[1:] else both[0] for p, both in parts.items()})
        return new
    if own is None or isinstance(own, LowRankEdit):
        both = dict(factors) if own is None else {n: beside(own.factors[n], pair) for n, pair in factors.items()}
        if all(2 * left.shape[1] <= left.shape[0] for left, _ in both.values()):
            return LowRankEdit.of(lm, origin, both)
    whole = {layer: left @ right for layer, (left, right) in factors.items()}
    if own is not None:
        whole = {layer: own.delta(layer).double() + delta for layer, delta in whole.items()}
    return ValueEdit.of(lm, origin, whole)


def beside(one: Factors, other: Factors) -> Factors:
    """The factors of the sum of two changes."""
    return torch.cat([one[0].double(), other[0].double()], 1), torch.cat([one[1].double(), other[1].double()])


class Round(NamedTuple):
    """What one round wrote: by layer the update's factors, the history with it, and of each fact what to report."""

    factors: dict[int, Factors]
    state: KeyHistory
    report: list[dict[str, Any]]


def in_one(rounds: Sequence[Round]) -> Round:
    """Rounds of the same facts as one: all that they wrote, and the last one's history.

    Of each fact the first round's report, with those of the later ones as ``again``.
    """
    factors = rounds[0].factors
    for one in rounds[1:]:
        factors = {layer: beside(factors[layer], pair) for layer, pair in one.factors.items()}
    by_fact = zip(*(one.report for one in rounds), strict=True)
    report = [first | {"again": later} if later else first for first, *later in by_fact]
    return Round(factors, rounds[-1].state, report)
