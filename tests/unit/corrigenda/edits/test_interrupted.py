"""Apply and revert, interrupted at every step: the model is as before or as after, the stack knows, nothing is lost."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import faults
import pytest
import tiny
import torch
from torch import Tensor

from corrigenda import (
    AttachedEdit,
    CodebookEdit,
    CoefficientEdit,
    ContextEdit,
    Edit,
    LanguageModel,
    LowRankEdit,
    Origin,
    SideMemoryEdit,
    ValueEdit,
)
from corrigenda.edits.attached import AttachedLayer
from corrigenda.edits.experts import ExpertsEdit

PROMPT = "the Eiffel tower is located in the city of"
Make = Callable[[LanguageModel, int], Edit]


@pytest.fixture(autouse=True)
def gradients_stay_on() -> Iterator[None]:
    """A fault in the end of a `torch.no_grad` leaves gradients off, for all tests that follow."""
    with torch.enable_grad():
        yield


def origin(lm: LanguageModel) -> Origin:
    return Origin(lm.name, lm.fingerprint, "by hand")


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def low_rank(lm: LanguageModel, seed: int) -> Edit:
    d_ffn, d_model = lm.memory(1).values.shape
    factors = {layer: (drawn(seed, d_ffn, 2) / 3, drawn(seed + 1, 2, d_model)) for layer in (1, 2)}
    return LowRankEdit.of(lm, origin(lm), factors)


def values(lm: LanguageModel, seed: int) -> Edit:
    return ValueEdit.of(lm, origin(lm), {layer: drawn(seed, *lm.memory(layer).values.shape) for layer in (0, 1)})


def experts(lm: LanguageModel, seed: int) -> Edit:
    d_ffn, d_model = lm.memory(1, 0).values.shape
    places = [(1, 0), (1, 2), (2, 1)]
    return ExpertsEdit(origin(lm), {place: (drawn(seed, d_ffn, 1), drawn(seed + 1, 1, d_model)) for place in places})


def scaled(lm: LanguageModel, seed: int) -> Edit:
    return CoefficientEdit.of(lm, origin(lm), {(1, 3): 30.0, (1, 4): 0.0, (2, 5): float(seed)})


def set_where_predicting(lm: LanguageModel, seed: int) -> Edit:
    return CoefficientEdit.of(lm, origin(lm), {(1, 3): 9.0, (2, 5): float(seed)}, "predicting", "set")


def side_memory(lm: LanguageModel, seed: int) -> Edit:
    memory = lm.memory(2)
    return SideMemoryEdit.of(memory, origin(lm), drawn(seed, 1, *memory.values.shape), torch.zeros(1))


def codebook(lm: LanguageModel, seed: int) -> Edit:
    memory = lm.memory(1)
    entries = drawn(seed, 2, memory.d_ffn), drawn(seed, 2, memory.d_model), torch.full((2,), 1e6)
    return CodebookEdit.of(memory, origin(lm), *entries)


def attached(lm: LanguageModel, seed: int) -> Edit:
    layers = []
    for layer in (1, 2):
        memory = lm.memory(layer)
        keys = torch.nn.functional.normalize(drawn(seed, 2, 5), dim=1)
        view = torch.zeros(memory.d_ffn), drawn(seed, memory.d_ffn, 5)
        spoken = drawn(seed, 2, memory.d_model), torch.full((2,), -1.0)  # a cosine is always above: all speak
        layers.append(AttachedLayer(memory.layer, memory.path, *view, keys, *spoken))
    return AttachedEdit.of(origin(lm), layers)


def context(lm: LanguageModel, seed: int) -> Edit:
    return ContextEdit(origin(lm), "the red tower . " * seed)


KINDS: list[Make] = [
    low_rank,
    values,
    experts,
    scaled,
    set_where_predicting,
    side_memory,
    codebook,
    attached,
    context,
]
SOME: list[Make] = [low_rank, experts, set_where_predicting, attached]
"""With several layers or parts each, and all that the others have."""


def state(lm: LanguageModel) -> dict[str, Any]:
    """All that an edit may change: weights, hooks, what forwards are told, and what the model answers."""
    found: dict[str, Any] = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    hooked = [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in lm.model.modules()]
    with torch.no_grad():
        found["logits"] = lm.model(input_ids=torch.tensor([lm.tokens(PROMPT)])).logits
    return found | {"hooked": hooked, "active": lm.routing.active, "generate": "generate" in lm.model.__dict__}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        torch.equal(part, other[name]) if isinstance(part, Tensor) else part == other[name]
        for name, part in one.items()
    )


class Stacked:
    """A model with edits below and above the one that is looked at: of weights (on the same layers) and of hooks."""

    def __init__(self, make: Make) -> None:
        self.lm = tiny.build("mixtral" if make is experts else "llama")
        self.clean = state(self.lm)
        others: list[Make] = [experts] if make is experts else [low_rank, scaled]
        self.edit = make(self.lm, 5)
        self.below = [other(self.lm, 11) for other in others]
        self.above = [other(self.lm, 12) for other in others]

    def emptied(self) -> None:
        """Reverts everything; the original bits are there, and nothing else."""
        for edit in list(self.lm.edits):
            edit.revert(self.lm)
        assert same(state(self.lm), self.clean)
        assert not self.lm.edits.untouched

    def put(self, *edits: Edit) -> dict[str, Any]:
        for edit in edits:
            edit.apply(self.lm)
        return state(self.lm)


def check_apply(make: Make, fault: faults.Fault, most: int | None = None) -> None:
    at = Stacked(make)
    after = at.put(*at.below, at.edit)
    at.emptied()
    before = at.put(*at.below)

    def again() -> None:
        at.emptied()
        at.put(*at.below)

    for error in faults.everywhere(fault, lambda: at.edit.apply(at.lm), again, most):
        applied = at.edit in at.lm.edits
        if isinstance(error, torch.OutOfMemoryError):
            at.lm.edits.settle()  # there may have been no memory for bringing it back either
        assert same(state(at.lm), after if applied else before)
        assert error is not None or applied
    at.emptied()


def check_revert(make: Make, fault: faults.Fault, most: int | None = None) -> None:
    at = Stacked(make)
    after = at.put(*at.below, *at.above)
    at.emptied()
    before = at.put(*at.below, at.edit, *at.above)

    def again() -> None:
        at.emptied()
        at.put(*at.below, at.edit, *at.above)

    for error in faults.everywhere(fault, lambda: at.edit.revert(at.lm), again, most):
        applied = at.edit in at.lm.edits
        if not isinstance(error, torch.OutOfMemoryError):
            assert same(state(at.lm), before if applied else after)
        if applied:
            at.edit.revert(at.lm)  # a second call finishes it
        assert same(state(at.lm), after)
        assert error is not None or not applied
    at.emptied()


def check_suspended(make: Make, fault: faults.Fault, most: int | None = None) -> None:
    """Whatever is interrupted, the edits are there again after the block, in their order."""
    at = Stacked(make)
    edits = [*at.below, at.edit, *at.above]
    before = at.put(*edits)

    def run() -> None:
        with at.lm.edits.suspended():
            assert not at.lm.edits

    def again() -> None:
        at.emptied()
        at.put(*edits)

    for error in faults.everywhere(fault, run, again, most):
        at.lm.edits.settle()
        if isinstance(error, torch.OutOfMemoryError) and not at.lm.edits:  # they could not come back, and it is known
            assert same(state(at.lm), at.clean)
            again()
        assert list(at.lm.edits) == edits
        assert same(state(at.lm), before)
    at.emptied()


def check_applied(make: Make, fault: faults.Fault, most: int | None = None) -> None:
    """After the block the edit is gone, however it was left."""
    at = Stacked(make)
    before = at.put(*at.below)

    def run() -> None:
        with at.edit.applied(at.lm):
            pass

    def again() -> None:
        at.emptied()
        at.put(*at.below)

    for error in faults.everywhere(fault, run, again, most):
        if isinstance(error, torch.OutOfMemoryError) and at.edit in at.lm.edits:
            at.edit.revert(at.lm)  # it could not, for want of memory
        at.lm.edits.settle()
        assert at.edit not in at.lm.edits
        assert same(state(at.lm), before)
    at.emptied()


CHECKS = [check_apply, check_revert, check_suspended, check_applied]


@pytest.mark.parametrize("fault", faults.FAULTS)
@pytest.mark.parametrize("make", SOME, ids=lambda make: make.__name__)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_some_kinds_at_some_steps(check: Callable[..., None], make: Make, fault: str) -> None:
    check(make, faults.FAULTS[fault], 12)


@pytest.mark.nightly
@pytest.mark.parametrize("fault", faults.DEEP)
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_every_kind_at_every_step(check: Callable[..., None], make: Make, fault: str) -> None:
    check(make, faults.DEEP[fault], 500 if fault == "bytecodes" else None)


def test_the_error_of_the_block_is_the_one_that_is_seen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lm = tiny.build("llama")
    edit, clean = low_rank(lm, 1), state(lm)

    def run() -> None:
        with monkeypatch.context() as patched, edit.applied(lm):
            patched.setattr(Tensor, "copy_", lambda *_: [].pop())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as seen:
        run()
    assert "IndexError" in caplog.text
    assert sys.version_info < (3, 11) or "IndexError" in seen.value.__notes__[0]
    assert edit in lm.edits
    edit.revert(lm)
    assert same(state(lm), clean)


def test_what_is_half_written_is_finished_before_the_next_edit() -> None:
    """Not even bringing back can write: both calls that come after it are right, and nobody warns of values by hand."""
    lm = tiny.build("llama")
    first, second, clean = low_rank(lm, 1), low_rank(lm, 3), state(lm)
    second.apply(lm)
    only_second = state(lm)
    second.revert(lm)
    first.apply(lm)
    write, written = Tensor.copy_, list[int]()

    def once(tensor: Tensor, other: Tensor) -> Tensor:
        written.append(1)
        if len(written) > 1:
            raise torch.OutOfMemoryError("no memory left")
        return write(tensor, other)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Tensor, "copy_", once)
        with pytest.raises(torch.OutOfMemoryError):
            first.revert(lm)
    assert first in lm.edits
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with lm.edits.suspended():
            assert same(state(lm), clean)
        first.revert(lm)
        second.apply(lm)  # strict: the values are what loading made of them
    assert same(state(lm), only_second)
    second.revert(lm)
    assert same(state(lm), clean)


@pytest.mark.parametrize("make", [make for make in KINDS if make is not experts], ids=lambda make: make.__name__)
def test_a_copy_has_its_own_edits(make: Make) -> None:
    lm = tiny.build("llama")
    edit, clean = make(lm, 2), state(lm)
    edit.apply(lm)
    edited = state(lm)
    twin = copy.deepcopy(lm)
    assert same(state(twin), edited)
    assert same(state(lm), edited)
    edit.revert(lm)
    assert same(state(lm), clean)
    assert same(state(twin), edited)
    edit.revert(twin)
    assert same(state(twin), clean)
    with edit.applied(twin):
        assert same(state(twin), edited)
    assert same(state(lm), clean)
