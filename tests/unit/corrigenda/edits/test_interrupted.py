"""Apply and revert, interrupted at every step: the model is as before or as after, the stack knows, nothing is lost."""

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import faults
import pytest
import torch
from edits_parts import KINDS, SOME, Make, build, experts, low_rank, same, scaled, state
from torch import Tensor

from corrigenda import Edit, LanguageModel


@pytest.fixture(autouse=True)
def gradients_stay_on() -> Iterator[None]:
    """A fault in the end of a `torch.no_grad` leaves gradients off, for all tests that follow."""
    with torch.enable_grad():
        yield


class Stacked:
    """A model with edits below and above the one that is looked at: of weights (on the same layers) and of hooks."""

    def __init__(self, make: Make) -> None:
        self.lm = build(make)
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

    def anew(self, *edits: Edit) -> Callable[[], object]:
        """What leaves these edits alone on the model, whatever there is."""
        return lambda: (self.emptied(), self.put(*edits))


def check_apply(make: Make, fault: faults.Fault, most: int | None = None) -> None:
    at = Stacked(make)
    after = at.put(*at.below, at.edit)
    at.emptied()
    before = at.put(*at.below)
    for error in faults.everywhere(fault, lambda: at.edit.apply(at.lm), at.anew(*at.below), most):
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
    again = at.anew(*at.below, at.edit, *at.above)
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
    before, again = at.put(*edits), at.anew(*edits)

    def run() -> None:
        with at.lm.edits.suspended():
            assert not at.lm.edits

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

    for error in faults.everywhere(fault, run, at.anew(*at.below), most):
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
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_what_is_half_written_is_finished_before_the_next_edit(lm: LanguageModel) -> None:
    """Not even bringing back can write: both calls that come after it are right, and nobody warns of values by hand."""
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
