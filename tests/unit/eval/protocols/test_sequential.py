import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from sequences import SUBJECTS, Nudge, plain
from sequential_parts import (
    SMALL,
    Growing,
    Notes,
    after,
    fact,
    facts,
    given_notes,
    go,
    read_notes,
)
from torch import Tensor

from corrigenda import ContextEdit, Edit, Fact, LanguageModel, LowRankEdit, Origin, ValueEdit
from corrigenda.data import FactSet
from corrigenda.facts import Probe
from corrigenda.runs.folder import RunFolder
from eval import EditRun, EvalSettings, Measurement, SequentialRun, SequentialSettings, measure
from eval.protocols import checkpoints, journal, pre_edit, sequential
from eval.protocols.checkpoints import change_norm
from eval.protocols.curves import curve_table, draw_curve
from eval.protocols.fixed_locality import untouched

PLAIN = facts(*((subject, "Rome") for subject in SUBJECTS[:7]))


by_notes = pytest.fixture(given_notes)


@pytest.mark.parametrize("editor", [Notes(), Growing()], ids=["stacked", "extended"])
def test_every_edit_is_scored_right_after_and_at_each_checkpoint(
    by_notes: LanguageModel, tmp_path: Path, editor: Notes
) -> None:
    settings = SequentialSettings(checkpoints=(1, 3, 5, 100), every=2, chunk=2)
    run = go(by_notes, PLAIN, editor, tmp_path, settings, [Fact("x", "{} is", "a", locality=(Probe("y", "z"),))])
    assert after(run, "token_accuracy") == [(1, 1.0), (3, 1.0), (5, 1.0), (7, 1.0)]
    assert after(run, "preservation") == [(1, 1.0), (3, 0.0), (5, 0.0), (7, 0.0)]
    assert after(run, "perplexity_drift") == [(1, 0.5), (3, 1.5), (5, 2.5), (7, 3.5)]
    assert [point["fixed"]["preservation"]["after"] for point in run.curve] == [1.0, 0.0, 0.0, 0.0]
    assert [point["n_scored"] for point in run.curve] == [1, 3, 5, 7]
    # Right after its own edit, the second of seven: two notes.
    assert [case.after.values["preservation"] for case in run.run.evaluation.cases] == [1.0, 1.0, *[0.0] * 5]
    assert [case.edit for case in run.run.evaluation.cases] == [{"noted": fact.id} for fact in PLAIN]
    assert run.retention.metrics == run.summary()["curve"][-1]["metrics"]
    # In order, each on the model that the earlier ones left; an editor that extends is given the clean model.
    seen = ["".join(f"{subject}=Rome;" for subject in SUBJECTS[:n]) for n in range(7)]
    clean = isinstance(editor, Growing)
    assert editor.asked == [("" if clean else text, [fact.id]) for text, fact in zip(seen, PLAIN, strict=True)]
    editor.asked.clear()


