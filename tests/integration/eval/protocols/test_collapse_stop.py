import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from sequences import QUICK, GrowingNudge, Nudge, facts_about, plain, records, sequence, timeless

from corrigenda import LanguageModel
from corrigenda.runs.folder import RunFolder
from eval import CollapseStopSettings, EvalSettings
from eval.lm_eval.harness import Harness, Scores, paired
from eval.protocols.collapse_stop import find_collapse
from eval.protocols.kept import measure_kept

STEPS: dict[str, Any] = {"checkpoints": (2, 4, 6), "every": 2, "chunk": 2}
WITH_PERPLEXITY = EvalSettings(generate=False, perplexity_windows=6)


def point(**figures: float | None) -> dict[str, Any]:
    return {"t": 30, "metrics": {key: {"after": value} for key, value in figures.items()}}


def test_each_limit_is_of_its_own_figure() -> None:
    """By hand: a figure at its limit goes on, one beyond it stops."""
    drift, reliable = CollapseStopSettings(perplexity_drift=0.5), CollapseStopSettings(reliability=0.6)
    assert find_collapse(point(perplexity_drift=0.5), drift) is None
    assert find_collapse(point(token_accuracy=0.6), reliable) is None
    assert find_collapse(point(perplexity_drift=9.0, token_accuracy=0.0), CollapseStopSettings()) is None
    found = find_collapse(point(perplexity_drift=0.51, token_accuracy=0.1), replace(drift, reliability=0.6))
    assert found is not None
    assert (found["t"], found["figure"], found["value"], found["limit"]) == (30, "perplexity_drift", 0.51, 0.5)
    assert found["why"] == "after 30 edits the perplexity drift (nats) is 0.51, above the limit of 0.5"
    found = find_collapse(point(token_accuracy=0.59), reliable)
    assert found is not None
    assert found["why"] == "after 30 edits the reliability (token accuracy) is 0.59, below the limit of 0.6"
    assert find_collapse(point(), reliable) is None  # erasures alone
    found = find_collapse(point(), drift)
    assert found is not None
    assert found["value"] is None
    assert "there is no perplexity drift (nats): it cannot be computed" in found["why"]


def test_a_task_that_falls_stops() -> None:
    limits = CollapseStopSettings(harness_drop=5.0)
    tasks = paired({"a": {"acc": 0.5}, "b": {"acc_norm": 0.5}}, {"a": {"acc": 0.46}, "b": {"acc_norm": 0.44}})
    found = find_collapse(point() | {"harness": tasks}, limits)
    assert found is not None
    assert (found["task"], found["limit"]) == ("b", 5.0)
    assert found["value"] == pytest.approx(6.0)
    assert find_collapse(point() | {"harness": tasks}, CollapseStopSettings(harness_drop=7.0)) is None
    assert find_collapse(point(), limits) is None  # a checkpoint without tasks says nothing
    filtered = paired({"g": {"exact_match,strict-match": 0.5}}, {"g": {"exact_match,strict-match": 0.3}})
    found = find_collapse(point() | {"harness": filtered}, limits)
    assert found is not None
    assert found["value"] == pytest.approx(20.0)
    lost = find_collapse(point() | {"harness": paired({"g": {"acc": 0.5}}, {"g": {"acc": None}})}, limits)  # type: ignore[dict-item]
    assert lost is not None
    assert "there is no fall of g" in lost["why"]


@pytest.mark.parametrize("editor", [Nudge, GrowingNudge])
def test_a_sequence_stops_where_the_collapse_stop_says(lm: LanguageModel, tmp_path: Path, editor: Any) -> None:
    some, asked = plain(7), list[tuple[str, str]]()
    before = lm.memory(1).values.clone()
    # Two refused edits of four: reliability is at most one half after them.
    limit = CollapseStopSettings(reliability=0.51)
    strict = sequence(lm, some, editor(refuses="0123", asked=asked), tmp_path, collapse_stop=limit, **STEPS)
    assert strict.stopped is not None
    assert (strict.stopped["t"], strict.stopped["figure"], strict.stopped["value"]) == (2, "reliability", 0.0)
    assert len(asked) == 2
    assert lm.memory(1).values.equal(before)
    summary = strict.summary()
    assert (summary["n_facts"], summary["stopped"]["n_facts_asked_for"]) == (2, 7)
    assert [p["t"] for p in summary["curve"]] == [2]
    assert summary["retention"] == summary["curve"][0]["metrics"]
    assert len(list(RunFolder(tmp_path).cases("retention"))) == 2
    # It stays stopped, and nothing more is asked for.
    again = sequence(lm, some, editor(refuses="0123", asked=asked), tmp_path, collapse_stop=limit, **STEPS)
    assert (again.stopped, len(asked)) == (strict.stopped, 2)
    # With other limits it goes on, and ends as though it had never been stopped.
    free = sequence(lm, some, editor(refuses="0123"), tmp_path, **STEPS)
    calm = sequence(lm, some, editor(refuses="0123"), tmp_path / "calm", **STEPS)
    assert free.stopped is None
    assert "stopped" not in free.summary()
    assert (timeless(free), records(free)) == (timeless(calm), records(calm))
    assert free.retention == calm.retention


