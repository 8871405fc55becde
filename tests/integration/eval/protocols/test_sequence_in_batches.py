from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sequences import QUICK, GrowingNudge, Nudge, facts_about, plain, records, sequence, timeless

from corrigenda import LanguageModel
from corrigenda.disturbance import noted
from corrigenda.runs.folder import RunFolder
from eval import Case, EditRun, EvalSettings, SequentialSettings, judged, measure, run_batch
from eval.evaluation import Evaluation
from eval.protocols.choice import chosen
from eval.protocols.runs import reports_of


def said(report: Any) -> dict[str, Any]:
    """A report without what is looked at in every edit."""
    return {name: value for name, value in report.items() if name != "disturbance"}


@pytest.mark.parametrize("editor", [Nudge, GrowingNudge])
def test_each_batch_is_one_call_on_what_the_earlier_ones_left(lm: LanguageModel, tmp_path: Path, editor: Any) -> None:
    asked: list[tuple[str, str]] = []
    run = sequence(lm, plain(7), editor(asked=asked), tmp_path, batch=3, checkpoints=(3,))
    clean = editor is GrowingNudge  # an editor that extends is given the clean model
    assert asked == [("" if clean else before, ids) for before, ids in (("", "012"), ("012", "345"), ("012345", "6"))]
    assert [point["t"] for point in run.curve] == [3, 7]
    assert [said(case.edit) for case in run.run.evaluation.cases] == [{"noted": fact.id} for fact in plain(7)]


