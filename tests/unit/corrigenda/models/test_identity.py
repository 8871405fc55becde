import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch

from corrigenda import LanguageModel, LowRankEdit, Origin, WrongModelError
from corrigenda.moments.second_moment import second_moment
from corrigenda.moments.text import Text
from eval import EvalSettings
from eval.measure import depends_on

TEXT = Text(tokens=64, length=16)


def again(lm: LanguageModel, change: Callable[[LanguageModel], object]) -> LanguageModel:
    """The same weights in another model."""
    other = LanguageModel(copy.deepcopy(lm.model), copy.deepcopy(lm.tokenizer), lm.name)
    change(other)
    return other


CHANGES: dict[str, Callable[[LanguageModel], object]] = {
    "activation": lambda lm: setattr(lm.model.config, "hidden_act", "gelu"),
    "window": lambda lm: setattr(lm.model.config, "sliding_window", 4),
    "positions": lambda lm: setattr(lm.model.config, "rope_parameters", {"rope_type": "default", "rope_theta": 5e5}),
    "tokens": lambda lm: lm.tokenizer.add_tokens(["Eiffel tower"]),
}
SAME: dict[str, Callable[[LanguageModel], object]] = {
    "name": lambda lm: setattr(lm.model.config, "_name_or_path", "elsewhere"),
    "cache": lambda lm: setattr(lm.model.config, "use_cache", False),
    "padding": lambda lm: lm.tokenizer(["the tower", "is in the city of Rome"], padding=True),
}


@pytest.mark.parametrize("what", CHANGES)
def test_equal_weights_that_answer_differently_have_another_key(lm: LanguageModel, what: str) -> None:
    other = again(lm, CHANGES[what])
    assert other.fingerprint == lm.fingerprint
    assert other.cache_key != lm.cache_key


def test_what_ends_an_answer_is_part_of_what_answers_go_by(lm: LanguageModel) -> None:
    other = again(lm, lambda other: setattr(other.model.generation_config, "eos_token_id", [2, 8]))
    assert other.end_ids == {2, 8} != lm.end_ids
    assert other.cache_key == lm.cache_key
    assert other.answers_key != lm.answers_key
    assert depends_on(other, EvalSettings(), "eval.measure") != depends_on(lm, EvalSettings(), "eval.measure")


def test_what_begins_an_answer_is_part_of_the_key() -> None:
    lm = tiny.build("bart")
    other = again(lm, lambda other: None)
    assert other.cache_key == lm.cache_key
    model = copy.deepcopy(lm.model)
    model.generation_config.decoder_start_token_id = 5
    assert LanguageModel(model, copy.deepcopy(lm.tokenizer), lm.name).cache_key != lm.cache_key


@pytest.mark.parametrize("what", SAME)
def test_what_changes_no_answer_changes_no_key(lm: LanguageModel, what: str) -> None:
    assert again(lm, SAME[what]).cache_key == lm.cache_key


@pytest.mark.parametrize("through_data", [False, True])
@pytest.mark.parametrize("part", ["attention", "values"])
def test_weights_that_were_changed_by_hand_take_nothing_from_the_disk_and_leave_nothing(
    lm: LanguageModel, part: str, through_data: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path))
    kept = second_moment(lm, 1, TEXT).matrix
    weight = lm.memory(0).weight if part == "values" else lm.model.model.layers[0].self_attn.q_proj.weight
    held = weight.detach().clone()
    with torch.no_grad():
        (weight.data if through_data else weight).mul_(2.0)
    files = sorted(tmp_path.rglob("*"))
    for layer in (1, 2):
        with pytest.raises(WrongModelError, match="changed by hand since its fingerprint was taken"):
            second_moment(lm, layer, TEXT)
    assert sorted(tmp_path.rglob("*")) == files
    with torch.no_grad():
        weight.copy_(held)
    assert torch.equal(second_moment(lm, 1, TEXT).matrix, kept)


def test_edits_and_moves_are_no_change_by_hand(lm: LanguageModel) -> None:
    key = lm.cache_key
    factors = {1: (torch.ones(48, 1), torch.ones(1, tiny.WIDTH))}
    with LowRankEdit.of(lm, Origin(lm.name, lm.fingerprint, "by hand"), factors).applied(lm):
        assert lm.cache_key == key
        for parameter in lm.model.parameters():
            parameter.data = parameter.data.clone()
        assert lm.cache_key == key
    assert lm.cache_key == key