def test_perplexity_stops(lm: LanguageModel, tmp_path: Path) -> None:
    more = STEPS | {"measured": WITH_PERPLEXITY}
    sizes = (0.05, -0.05, 0.5, -0.5)  # some of them make a random model's text more likely
    curves = {size: sequence(lm, plain(6), Nudge(size), tmp_path / f"{size}", **more).curve for size in sizes}
    worst = {size: [p["metrics"]["perplexity_drift"]["after"] for p in curve] for size, curve in curves.items()}
    size, drifts = max(worst.items(), key=lambda one: max(one[1]))
    assert max(drifts) > 0
    for limit in (max(drifts) / 2, 2 * max(drifts)):
        stop = CollapseStopSettings(perplexity_drift=limit)
        run = sequence(lm, plain(6), Nudge(size), tmp_path / f"stops-{limit}", collapse_stop=stop, **more)
        expected = next((t for t, drift in zip((2, 4, 6), drifts, strict=True) if drift > limit), None)
        assert (None if run.stopped is None else run.stopped["t"]) == expected
        assert [p["t"] for p in run.curve] == [t for t in (2, 4, 6) if expected is None or t <= expected]


def test_a_crash_before_the_collapse_stop_is_tried_again(lm: LanguageModel, tmp_path: Path) -> None:
    limit = CollapseStopSettings(reliability=0.01)
    broken = sequence(lm, plain(6), Nudge(crashes="01"), tmp_path / "a", collapse_stop=limit, **STEPS)
    assert broken.stopped is not None
    assert [case.fact.id for case in broken.run.evaluation.crashes] == ["0", "1"]
    asked = list[tuple[str, str]]()
    again = sequence(lm, plain(6), Nudge(asked=asked), tmp_path / "a", collapse_stop=limit, **STEPS)
    assert asked[:2] == [("", "0"), ("0", "1")]
    assert not again.run.evaluation.crashes
    calm = sequence(lm, plain(6), Nudge(), tmp_path / "calm", collapse_stop=limit, **STEPS)
    assert timeless(again) == timeless(calm)


def test_what_is_not_measured_is_not_watched(lm: LanguageModel, tmp_path: Path) -> None:
    for limit, why in (
        (CollapseStopSettings(perplexity_drift=1.0), "no perplexity is measured"),
        (CollapseStopSettings(harness_drop=1.0), "there is no task to watch"),
        (CollapseStopSettings(reliability=0.5), "the edited prompts are not measured"),
    ):
        with pytest.raises(ValueError, match=why):
            sequence(
                lm, plain(2), Nudge(), tmp_path, measured=replace(QUICK, only=("paraphrases",)), collapse_stop=limit
            )
    limit, t5 = CollapseStopSettings(perplexity_drift=1.0), tiny.build("t5")
    with pytest.raises(ValueError, match="an encoder-decoder, which has no perplexity of running text"):
        sequence(t5, plain(2), Nudge(), tmp_path / "b", measured=WITH_PERPLEXITY, collapse_stop=limit)


class Tasks:
    """Stands for the harness: one task, whose accuracy is 0.9 less a tenth for each edit that is applied."""

    ran: list[int]

    def __init__(self) -> None:
        self.ran = []

    def run(self, lm: LanguageModel) -> Scores:
        self.ran.append(len(lm.edits))
        return {"own": {"acc": 0.9 - 0.1 * len(lm.edits)}}

    def before_and_after(self, lm: LanguageModel, before: Scores) -> Any:
        return paired(before, self.run(lm))


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Tasks:
    made = Tasks()
    monkeypatch.setattr(Harness, "of", lambda settings: made)
    return made


