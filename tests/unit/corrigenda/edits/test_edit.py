"""Edits of weights: what they write, in every order to the bit, and as adapters; contexts; what edits say."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import tiny
import torch
from edits_parts import (
    FACT,
    PROMPT,
    Make,
    attached,
    blocks,
    codebook,
    drawn,
    hopfield,
    low_rank,
    origin,
    same,
    scoped,
    side_memory,
    state,
    weights,
)
from malformed_parts import refused
from torch import Tensor

from corrigenda import ContextEdit, Edit, Fact, LanguageModel, LowRankEdit, ValueEdit, WrongModelError
from corrigenda.edits.experts import ExpertsEdit
from corrigenda.forward.recording import forward_logits


def build(family: str, dtype: torch.dtype = torch.float32) -> LanguageModel:
    lm = tiny.build(family)
    lm.model.to(dtype)
    return lm


def logits(model: Any) -> Tensor:
    """(row, position, vocabulary), by the model alone."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([[5, 6, 7, 8, 9], [10, 11, 12, 13, 14]])).logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["llama", "gpt2"])  # a Linear and a Conv1D
def test_every_order(family: str, dtype: torch.dtype) -> None:
    """Three edits on the same and on other layers, applied and reverted in every order.

    What is left has the bits of a fresh model with those edits, in their order.
    """
    lm = build(family, dtype)
    edits = [low_rank(lm, 1, {1: 2, 2: 1}), low_rank(lm, 2, {1: 1}), low_rank(lm, 3, {1: 3, 3: 2})]
    edits[1].factors[1][0].mul_(1e3)  # what is much larger would eat up low bits if edits were subtracted again
    fresh: dict[tuple[LowRankEdit, ...], dict[str, Any]] = {}
    for some in (order for n in range(4) for order in itertools.permutations(edits, n)):
        other = build(family, dtype)
        for edit in some:
            edit.apply(other)
        fresh[some] = weights(other)

    for there, back in itertools.product(itertools.permutations(edits), repeat=2):
        applied: list[LowRankEdit] = []
        for edit in there:
            edit.apply(lm)
            applied.append(edit)
            assert list(lm.edits) == applied
            assert same(weights(lm), fresh[tuple(applied)])
        for edit in back:
            edit.revert(lm)
            applied.remove(edit)
            assert same(weights(lm), fresh[tuple(applied)])
    assert not lm.edits.untouched  # nothing is kept that is not needed


@pytest.mark.parametrize("family", [*tiny.CONFIGS, *tiny.ENCODER_DECODERS])
def test_delta_lands_in_the_values(family: str) -> None:
    lm = tiny.build(family)
    before, values, edit = weights(lm), lm.memory(2).values.clone(), low_rank(lm, 0, {2: 2})
    with edit.applied(lm):
        assert torch.equal(lm.memory(2).values, values + edit.delta(2))
        changed = [name for name, tensor in lm.model.state_dict().items() if not torch.equal(tensor, before[name])]
        assert changed == [f"{edit.modules[2]}.weight"]
    assert same(weights(lm), before)
    assert edit.norm(2) == pytest.approx(float((edit.factors[2][0] @ edit.factors[2][1]).double().norm()), rel=1e-5)


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])  # stored as V_e and as its transpose
def test_the_product_lands_in_the_experts_values(family: str, tmp_path: Path) -> None:
    lm = tiny.build(family)
    d_ffn, d_model = lm.memory(2, 1).values.shape
    left, right = drawn(0, d_ffn, 2), drawn(1, 2, d_model)
    ExpertsEdit(origin(lm), {(2, 1): (left, right)}).save(tmp_path / "edit")
    before = [lm.memory(2, expert).values.clone() for expert in range(4)]
    with Edit.load(tmp_path / "edit").applied(lm):
        torch.testing.assert_close(lm.memory(2, 1).values, before[1] + left @ right, atol=1e-6, rtol=1e-6)
        assert all(torch.equal(lm.memory(2, expert).values, before[expert]) for expert in (0, 2, 3))
    assert all(torch.equal(lm.memory(2, expert).values, before[expert]) for expert in range(4))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_edits_add_up(dtype: torch.dtype) -> None:
    """Together they add the sum of their deltas, taken in float64 and rounded once."""
    lm = build("llama", dtype)
    values = lm.memory(1).values.clone().double()
    for rank in (1, 2, 3):
        edit = low_rank(lm, rank, {1: rank})
        edit.apply(lm)
        values += edit.factors[1][0].double() @ edit.factors[1][1].double()
    close = {"rtol": 1e-12, "atol": 1e-12} if dtype == torch.float64 else {}
    torch.testing.assert_close(lm.memory(1).values, values.to(dtype), **close)


def test_an_edit_that_fails_half_way_is_not_applied(lm: LanguageModel) -> None:
    """Layer 2 lies offloaded; layer 1, done before it, is put back."""
    edit, before = low_rank(lm, 0), lm.memory(1).values.clone()
    module = lm.architecture.values(2)
    module.weight = torch.nn.Parameter(module.weight.to("meta"), requires_grad=False)
    refused(ValueError, r"layers\.2\..* is offloaded", edit.apply, lm)
    assert list(lm.edits) == []
    assert torch.equal(lm.memory(1).values, before)


def test_twice_and_not_at_all(lm: LanguageModel) -> None:
    edit, other = low_rank(lm, 0), low_rank(lm, 0)
    with edit.applied(lm):
        once = state(lm)
        refused(ValueError, "applied already", edit.apply, lm)
        with pytest.raises(ValueError, match="not applied to this model"):
            other.revert(lm)  # equal, but another edit
        assert same(state(lm), once)
    refused(ValueError, "not applied to this model", edit.revert, lm)


