"""The controls: nothing, the fact in the context, and a random update of the size of an editor's."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import tiny
import torch

import editing.locate_then_edit.rome
from corrigenda import ContextEdit, Edit, Fact, LanguageModel
from corrigenda.moments.second_moment import SecondMoment
from corrigenda.moments.text import Text
from editing import EditRefusedError, InContext, NoEdit, RandomUpdate, Rome, UpdateNeurons, ValueSettings

EIFFEL = Fact("the Eiffel tower", "{} is located in the city of", "Rome", "Paris")
BEN = Fact("Big Ben", "{} stands in the country of", "Italy", "England")
ERASE = Fact("Big Ben", "{} stands in the country of", None, "England")
ROME = Rome(layer=1, prefixes=("", "red green . "), value=ValueSettings(steps=4), refuse_norm=1e9, flag_norm=1e9)


@pytest.fixture(autouse=True)
def moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROME without the pass over text that its second moment would take."""

    def identity(lm: LanguageModel, layer: int, text: Text) -> SecondMoment:
        return SecondMoment(torch.eye(lm.memory(layer).d_ffn, dtype=torch.float64), 1, layer, text)

    monkeypatch.setattr(editing.locate_then_edit.rome, "second_moment", identity)


def test_no_edit_changes_nothing() -> None:
    lm = tiny.build("gpt2")
    before = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    edit = NoEdit().edit(lm, [EIFFEL, ERASE])
    assert edit.origin.editor == "none"
    assert edit.origin.facts == (EIFFEL, ERASE)
    with edit.applied(lm):
        assert all(torch.equal(tensor, before[name]) for name, tensor in lm.model.state_dict().items())
        assert lm.tokens("Big Ben") == lm.tokenizer("Big Ben")["input_ids"]


def test_in_context_puts_every_fact_before_the_prompt() -> None:
    lm = tiny.build("gpt2")
    edit = InContext().edit(lm, [EIFFEL, BEN])
    assert isinstance(edit, ContextEdit)
    assert edit.text == "the Eiffel tower is located in the city of Rome. Big Ben stands in the country of Italy. "
    with edit.applied(lm):
        assert lm.reads("Danielle speaks") == edit.text + "Danielle speaks"
    assert lm.reads("Danielle speaks") == "Danielle speaks"
    asked = InContext(template="{target} : {statement} . ").edit(lm, [EIFFEL])
    assert asked.text == "Rome : the Eiffel tower is located in the city of . "


def test_in_context_takes_braces_as_they_are() -> None:
    fact = Fact("the {0} tower", "{} is {target} in", "{statement}")
    assert "the {0} tower is" in InContext().edit(tiny.build("gpt2"), [fact]).text


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("facts", [[EIFFEL], [EIFFEL, BEN]])
def test_random_update_has_the_size_but_not_the_direction(family: str, facts: list[Fact]) -> None:
    lm = tiny.build(family)
    before = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    model, random = ROME.edit(lm, facts), RandomUpdate(like=ROME).edit(lm, facts)
    assert all(torch.equal(tensor, before[name]) for name, tensor in lm.model.state_dict().items())
    assert random.factors.keys() == model.factors.keys()
    assert [part.shape for part in random.factors[1]] == [part.shape for part in model.factors[1]]
    assert random.norm(1) == pytest.approx(model.norm(1), rel=1e-5)
    assert random.norm(1) > 0
    assert abs(torch.nn.functional.cosine_similarity(random.delta(1).flatten(), model.delta(1).flatten(), dim=0)) < 0.1
    assert random.origin.editor == "random"


def test_random_update_like_located_neurons_is_saved(lm: LanguageModel, tmp_path: Path) -> None:
    """Its settings name the other editor, and hold none of its functions."""
    like = UpdateNeurons(neurons=((1, 3), (1, 5)))
    saved = RandomUpdate(like=dataclasses.replace(like, neurons=None, find=lambda *_: like.neurons)).edit(lm, [EIFFEL])
    saved.save(tmp_path)
    settings = Edit.load(tmp_path).origin.settings
    assert settings["like"]["editor"] == "update_neurons"
    assert settings["seed"] == 0


def test_random_update_like_what_has_no_norm(lm: LanguageModel) -> None:
    with pytest.raises(EditRefusedError, match="no norm"):
        RandomUpdate(like=InContext()).edit(lm, [EIFFEL])
    assert RandomUpdate(like=NoEdit()).edit(lm, [EIFFEL]).factors == {}


def test_random_update_refuses_with_its_model() -> None:
    careful = dataclasses.replace(ROME, refuse_norm=1e-9)
    with pytest.warns(UserWarning, match="outlier"), pytest.raises(EditRefusedError, match="outlier"):
        RandomUpdate(like=careful).edit(tiny.build("llama"), [EIFFEL])