def test_checkpoints_inside_a_batch_are_moved_and_said(
    lm: LanguageModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = sequence(lm, plain(7), Nudge(), tmp_path, batch=3, checkpoints=(1, 3, 4, 100))
    assert [point["t"] for point in run.curve] == [3, 6, 7]
    assert "the checkpoints 1, 4 lie inside a batch of 3 facts; each is moved to its batch's end" in caplog.text
    caplog.clear()
    sequence(lm, plain(7), Nudge(), tmp_path / "b", batch=3, checkpoints=(3, 6))
    assert not caplog.text


def test_one_by_one_is_what_it_says(lm: LanguageModel, tmp_path: Path) -> None:
    """batch=1 to the last digit: each edit made on top of the others, and measured, by hand."""
    some, editor = plain(5), Nudge()
    run = sequence(lm, some, editor, tmp_path, batch=1, checkpoints=(2,), chunk=2)
    chunks = [measure(lm, some[begin : begin + 2], QUICK) for begin in (0, 2, 4)]
    before = [one for chunk in chunks for one in chunk]
    cases = []
    for fact, old in zip(some, before, strict=True):
        edit = noted(lm, editor.edit(lm, [fact]), 1)
        edit.apply(lm)
        [new] = measure(lm, [fact], QUICK, [old])
        cases.append(judged(fact, old, new, reports_of(edit)[fact.id]).to_dict())
    for applied in list(lm.edits):
        applied.revert(lm)
    assert records(run) == cases


def test_one_batch_of_all_is_the_batch_protocol(lm: LanguageModel, tmp_path: Path) -> None:
    some = facts_about(("Ben", "Rome"), ("red", "Rome"), ("Ben", "Paris"), ("red", "Rome"), ("blue", "Rome"))
    run = sequence(lm, some, Nudge(refuses="4"), tmp_path / "a", batch=100)
    batch = EditRun(lm, some, Nudge(refuses="4"), QUICK, RunFolder(tmp_path / "b"))
    run_batch(batch)
    assert records(run) == [batch.cases[fact.id].to_dict() | {"seconds": None} for fact in some]
    assert run.run.evaluation.metrics == batch.evaluation.metrics


def test_what_supersedes_what_inside_a_batch_and_across(lm: LanguageModel, tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []
    some = facts_about(
        *(("Ben", "Rome"), ("Ben", "Paris")),  # the last of a batch is made
        *(("Ben", "Paris"), ("red", "Rome")),  # what an earlier batch made true is not made again
        *(("red", "London"), ("red", "Rome")),  # nor if it was taken back in the same batch
        *(("Ben", "Rome"), ("blue", "Rome")),  # what an earlier one superseded is
    )
    run = sequence(lm, some, Nudge(asked=asked), tmp_path, batch=2, checkpoints=(2, 4, 6))
    assert [ids for _, ids in asked] == ["1", "3", "67"]
    superseded = [{"superseded_by": "1"}, {"noted": "1", "contradicts": "0"}, {"repeats": "1"}, {"noted": "3"}]
    taken_back = [{"superseded_by": "5"}, {"repeats": "3"}, {"noted": "6"}, {"noted": "7"}]
    assert [said(run.run.cases[fact.id].edit) for fact in some] == superseded + taken_back
    assert [(p["n_scored"], p["n_overwritten"], p["n_repeated"]) for p in run.curve] == [
        *((1, 1, 0), (2, 1, 1), (2, 2, 2), (3, 3, 2))
    ]
    # Right after its edit each fact counts, but not those that no batch asked for.
    assert run.summary()["metrics"]["efficacy_success"]["n"] == 6


def test_a_refused_fact_is_asked_for_again_where_it_is_repeated(lm: LanguageModel, tmp_path: Path) -> None:
    asked: list[tuple[str, str]] = []
    some = facts_about(("Ben", "Rome"), ("red", "Rome"), ("Ben", "Rome"), ("red", "Rome"))
    run = sequence(lm, some, Nudge(refuses="0", asked=asked), tmp_path, batch=2, checkpoints=(2,))
    assert [ids for _, ids in asked] == ["01", "2"]
    assert [case.error for case in run.run.cases.values()] == ["not this one", "", "", ""]
    assert [point["n_failed"] for point in run.curve] == [1, 0]


@pytest.mark.parametrize("editor", [Nudge, GrowingNudge])
def test_a_batch_that_wrecks_the_model_is_taken_back(lm: LanguageModel, tmp_path: Path, editor: Any) -> None:
    some = facts_about(("Ben", "Rome"), ("red", "Rome"), ("Ben", "Rome"), ("blue", "Rome"), ("six", "Rome"))
    run = sequence(lm, some, editor(wrecks="3"), tmp_path, batch=2, checkpoints=(2, 4))
    errors = [run.run.cases[fact.id].error for fact in some]
    assert [error[:8] for error in errors] == ["", "", "", "refused:", ""]
    assert run.run.cases["2"].edit == {"repeats": "0"}
    # What it left alone is measured without it.
    assert run.run.cases["2"].after.values["efficacy_magnitude"] == pytest.approx(
        sequence(lm, some[:2], editor(), tmp_path / "b", batch=2).run.cases["0"].after.values["efficacy_magnitude"]
    )
    both = sequence(lm, plain(4), editor(wrecks="3"), tmp_path / "c", batch=2)
    said = [both.run.cases[id_].error for id_ in "23"]
    assert all(error.startswith("refused:") for error in said)
    assert both.summary()["metrics"]["efficacy_success"]["after"] <= 0.5
    assert len(both.edits) == 1
    # All figures of the batch are those of the model without it, also of the fact that did not wreck it.
    [earlier] = both.edits
    failed = [both.run.cases[id_] for id_ in "23"]
    with earlier.applied(lm):
        expected = measure(lm, plain(4)[2:], QUICK, [case.before for case in failed if case.before is not None])
    for name in ("prompt", "paraphrases", "neighbourhood"):
        asked = [[one.log_probs_new for one in case.after.scored(name)] for case in failed]
        assert asked == [[one.log_probs_new for one in state.scored(name)] for state in expected]


class Killed(BaseException):
    """Stands for a kill."""


@pytest.mark.parametrize("editor", [Nudge, GrowingNudge])
def test_a_crash_is_done_again_with_all_of_its_batch(lm: LanguageModel, tmp_path: Path, editor: Any) -> None:
    some = facts_about(("Ben", "Rome"), ("red", "Rome"), ("blue", "Rome"), ("blue", "Paris"), ("six", "Rome"))
    settings: dict[str, Any] = {"batch": 2, "checkpoints": (2, 4), "every": 2}

    def kill(case: Case) -> None:
        raise Killed

    calm = sequence(lm, some, editor(), tmp_path / "calm", **settings)
    broken = sequence(lm, some, editor(crashes="3"), tmp_path / "broken", **settings)
    assert [case.fact.id for case in broken.run.evaluation.crashes] == ["3"]
    for _ in range(2):  # killed while it is tried again: what came after the crash is still no figure
        with pytest.raises(Killed):
            sequence(lm, some, editor(), tmp_path / "broken", notify=kill, **settings)
    again = sequence(lm, some, editor(), tmp_path / "broken", **settings)
    assert not again.run.evaluation.crashes
    assert (timeless(again), records(again)) == (timeless(calm), records(calm))


@pytest.mark.parametrize("editor", [Nudge, GrowingNudge])
@pytest.mark.parametrize("scored", [None, 2])
def test_killed_anywhere_it_goes_on_and_ends_the_same(
    lm: LanguageModel, tmp_path: Path, editor: Any, scored: int | None
) -> None:
    some = facts_about(("Ben", "Rome"), ("red", "Rome"), ("red", "Paris"), ("Ben", "Rome"), ("six", "Rome"))
    settings: dict[str, Any] = {"batch": 2, "checkpoints": (2, 4), "every": 4, "chunk": 2, "scored": scored, "ends": 2}
    calm = sequence(lm, some, editor(), tmp_path / "calm", **settings)

    def left_after(number: int, error: bool) -> Any:
        left = [number]

        def count(*_: Any) -> bool:
            left[0] -= 1
            if error and left[0] == 0:
                raise Killed
            return left[0] < 0

        return count

    for number in range(1, 6):
        with pytest.raises(Killed):
            sequence(lm, some, editor(), tmp_path / f"k{number}", notify=left_after(number, error=True), **settings)
        goes = 0
        while (
            not (
                ended := len(
                    timeless(
                        run := sequence(
                            lm,
                            some,
                            editor(),
                            tmp_path / f"k{number}",
                            stop=left_after(number + 4, error=False),
                            **settings,
                        )
                    )
                )
                == 3
            )
            and goes < 30
        ):
            goes += 1
        assert ended
        assert (timeless(run), records(run)) == (timeless(calm), records(calm))


def test_how_many_are_scored_is_bounded_and_said(lm: LanguageModel, tmp_path: Path) -> None:
    some = plain(8)
    settings: dict[str, Any] = {"batch": 2, "checkpoints": (2, 6), "ends": 3}
    whole = sequence(lm, some, Nudge(), tmp_path / "whole", **settings)
    run = sequence(lm, some, Nudge(), tmp_path / "a", scored=4, **settings)
    assert [point.get("scored") for point in run.curve] == [
        None,
        {"n": 4, "of": 6, "which": "the first and the latest half"},
        {"n": 4, "of": 8, "which": "the first and the latest half"},
    ]
    assert [case.fact.id for case in run.retention.cases] == ["0", "1", "6", "7"]
    of_these = Evaluation(tuple(case for case in whole.retention.cases if case.fact.id in "0167"))
    expected = of_these.metrics["efficacy_magnitude"]["after"]
    assert run.curve[-1]["metrics"]["efficacy_magnitude"]["after"] == pytest.approx(expected, abs=1e-6)
    assert run.curve[-1]["n_scored"] == 4
    assert len(list(run.run.folder.cases("retention"))) == 4
    sample = sequence(lm, some, Nudge(), tmp_path / "b", scored=4, scored_are="sample", seed=1, **settings)
    assert sample.curve[-1]["scored"]["which"] == "a sample, seed 1"


def test_a_sample_stays_as_far_as_it_can() -> None:
    some = facts_about(*((f"{number}", "Rome") for number in range(60)))
    settings = SequentialSettings(scored=10, scored_are="sample", seed=3)
    early, late = (chosen(some, range(t), settings) for t in (30, 60))
    assert len(early) == len(late) == 10
    assert {number for number in late if number < 30} <= set(early)
    assert chosen(some, range(60), replace(settings, seed=4)) != late
    assert chosen(some, range(10), settings) == tuple(range(10))


def test_the_first_and_the_latest_are_told_of_apart(lm: LanguageModel, tmp_path: Path) -> None:
    run = sequence(lm, plain(7), Nudge(size=0.5), tmp_path, batch=2, checkpoints=(2,), ends=2)
    at_two, last = run.curve
    assert "first" not in at_two
    for part, ids in (("first", "01"), ("latest", "56")):
        own = Evaluation(tuple(case for case in run.retention.cases if case.fact.id in ids)).metrics
        assert last[part]["token_accuracy"] == own["token_accuracy"]
        assert {"low", "high", "n", "before", "after"} == set(last[part]["token_accuracy"])
        assert last[part]["token_accuracy"]["n"] == 2
        assert "neighbourhood_success" not in last[part]  # what an edit should leave alone has no first and latest
        assert run.summary()[part] == last[part]
    # Of other facts each: here both of the first fail, and none of the latest.
    run = sequence(lm, plain(7), Nudge(refuses="01"), tmp_path / "b", batch=2, checkpoints=(), ends=2)
    assert run.curve[-1]["first"]["efficacy_success"]["after"] == 0
    assert run.curve[-1]["latest"]["efficacy_success"]["after"] > 0


def test_together_has_no_batches() -> None:
    with pytest.raises(ValueError, match="batch=2 and regime='together' exclude each other"):
        SequentialSettings(batch=2, regime="together")
    assert SequentialSettings(batch=50).due(170) == [50, 100, 170]


def test_facts_that_are_too_long_fail_alone(lm: LanguageModel, tmp_path: Path) -> None:
    some = facts_about(("Ben", "Rome"), ("red " * 70, "Rome"), ("blue", "Rome"))
    asked: list[tuple[str, str]] = []
    run = sequence(
        lm, some, GrowingNudge(asked=asked), tmp_path, batch=3, measured=EvalSettings(False, perplexity_windows=0)
    )
    assert asked == [("", "02")]
    assert [bool(case.error) for case in run.run.evaluation.cases] == [False, True, False]