def test_the_harness_runs_at_checkpoints(lm: LanguageModel, tmp_path: Path, tasks: Tasks) -> None:
    measured = replace(QUICK, harness_tasks=("own",))
    run = sequence(lm, plain(6), Nudge(), tmp_path / "all", measured=measured, **STEPS)
    assert tasks.ran == [0, 2, 4, 6]
    figures = [p["harness"]["own"]["acc"] for p in run.curve]
    assert [round(f["after"], 6) for f in figures] == [0.7, 0.5, 0.3]
    assert {f["before"] for f in figures} == {0.9}
    assert run.summary()["harness"] == run.curve[-1]["harness"]
    tasks.ran.clear()
    some = sequence(lm, plain(6), Nudge(), tmp_path / "some", measured=measured, harness_at=(4,), **STEPS)
    assert [("harness" in p) for p in some.curve] == [False, True, True]
    tasks.ran.clear()
    limit = CollapseStopSettings(harness_drop=30)
    stopped = sequence(lm, plain(6), Nudge(), tmp_path / "stop", measured=measured, collapse_stop=limit, **STEPS)
    assert stopped.stopped is not None
    assert (stopped.stopped["t"], stopped.stopped["task"]) == (4, "own")
    assert tasks.ran == [0, 2, 4]


def test_a_task_that_cannot_be_watched_is_said_before_the_first_edit(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: Tasks
) -> None:
    monkeypatch.setattr(tasks, "run", lambda lm: {"own": {"word_perplexity": 3.0}})
    asked = list[tuple[str, str]]()
    with pytest.raises(ValueError, match=r"the task own has no accuracy .*it has word_perplexity"):
        sequence(
            *(lm, plain(2), Nudge(asked=asked), tmp_path),
            measured=replace(QUICK, harness_tasks=("own",)),
            collapse_stop=CollapseStopSettings(harness_drop=5.0),
        )
    assert not asked


@pytest.mark.parametrize("editor", [Nudge, GrowingNudge])
@pytest.mark.parametrize("batch", [1, 2])
def test_kept_edits_are_measured_again(lm: LanguageModel, tmp_path: Path, editor: Any, batch: int) -> None:
    some = facts_about(("Ben", "Rome"), ("red", "Rome"), ("Ben", "Paris"), ("blue", "Rome"), ("six", "Rome"))
    settings: dict[str, Any] = {"checkpoints": (2, 4), "every": 2, "batch": batch, "keep_edits": True}
    run = sequence(lm, some, editor(refuses="3"), tmp_path, **settings)
    assert len(run.curve[0]["edits"]) == (1 if editor is GrowingNudge or batch == 2 else 2)
    for at in run.curve:
        found = measure_kept(lm, RunFolder(tmp_path), at["t"], QUICK)
        assert not lm.edits
        assert set(found.metrics) == set(at["metrics"])
        for key, values in found.metrics.items():
            assert values["after"] == pytest.approx(at["metrics"][key]["after"], abs=1e-5), key
        # What was not measured then is now, on the same edits.
        assert "perplexity_drift" in measure_kept(lm, RunFolder(tmp_path), at["t"], WITH_PERPLEXITY).metrics


def test_what_was_not_kept_is_said(lm: LanguageModel, tmp_path: Path) -> None:
    run = sequence(lm, plain(4), GrowingNudge(), tmp_path, **STEPS)
    assert len(list((tmp_path / "edits").iterdir())) == 1
    with pytest.raises(ValueError, match=r"were not kept; run the sequence with job\.sequential\.keep_edits=true"):
        measure_kept(lm, run.run.folder, 2, QUICK)
    with pytest.raises(FileNotFoundError, match="no checkpoint at T=3; it has 2, 4"):
        measure_kept(lm, run.run.folder, 3, QUICK)
    kept = sequence(lm, plain(4), GrowingNudge(), tmp_path / "kept", keep_edits=True, **STEPS)
    with pytest.raises(ValueError, match="its model has the weights"):
        measure_kept(tiny.build("llama", seed=1), kept.run.folder, 2, QUICK)
    shutil.rmtree(tmp_path / "kept" / kept.curve[0]["edits"][0])
    with pytest.raises(FileNotFoundError, match="holds no edit"):
        measure_kept(lm, kept.run.folder, 2, QUICK)
