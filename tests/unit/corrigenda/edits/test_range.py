"""What an edit writes, or puts into a forward, is finite in the model's precision, and does not vanish in rounding."""

import warnings
from pathlib import Path

import pytest
import tiny
import torch
from edits_parts import origin, same, weights

from corrigenda import (
    CodebookEdit,
    CoefficientEdit,
    EditRefusedError,
    LanguageModel,
    LowRankEdit,
    SideMemoryEdit,
    ValueEdit,
)
from corrigenda.edits.experts import ExpertsEdit


def built(dtype: torch.dtype, family: str = "llama") -> LanguageModel:
    lm = tiny.build(family)
    lm.model.to(dtype)
    return lm


def filled(lm: LanguageModel, size: float, *layers: int) -> LowRankEdit:
    """Every number of the layers' change is `size`."""
    d_ffn, d_model = lm.memory(1).values.shape
    factors = {layer: (torch.full((d_ffn, 1), size), torch.ones(1, d_model)) for layer in layers}
    return LowRankEdit.of(lm, origin(lm), factors)


def test_an_edit_that_overflows_is_refused_whole() -> None:
    lm = built(torch.float16)
    before = weights(lm)
    large = filled(lm, 90_000, 1)
    edit = LowRankEdit.of(lm, origin(lm), {**filled(lm, 1, 0).factors, **large.factors})
    with pytest.raises(EditRefusedError, match=r"layer 1 of .*not finite in float16.*up to 6.55e\+04"):
        edit.apply(lm)
    assert not lm.edits
    assert not lm.edits.untouched
    assert same(weights(lm), before)


@pytest.mark.parametrize("kind", ["low_rank", "values", "experts"])
def test_edits_that_overflow_together(kind: str) -> None:
    lm = built(torch.float16, "mixtral" if kind == "experts" else "llama")

    def make() -> LowRankEdit | ValueEdit | ExpertsEdit:
        if kind == "experts":
            d_ffn, d_model = lm.memory(1, 0).values.shape
            return ExpertsEdit(origin(lm), {(1, 0): (torch.full((d_ffn, 1), 40_000.0), torch.ones(1, d_model))})
        if kind == "values":
            return ValueEdit.of(lm, origin(lm), {1: torch.full(lm.memory(1).values.shape, 40_000.0)})
        return filled(lm, 40_000, 1)

    before, first, second = weights(lm), make(), make()
    first.apply(lm)
    one = weights(lm)
    with pytest.raises(EditRefusedError, match="not finite in float16"):
        second.apply(lm)
    assert list(lm.edits) == [first]
    assert same(weights(lm), one)
    first.revert(lm)
    assert same(weights(lm), before)


def test_what_is_left_may_overflow() -> None:
    """An edit that another one holds in range cannot go first; the model stays as it was, and the other order works."""
    lm = built(torch.float16)
    before = weights(lm)
    edits = [filled(lm, 40_000, 1), filled(lm, -40_000, 1), filled(lm, 40_000, 1)]
    for edit in edits:
        edit.apply(lm)
    three = weights(lm)
    with pytest.raises(EditRefusedError):
        edits[1].revert(lm)
    assert list(lm.edits) == edits
    assert same(weights(lm), three)
    for edit in reversed(edits):
        edit.revert(lm)
    assert same(weights(lm), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_rounding_takes_away_is_said(dtype: torch.dtype) -> None:
    lm = built(dtype)
    lm.memory(1).weight.data.uniform_(0.5, 1.0)
    with pytest.warns(UserWarning, match=r"layer 1 of .* is lost in rounding to"):
        filled(lm, 1e-6, 1).apply(lm)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filled(lm, 0.5, 1).apply(lm)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_change_that_asks_for_nothing_is_not_said_to_be_lost(dtype: torch.dtype) -> None:
    lm = built(dtype)
    lm.memory(1).weight.data.uniform_(0.5, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        filled(lm, 1e-9, 1).apply(lm)


def test_a_model_that_is_not_finite_is_not_written(lm: LanguageModel, tmp_path: Path) -> None:
    lm.memory(1).weight.data[0, 0] = float("inf")
    with pytest.raises(ValueError, match=r"the weights model.layers.1.mlp.down_proj.weight .* not all finite"):
        lm.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_what_float16_does_not_hold_in_a_forward_is_refused() -> None:
    lm = built(torch.float16)
    memory = lm.memory(1)
    shape = memory.values.shape
    edits = [
        CoefficientEdit.of(lm, origin(lm), {(1, 3): 1e6}, how="set"),
        CoefficientEdit.of(lm, origin(lm), {(1, 3): 1e7}),
        SideMemoryEdit.of(memory, origin(lm), torch.full((1, *shape), 1e6), torch.zeros(1)),
        CodebookEdit.of(
            memory, origin(lm), torch.zeros(1, shape[0]), torch.full((1, shape[1]), 1e6), torch.full((1,), 1e6)
        ),
    ]
    for edit in edits:
        with edit.applied(lm), pytest.raises(EditRefusedError, match=r"numbers at layer 1 that float16 does not hold"):
            lm.generate("the Eiffel tower is in the city of", 3)
    assert lm.generate("the Eiffel tower is in", 3)