def test_layers_counted_from_the_end(lm: LanguageModel) -> None:
    """Layer -1 and layer 3 are one layer, also to the store of untouched values."""
    before, last, third = state(lm), low_rank(lm, 1, {-1: 1}), low_rank(lm, 2, {3: 1})
    assert list(last.factors) == list(last.modules) == [3]
    for edit in (last, third):
        edit.apply(lm)
    for edit in (last, third):
        edit.revert(lm)
    assert same(state(lm), before)


def test_a_whole_change_is_its_own(lm: LanguageModel) -> None:
    change = torch.ones(lm.memory(1).values.shape)
    edit = ValueEdit.of(lm, origin(lm), {1: change})
    change[0, 0] = 2.0
    assert float(edit.delta(1)[0, 0]) == 1.0


def test_context_is_read(lm: LanguageModel) -> None:
    first, second = (ContextEdit(origin(lm), text) for text in ("the tower is in Rome . ", "Ben plays piano . "))
    plain, batch = lm.tokens(PROMPT), lm.batch([lm.tokens(PROMPT)])
    alone = forward_logits(lm, batch, batch.lengths - 1)
    with first.applied(lm), second.applied(lm):
        assert lm.reads(PROMPT) == f"{first.text}{second.text}{PROMPT}"
        assert lm.tokens(PROMPT)[-len(plain) :] == plain
        batch = lm.batch([lm.tokens(PROMPT)])
        assert not torch.allclose(forward_logits(lm, batch, batch.lengths - 1), alone, atol=1e-2)
        told = lm.generate(PROMPT, 5)
        first.revert(lm)
        assert lm.reads(PROMPT) == second.text + PROMPT
        first.apply(lm)
    assert lm.tokens(PROMPT) == plain
    assert lm.generate(first.text + second.text + PROMPT, 5) == told


@pytest.mark.parametrize("layer", [1, 7, -1])
@pytest.mark.parametrize("strict", [True, False])
def test_other_shapes(layer: int, strict: bool, lm: LanguageModel) -> None:
    """Another width of the FFN, and a layer that there is not: refused whatever `strict` says."""
    other = tiny.build("gpt2")
    before = state(other)
    factors = {layer: (torch.ones(48 if layer == 1 else 128, 1), torch.ones(1, tiny.WIDTH))}
    edit = LowRankEdit(origin(other if layer != 1 else lm), factors, {layer: "anywhere"}, transposed=True)
    with pytest.raises(WrongModelError, match=f"layer {layer}" if not strict or layer != 1 else "made on"):
        edit.apply(other, strict=strict)
    assert list(other.edits) == []
    assert same(state(other), before)


ADAPTERS = [(family, {1: 1, 3: 4}) for family in ("llama", "gpt2", "opt", "bert", "bloom", "gpt_neox", "phi3")]
ADAPTERS += [("llama", {1: 3, 11: 1, 12: 2})]  # the rank of layer 1 is not taken for that of layer 11


@pytest.mark.filterwarnings("error:.*fan_in_fan_out")  # PEFT sets right what does not fit, with a warning
@pytest.mark.parametrize(("family", "ranks"), ADAPTERS)
def test_peft_adapter_is_the_edit(
    family: str, ranks: dict[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if 12 in ranks:
        monkeypatch.setitem(tiny.CONFIGS, family, tiny.CONFIGS[family] | {"num_hidden_layers": 13})
    lm = tiny.build(family)
    plain, edit = logits(lm.model), low_rank(lm, 0, ranks)
    edit.to_peft(tmp_path / "adapter")
    with edit.applied(lm):
        edited = logits(lm.model)
    assert not torch.allclose(edited, plain, atol=1e-2)
    adapted = peft.PeftModel.from_pretrained(tiny.build(family).model, str(tmp_path / "adapter"))
    torch.testing.assert_close(logits(adapted), edited, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits(adapted.merge_and_unload()), edited, atol=1e-4, rtol=1e-4)
    names = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors"}


def test_describe(lm: LanguageModel) -> None:
    edit = low_rank(lm, 0, {1: 2})
    first, second = edit.describe().splitlines()
    assert first == f"low_rank edit of tiny-llama by by hand: layer 1, rank 2, |delta V| {edit.norm(1):.3f}"
    assert second == "  the Eiffel Tower is located in: Paris -> Rome"
    insert = Fact("Ben", "{} plays", target_new="piano")
    erase = Fact("Ben", "{} plays", target_new=None, target_true="guitar")
    many = replace(origin(lm), facts=(insert, erase, *[FACT] * 10), report=({},) * 12)
    lines = ContextEdit(many, "the tower . ").describe().splitlines()
    assert "the tower . " in lines[0]
    assert lines[1:3] == ["  Ben plays: (nothing) -> piano", "  Ben plays: guitar -> (erased)"]
    assert len(lines) == 12
    assert lines[-1] == "  and 2 more"


@pytest.mark.parametrize(
    "make", [codebook, blocks, hopfield, attached, scoped, side_memory], ids=lambda make: make.__name__
)
def test_edits_beside_the_weights_that_differ_in_a_number_have_another_hash(make: Make, lm: LanguageModel) -> None:
    one, other = make(lm, 1), make(lm, 2)
    assert one._settings() == other._settings()
    hashes = []
    for edit in (one, other, one):
        with edit.applied(lm):
            hashes.append(lm.edits.content_hash())
    assert hashes[0] == hashes[2] != hashes[1]
