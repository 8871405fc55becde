from typing import Any

import pytest
import tiny
import torch

from corrigenda import Fact, LanguageModel
from corrigenda.forward.products import bfloat16_products
from corrigenda.models.matrices import is_matrix, stores_transposed
from editing.locate_then_edit.prompt_run import run_prompts
from editing.locate_then_edit.prompts import build_prompts
from editing.locate_then_edit.targets import ValueSettings, solve_target_values


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "opt", "gpt2"])
def test_they_are_those_of_weights_and_inputs_in_bfloat16(family: str) -> None:
    lm = tiny.build(family)
    maps: list[Any] = [part for block in lm.architecture.blocks for part in block.modules() if is_matrix(part)]
    weight = maps[0].weight if stores_transposed(maps[0]) else maps[0].weight.T
    states = torch.randn(3, len(weight), generator=torch.Generator().manual_seed(0))
    plain = maps[0](states)
    with bfloat16_products(lm):
        found = maps[0](states)
    by_hand = (states.bfloat16() @ weight.bfloat16()).float()
    by_hand = by_hand if maps[0].bias is None else by_hand + maps[0].bias
    assert torch.equal(found, by_hand)
    assert not torch.equal(found, plain)
    assert torch.equal(maps[0](states), plain)
    assert not any("forward" in vars(part) for part in maps)


def test_only_from_a_block_on_and_also_after_an_error(lm: LanguageModel) -> None:

    def changed() -> list[bool]:
        return [any("forward" in vars(part) for part in block.modules()) for block in lm.architecture.blocks]

    with bfloat16_products(lm, 2):
        assert changed() == [False, False, True, True]
    with pytest.raises(IndexError), bfloat16_products(lm):
        lm.memory(99)
    assert not any(changed())


def test_targets_are_nearly_the_same(lm: LanguageModel) -> None:
    facts = [Fact("the Eiffel tower", "{} is located in", "Rome"), Fact("Thomas", "the city of {} is", "Berlin")]
    run = run_prompts(lm, build_prompts(lm, facts, ["", "and so. "], "{} is a", "subject"), [1], ())
    plain = solve_target_values(lm, run, 1, ValueSettings())
    half = solve_target_values(lm, run, 1, ValueSettings(products="bfloat16"))
    assert not torch.equal(plain.values, half.values)
    assert torch.cosine_similarity(plain.values, half.values).min() > 0.95


def test_a_model_without_such_maps_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with bfloat16_products(tiny.build("falcon")):
        assert "nothing is faster" in caplog.text
    caplog.clear()
    with bfloat16_products(tiny.build("llama")):
        assert "nothing is faster" not in caplog.text