def test_what_a_sequence_wrote_it_does_not_read_again(
    by_notes: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With each checkpoint that would be the cases of all checkpoints before it."""
    read: list[Any] = []
    monkeypatch.setattr(journal, "lines_of", lambda *asked: read.append(asked) or [])
    run = go(by_notes, PLAIN, Notes(), tmp_path, SequentialSettings(checkpoints=(1, 3, 5)))
    assert [point["t"] for point in run.curve] == [1, 3, 5, 7]
    assert len(run.retention.cases) == 7
    assert read == []


def test_together_edits_all_so_far_from_the_clean_model(by_notes: LanguageModel, tmp_path: Path) -> None:
    editor = Notes()
    settings = SequentialSettings(checkpoints=(2, 5), regime="together")
    some = facts(("Ben", "Rome"), ("red", "Rome"), ("Ben", "Paris"), *((s, "Rome") for s in ("one", "two", "six")))
    run = go(by_notes, some, editor, tmp_path, settings)
    ids = [fact.id for fact in some]
    # From the third on the first is contradicted, and not edited any more.
    assert editor.asked == [("", ids[:2]), ("", ids[1:5]), ("", ids[1:6])]
    assert after(run, "token_accuracy") == [(2, 1.0), (5, 1.0), (6, 1.0)]
    assert [point["n_overwritten"] for point in run.curve] == [0, 1, 1]
    # A fact's case is its score at the first checkpoint that has it: two notes there, then four, then five.
    assert [case.after.values["perplexity_drift"] for case in run.run.evaluation.cases] == [1, 1, 2, 2, 2, 2.5]


def test_what_was_left_out_of_an_edit_of_all_is_in_no_metric(by_notes: LanguageModel, tmp_path: Path) -> None:
    some = facts(("Ben", "Rome"), ("red", "Rome"), ("Ben", "Paris"))
    run = go(by_notes, some, Notes(), tmp_path, SequentialSettings(checkpoints=(3,), regime="together"))
    assert run.run.evaluation.metrics["token_accuracy"]["n"] == 2
    assert run.run.cases[some[0].id].edit == {"superseded_by": some[2].id}
    seconds = [run.run.cases[fact.id].seconds for fact in some]
    assert seconds == [None, *[run.curve[0]["seconds_per_edit"]] * 2]  # two were edited, and share the time
    assert 2 * run.summary()["seconds_per_edit"] == pytest.approx(run._journal.made[0])


def test_contradictions_and_repetitions(by_notes: LanguageModel, tmp_path: Path) -> None:
    some = facts(("Ben", "Rome"), ("red", "Rome"), ("Ben", "Paris"), ("Ben", "Paris"))
    editor = Notes()
    run = go(by_notes, some, editor, tmp_path, SequentialSettings(checkpoints=(1, 2, 3)))
    assert [ids for _, ids in editor.asked] == [[fact.id] for fact in some[:3]]  # the repetition is not edited again
    points = [(p["t"], p["n_scored"], p["n_overwritten"], p["n_repeated"]) for p in run.curve]
    assert points == [(1, 1, 0, 0), (2, 2, 0, 0), (3, 2, 1, 0), (4, 2, 1, 1)]
    # Ben=Rome does not hold any more, and is not asked about; all that are in force hold.
    assert after(run, "token_accuracy") == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0)]
    assert run.run.cases[some[3].id].edit == {"repeats": some[2].id}
    assert (run.summary()["n_overwritten"], run.summary()["n_repeated"]) == (1, 1)


def test_what_was_forgotten_shows(by_notes: LanguageModel, tmp_path: Path) -> None:
    some = FactSet("two", (Fact("Ben", "{} is", "Rome", "Oslo"), Fact("Ben", "{} has", "Paris", "Oslo")))
    run = go(by_notes, some, Notes(), tmp_path, SequentialSettings(checkpoints=(1,)))
    assert after(run, "token_accuracy") == [(1, 1.0), (2, 0.5)]
    assert [point["right_after"]["token_accuracy"]["after"] for point in run.curve] == [1.0, 1.0]


def test_the_fixed_set_names_no_edited_subject() -> None:
    fixed = fact("Oslo", "Rome", neighbourhood=("Ben is in", "Tim is in"), locality=(Probe("where is red?", "here"),))
    [found] = untouched([fixed, fact("green", "Rome", neighbourhood=("Ben is",))], [fact("Ben", "x"), fact("red", "x")])
    assert (found.neighbourhood, found.locality, found.id) == (("Tim is in",), (), fixed.id)


def test_failed_edits_count_as_failed(by_notes: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def right(*arguments: Any) -> list[Measurement]:
        found = read_notes(*arguments)
        for one in found:
            one.values |= {"token_accuracy": 1.0, "preservation": 1.0}
        return found

    for module in (sequential, checkpoints):
        monkeypatch.setattr(module, "measure", right)
    editor = Notes(refused=("Danielle",), crashes=("river",))
    run = go(by_notes, PLAIN, editor, tmp_path, SequentialSettings(checkpoints=(4,)))
    errors = [case.error for case in run.run.evaluation.cases]
    assert errors == ["", "refused: not this one", "", "crashed: ZeroDivisionError('a bug')", "", "", ""]
    assert [case.after.values["token_accuracy"] for case in run.run.evaluation.cases] == [1, 0, 1, 0, 1, 1, 1]
    assert after(run, "token_accuracy") == [(4, 0.5), (7, 5 / 7)]
    assert [point["right_after"]["token_accuracy"]["after"] for point in run.curve] == [0.5, 5 / 7]
    assert after(run, "preservation") == [(4, 1.0), (7, 1.0)]  # what it should have left alone is as measured
    assert [point["n_failed"] for point in run.curve] == [2, 2]


def test_a_failed_edit_of_a_growing_memory_leaves_the_earlier_one(by_notes: LanguageModel, tmp_path: Path) -> None:
    run = go(by_notes, PLAIN, Growing(refused=("Danielle",)), tmp_path, SequentialSettings(checkpoints=(), every=1))
    assert after(run, "token_accuracy") == [(7, 6 / 7)]
    [kept] = (tmp_path / "edits").iterdir()  # the last state alone, not one for each position
    edit = Edit.load(kept)
    assert isinstance(edit, ContextEdit)
    assert edit.text.count(";") == 6


def test_free_generation_can_be_left_out_for_large_t(by_notes: LanguageModel, tmp_path: Path) -> None:
    settings = SequentialSettings(checkpoints=(2, 3), generate_until=2, after_each="probabilities")
    run = go(by_notes, PLAIN, Notes(), tmp_path, settings)
    assert ["free_generation_strict" in point["metrics"] for point in run.curve] == [True, False, False]
    assert all("perplexity_drift" in point["metrics"] for point in run.curve)
    assert all(set(case.after.values) == {"token_accuracy", "preservation"} for case in run.run.evaluation.cases)


def test_right_after_an_edit_its_own_prompt_alone_can_be_measured(lm: LanguageModel, tmp_path: Path) -> None:
    asked = tuple(replace(fact, paraphrases=("{} was in",), neighbourhood=("Oslo is in",)) for fact in PLAIN[:2])
    runs = {
        after_each: go(
            lm, FactSet("asked", asked), Nudge(), tmp_path / after_each, SequentialSettings((1,), after_each=after_each)
        )
        for after_each in ("probabilities", "edited")
    }
    all_, one = ([case.after.values for case in run.run.evaluation.cases] for run in runs.values())
    assert all("paraphrase_token_accuracy" in values for values in all_)
    assert not [values for values in all_ if "preservation" in values]  # nothing is decoded after each
    assert [sorted(case.after.prompts) for case in runs["edited"].run.evaluation.cases] == [["prompt"]] * 2
    assert [values["token_accuracy"] for values in one] == [values["token_accuracy"] for values in all_]
    assert not [key for values in one for key in values if key.startswith("paraphrase")]
    curves = [[point["metrics"] for point in run.curve] for run in runs.values()]
    assert curves[0] == curves[1]  # a checkpoint measures everything


def test_of_facts_that_no_checkpoint_scores_the_unedited_model_is_asked_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, asked = (
        tiny.build("llama"),
        FactSet("asked", tuple(replace(fact, paraphrases=("{} was in",)) for fact in PLAIN)),
    )
    full: list[str] = []

    def counted(lm: LanguageModel, facts: Sequence[Fact], settings: EvalSettings, **more: Any) -> Any:
        full.extend(fact.id for fact in facts if not settings.only)
        return measure(lm, facts, settings, **more)

    monkeypatch.setattr(pre_edit, "measure", counted)
    settings = SequentialSettings((3,), batch=3, chunk=2, scored=2, after_each="edited")
    few = go(lm, asked, Nudge(), tmp_path / "few", settings)
    assert full == [asked[place].id for place in (0, 2, 6)]  # first and latest at T = 3 and 7
    full.clear()
    all_ = go(lm, asked, Nudge(), tmp_path / "all", replace(settings, after_each="probabilities"))
    assert full == [fact.id for fact in asked]
    for one, other in zip(few.curve, all_.curve, strict=True):
        figures = [{key: found["after"] for key, found in point["metrics"].items()} for point in (one, other)]
        assert figures[0] == pytest.approx(figures[1], abs=1e-4)  # others ran in the same batch
    right_after = [[case.after.values["token_accuracy"] for case in run.run.evaluation.cases] for run in (few, all_)]
    assert right_after[0] == right_after[1]


def test_the_scores_are_those_of_a_plain_measurement(tmp_path: Path) -> None:
    lm, some = tiny.build("llama"), plain(5)
    run = go(lm, some, Nudge(), tmp_path, SequentialSettings(checkpoints=(2,), chunk=2), list(plain(9)[5:]))
    before = measure(lm, some, SMALL)
    for point in run.curve:
        t = point["t"]
        edits = [Nudge().edit(lm, [fact]) for fact in some[:t]]
        for edit in edits:
            edit.apply(lm)
        measured = measure(lm, some[:t], SMALL, before[:t])
        for edit in edits:
            edit.revert(lm)
        assert "perplexity_drift" in point["metrics"]
        for key, values in point["metrics"].items():
            if key != "score":
                expected = sum(found.values[key] for found in measured) / t
                assert values["after"] == pytest.approx(expected, abs=1e-4), key
        total: Tensor = sum(edit.delta(1) for edit in edits)  # type: ignore[assignment]
        assert point["norm"] == pytest.approx(float(total.norm()), rel=1e-4)
        assert point["relative_norm"] == pytest.approx(float(total.norm() / lm.memory(1).values.norm()), rel=1e-4)
    assert run.curve[-1]["fixed"]["preservation"]["n"] == 4
    assert set(run.curve[-1]["fixed"]) == {
        *("preservation", "blank_answers", "locality_token_agreement", "neighbourhood_success"),
        *("neighbourhood_magnitude", "neighbourhood_kl", "locality_kl"),
    }


def test_the_norm_of_the_change(lm: LanguageModel) -> None:
    assert change_norm(lm) == {}
    origin = Origin(lm.name, lm.fingerprint, "test")
    d_ffn, d_model = lm.memory(0).values.shape
    ones, old = torch.ones(d_ffn, d_model), lm.memory(0).values.clone()
    low = LowRankEdit.of(lm, origin, {0: (torch.ones(d_ffn, 1), torch.ones(1, d_model))})
    with low.applied(lm), ValueEdit.of(lm, origin, {0: 2 * ones}).applied(lm):
        found = change_norm(lm)
    assert found["norm"] == pytest.approx(3 * math.sqrt(d_ffn * d_model), rel=1e-5)
    assert found["relative_norm"] == pytest.approx(found["norm"] / float(old.norm()), rel=1e-5)
    with ContextEdit(origin, "text").applied(lm):
        assert change_norm(lm) == {}


def test_bad_settings_say_what_is_wrong(lm: LanguageModel, tmp_path: Path) -> None:
    run = EditRun(lm, PLAIN, Nudge(), SMALL, RunFolder(tmp_path))
    with pytest.raises(ValueError, match="nudge has no `extend`"):
        SequentialRun(run, SequentialSettings(regime="extend"))
    with pytest.raises(ValueError, match="at least one fact"):
        SequentialRun(EditRun(lm, FactSet("none", ()), Nudge(), SMALL, RunFolder(tmp_path / "b")), SequentialSettings())


def test_tables_and_pictures(tmp_path: Path) -> None:
    def at(t: int, value: float) -> dict[str, Any]:
        metric = {"before": 0.0, "after": value, "low": value - 0.1, "high": value + 0.1, "n": t}
        return {
            "t": t,
            "metrics": {"token_accuracy": metric, "perplexity_drift": metric},
            "fixed": {"preservation": metric | {"low": None, "high": None}},
            "n_failed": 1,
            "norm": 2.0,
            "seconds_per_edit": 0.25,
            "peak_memory_mb": 100.4,
        }

    curve = [at(1, 0.5), at(10, 0.25)]
    table = curve_table(curve)
    assert [column.header for column in table.columns] == [
        *("T", "reliability", "fixed locality", "drift", "norm", "s an edit", "MB", "failed")
    ]
    assert [list(column.cells) for column in table.columns][:2] == [["1", "10"], ["50.0", "25.0"]]
    draw_curve(curve, tmp_path / "a.png", "a")
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
