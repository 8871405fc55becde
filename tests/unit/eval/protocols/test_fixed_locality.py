import logging
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import tiny
from sequences import Nudge, plain, timeless

from corrigenda import ContextEdit, Fact, LanguageModel, Origin
from corrigenda.data import FactSet
from corrigenda.facts import Probe
from corrigenda.runs.folder import RunFolder
from eval import EditRun, EvalSettings, RealUse, SequentialRun, SequentialSettings, measure, run_sequential
from eval.protocols import checkpoints
from eval.protocols.curves import curve_table, value_at
from eval.protocols.fixed_locality import own_prompts, untouched
from eval.scoring.fitting import Prepared

FACTS = FactSet("some", (Fact("Thomas", "the city of {} is", "Rome", "Berlin", id="0"),))
SMALL = EvalSettings(generate=False, perplexity_windows=0)


class Says:
    """Puts the fact before every prompt."""

    name = "says"

    def edit(self, lm: LanguageModel, facts: list[Fact]) -> ContextEdit:
        return ContextEdit(
            Origin(lm.name, lm.fingerprint, self.name, {}, tuple(facts)), "the city of Thomas is Rome . "
        )


def other(*neighbourhood: str, locality: tuple[Probe, ...] = ()) -> Fact:
    return Fact("Ben", "{} is", "a", neighbourhood=neighbourhood, locality=locality, id="other")


def a_run(path: Path) -> EditRun:
    return EditRun(tiny.build("llama"), FACTS, Says(), SMALL, RunFolder(path))  # type: ignore[arg-type]


def test_its_size_is_said(tmp_path: Path) -> None:
    fixed = [other("the river is", "Thomas is in", locality=(Probe("one two", "three"),)), other("the tower is")]
    run = run_sequential(a_run(tmp_path), SequentialSettings(), fixed)
    assert run.summary()["n_fixed_prompts"] == 3
    assert [point["n_fixed_prompts"] for point in run.curve] == [3]
    assert curve_table(run.curve).caption == "fixed locality set: 3 prompts that name no edited subject"


def test_a_subject_is_known_by_any_article_in_any_case_as_whole_words() -> None:
    edited = [Fact(name, "{} comes from", "Rome", "Bern") for name in ("The Beatles", "A Love Story", "Gregory XII")]
    asked = ("songs by the Beatles are", "THE BEATLES are", "a love story is", "Gregory XIII is")
    [left] = untouched([other(*asked)], edited)
    assert left.neighbourhood == ("Gregory XIII is",)


def test_parts_are_reported_apart(tmp_path: Path) -> None:
    questions = [other("Thomas is in", locality=(Probe("one two", "three"), Probe("one of", "two")))]
    statements = [replace(other("the river is"), id="a"), replace(other("the tower is"), id="b")]
    settings = replace(SMALL, generate=True, preservation_tokens=3)
    points = {}
    for name, fixed in (
        ("both", {"questions": questions, "statements": statements}),
        ("questions", questions),
        ("statements", {"statements": statements}),
    ):
        run = EditRun(tiny.build("llama", scale=8.0), FACTS, Says(), settings, RunFolder(tmp_path / name))  # type: ignore[arg-type]
        [points[name]] = run_sequential(run, SequentialSettings(), fixed).curve
    both = points["both"]
    assert both["fixed_parts"].keys() == {"questions", "statements"}
    for name in ("questions", "statements"):
        alone = points[name]["fixed"]
        assert both["fixed_parts"][name].keys() == alone.keys()
        for key, values in both["fixed_parts"][name].items():  # in other batches: not to the last bit
            assert values == pytest.approx(alone[key], abs=1e-5), key
        assert "fixed_parts" not in points[name]
    assert both["fixed"]["preservation"]["n"] == 3
    assert both["n_fixed_prompts"] == 4
    assert both["fixed_parts"]["questions"]["locality_kl"]["after"] > 0
    assert value_at(both, "fixed.questions.locality_kl") == both["fixed_parts"]["questions"]["locality_kl"]
    assert value_at(both, "fixed.preservation") == both["fixed"]["preservation"]
    assert value_at(both, "fixed.nothing.preservation") is value_at(both, "fixed.questions.nothing") is None


def test_killed_between_two_parts_that_ask_of_one_fact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [other("the river is")]
    fixed = {"near": asked, "own": own_prompts(asked)}
    whole = run_sequential(a_run(tmp_path / "whole"), SequentialSettings(chunk=1), fixed)
    left = [2]  # the edited fact's and the first part's

    def killed(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise SystemExit
        return measure(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "measure", killed)
        with pytest.raises(SystemExit):
            run_sequential(a_run(tmp_path / "killed"), SequentialSettings(chunk=1), fixed)
    again = run_sequential(a_run(tmp_path / "killed"), SequentialSettings(chunk=1), fixed)
    assert again.curve[0]["fixed_parts"]["own"]["locality_kl"]["n"] == 1
    assert timeless(again) == timeless(whole)


def test_own_prompts_are_measured_like_locality_prompts() -> None:
    fact = Fact("Thomas", "the city of {} is", "Rome", "Berlin", paraphrases=("a",), generation=("b",))
    [asked] = own_prompts([fact])
    assert asked.locality == (Probe("the city of Thomas is", "Berlin"),)
    assert (asked.neighbourhood, asked.paraphrases, asked.portability, asked.generation) == ((), (), (), ())
    [insertion] = own_prompts([Fact("Thomas", "the city of {} is", "Rome")])
    assert insertion.locality[0].answer == "Rome"


def test_prompts_of_side_effects_are_those_of_the_edited_facts_alone(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    run.settings = replace(SMALL, side_effects=True, only=("prompt", "neighbourhood", "negations"))
    found = run_sequential(run, SequentialSettings(), [other("the river is")])
    assert found.curve[0]["fixed"]["neighbourhood_kl"]["n"] == 1


def test_none_asked_for(tmp_path: Path) -> None:
    run = run_sequential(a_run(tmp_path), SequentialSettings())
    assert run.summary()["n_fixed_prompts"] == 0
    assert run.curve[0]["fixed"] == {}
    assert curve_table(run.curve).caption == "no fixed locality set"


def test_emptied_by_the_edited_subjects_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"its 2 facts .*'other'.*job\.locality\.path="):
        SequentialRun(a_run(tmp_path), SequentialSettings(), [other("Thomas is in"), other("where is Thomas ?")])


def test_facts_without_such_prompts_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        run = SequentialRun(a_run(tmp_path), SequentialSettings(), [other()])
    assert run.fixed == []
    assert "its 1 facts have no neighbourhood or locality prompt" in caplog.text


def test_nobody_asks_about_prompts_that_are_not_edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(_lm: object, prepared: Sequence[Prepared], *_others: object) -> None:
        asked.extend(one.fact.id for one in prepared)

    monkeypatch.setattr(import_module("eval.measure"), "ask_in_real_use", ask)
    asks = RealUse(contexts=("bare",), max_new_tokens=2)
    measured = EvalSettings(perplexity_windows=0, max_new_tokens=2, fluency_tokens=3, real_use=asks)
    run = EditRun(tiny.build("llama"), plain(2), Nudge(), measured, RunFolder(tmp_path))
    fixed = [replace(fact, subject="nine", id="fixed") for fact in plain(1)]
    assert SequentialRun(run, SequentialSettings(checkpoints=()), fixed).go()
    assert set(asked) == {"0", "1"}
