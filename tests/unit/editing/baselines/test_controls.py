import dataclasses
from pathlib import Path

import pytest
import tiny
import torch
from stand_ins import identity_moments
from wise_parts import BEN, EIFFEL

from corrigenda import ContextEdit, Edit, Fact, LanguageModel
from editing import EditRefusedError, InContext, NoEdit, RandomUpdate, Rome, UpdateNeurons, ValueSettings

ERASE = Fact("Big Ben", "{} stands in the country of", None, "England")
ROME = Rome(layer=1, prefixes=("", "red green . "), value=ValueSettings(steps=4), refuse_norm=1e9, flag_norm=1e9)


@pytest.fixture(autouse=True)
def moment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    identity_moments(monkeypatch, tmp_path)


def test_no_edit_takes_every_fact() -> None:
    assert NoEdit().edit(tiny.build("gpt2"), [EIFFEL, ERASE]).origin.facts == (EIFFEL, ERASE)


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
    model, random = ROME.edit(lm, facts), RandomUpdate(like=ROME).edit(lm, facts)
    assert random.factors.keys() == model.factors.keys()
    assert [part.shape for part in random.factors[1]] == [part.shape for part in model.factors[1]]
    assert random.norm(1) == pytest.approx(model.norm(1), rel=1e-5)
    assert random.norm(1) > 0
    assert abs(torch.nn.functional.cosine_similarity(random.delta(1).flatten(), model.delta(1).flatten(), dim=0)) < 0.1


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
