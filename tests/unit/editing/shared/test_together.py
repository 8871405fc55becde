"""Facts that contradict or repeat one another in one call of an editor: the last request counts, and it is said."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from corrigenda import Edit, Fact, LanguageModel
from corrigenda.edits.weights import WeightEdit
from corrigenda.moments.text import Text
from editing import FineTune, Rome, ValueSettings
from editing.baselines.controls import InContext
from editing.baselines.random_update import RandomUpdate
from editing.memory_based.grace import Grace
from editing.neurons.erase import EraseNeurons
from editing.neurons.scale import Suppress
from editing.neurons.update import UpdateNeurons
from eval import EvalSettings, evaluate

OLD = Fact("Big Ben", "{} stands in", "Paris", "London", id="old")
OTHER = Fact("Thomas", "{} plays the", "guitar", "piano", id="other")
AGAIN = Fact("Thomas", "{} plays the", "guitar ", "violin", id="again")
NEW = Fact("Big Ben", "{} stands in", "Rome", "London", id="new")
FACTS = [OLD, OTHER, AGAIN, NEW]

ROME = Rome(
    layer=1,
    prefixes=("", "red green . "),
    value=ValueSettings(steps=3),
    text=Text(tokens=128, length=16),
    flag_norm=1e9,
    refuse_norm=1e9,
)
NEURONS = [(1, 3)]
EDITORS = {
    "rome": ROME,
    "finetune": FineTune(layer=1, epochs=2),
    "in_context": InContext(),
    "random": RandomUpdate(like=ROME),
    "erase": EraseNeurons(neurons=NEURONS),
    "scale": Suppress(neurons=NEURONS),
    "update": UpdateNeurons(neurons=NEURONS),
}


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return tiny.build("llama")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))


def changed(edit: Edit) -> dict[int, torch.Tensor] | str:
    if isinstance(edit, WeightEdit):
        return {layer: edit.delta(layer) for layer in edit.changed}
    return edit.text if hasattr(edit, "text") else repr(vars(edit) | {"origin": None})


@pytest.mark.parametrize("name", EDITORS)
def test_only_the_last_word_is_edited(name: str, lm: LanguageModel, caplog: pytest.LogCaptureFixture) -> None:
    editor: Any = EDITORS[name]
    with caplog.at_level(logging.WARNING):
        made = editor.edit(lm, FACTS)
    assert "2 of 4 facts are left out of the edit: 1 are superseded by later ones, 1 are asked for again" in caplog.text
    assert list(made.origin.facts) == FACTS
    said = [{key: value for key, value in report.items() if key in WORDS} for report in made.origin.report]
    assert said == [{"superseded_by": "new"}, {"repeated_by": "again"}, {"repeats": "other"}, {"contradicts": "old"}]
    alone = editor.edit(lm, [AGAIN, NEW])
    found, wanted = changed(made), changed(alone)
    if isinstance(found, dict):
        assert isinstance(wanted, dict)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[layer], wanted[layer]) for layer in found)
    else:
        assert found == wanted


WORDS = ("superseded_by", "repeated_by", "repeats", "contradicts")


def test_fine_tuning_that_goes_on_leaves_out_too(lm: LanguageModel) -> None:
    editor = FineTune(layer=1, epochs=1)
    first = editor.edit(lm, [OTHER])
    made = editor.extend(lm, first, facts=[OLD, NEW])
    assert [fact.id for fact in made.origin.facts] == ["other", "old", "new"]
    assert made.origin.report[0] == first.origin.report[0]
    assert made.origin.report[1] == {"superseded_by": "new"}
    assert made.origin.report[2]["contradicts"] == "old"
    assert "loss" in made.origin.report[2]


def test_an_editor_that_goes_fact_by_fact_has_the_last_word_too(lm: LanguageModel) -> None:
    made = Grace(layer=1, radius=1.0, steps=2).edit(lm, [OLD, NEW])
    assert made.origin.report[1]["contradicts"] == 0
    assert made.state.labels == ("Rome",)  # type: ignore[union-attr]


def test_nothing_changes_where_nothing_is_left_out(lm: LanguageModel, caplog: pytest.LogCaptureFixture) -> None:
    made = InContext().edit(lm, [OTHER, NEW])
    assert made.origin.report == ()
    assert caplog.text == ""


MEASURED = EvalSettings(generate=False, perplexity_windows=0)


@pytest.mark.parametrize("given", [[OLD, NEW], [OTHER, AGAIN]])
def test_evaluate_says_that_facts_are_not_all_in_force(
    given: list[Fact], lm: LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(evaluate(lm, given, MEASURED).cases) == 2
    [said] = [record.getMessage() for record in caplog.records]
    counts = (1, 0) if given[0] is OLD else (0, 1)
    assert f"{counts[0]} of 2 facts are contradicted by later ones and {counts[1]} are asked for again" in said
    assert given[0].id in said
    caplog.clear()
    evaluate(lm, [OTHER, NEW], MEASURED)
    assert caplog.text == ""
