from pathlib import Path
from typing import Any

import pytest
import tiny
from sequential_parts import Notes, facts

from corrigenda.moments.second_moment import second_moment
from corrigenda.moments.text import Text
from corrigenda.runs.folder import RunFolder
from corrigenda.system import progress
from editing.shared.contexts import contexts
from eval import EditRun, EvalSettings, SequentialSettings, run_batch, run_sequential, run_single

MEASURED = EvalSettings(generate=False, perplexity_windows=0)


REFUSING = Notes(refused=("Thomas", "river"))


def run_of(folder: Path, editor: Any, *targets: tuple[str, str]) -> EditRun:
    return EditRun(tiny.build("llama"), facts(*targets), editor, MEASURED, RunFolder(folder))


TARGETS = [("Thomas", "Rome"), ("river", "Paris"), ("Thomas", "London"), ("river", "paris ")]


def test_the_deduplicate(tmp_path: Path) -> None:
    editor = Notes()
    run = run_of(tmp_path / "all", editor, *TARGETS)
    run_batch(run)
    assert editor.asked == [("", ["2-Thomas-London", "3-river-paris "])]
    summary = run.summary("batch")
    counts = {name: summary[name] for name in ("n_facts", "n_failed", "n_overwritten", "n_repeated")}
    assert counts == {"n_facts": 4, "n_failed": 0, "n_overwritten": 1, "n_repeated": 1}
    assert summary["metrics"]["efficacy_success"]["n"] == 2
    said = [run.cases[fact.id].edit for fact in run.facts]
    assert said == [
        {"superseded_by": "2-Thomas-London"},
        {"repeated_by": "3-river-paris "},
        {"noted": "2-Thomas-London", "contradicts": "0-Thomas-Rome"},
        {"noted": "3-river-paris ", "repeats": "1-river-Paris"},
    ]
    assert [run.cases[fact.id].seconds is None for fact in run.facts] == [True, True, False, False]
    # As they are read again, and as though only the others had been asked for.
    again = EditRun(run.lm, run.facts, editor, MEASURED, run.folder)
    assert again.summary("batch")["metrics"] == summary["metrics"]
    alone = run_of(tmp_path / "alone", Notes(), *TARGETS[2:])
    run_batch(alone)
    assert alone.summary("batch")["metrics"] == summary["metrics"]


def test_a_folder_of_another_editor_or_measurement_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path, Notes(), TARGETS[0])
    with pytest.raises(ValueError, match=r"begun with another editor \(notes .*'refused': .*, now"):
        EditRun(run.lm, run.facts, REFUSING, MEASURED, run.folder)
    with pytest.raises(ValueError, match="begun with another settings"):
        EditRun(run.lm, run.facts, Notes(), EvalSettings(generate=False), run.folder)


def test_a_refused_batch_fails_at_what_was_asked(tmp_path: Path) -> None:
    run = run_of(tmp_path, REFUSING, *TARGETS)
    run_batch(run)
    assert run.summary("batch")["n_failed"] == 2
    assert [bool(run.cases[fact.id].error) for fact in run.facts] == [False, False, True, True]


@pytest.mark.parametrize("mode", ["single", "sequential"])
def test_other_modes_count_in_their_own_way(mode: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, Notes(), *TARGETS[:1])
    run_batch(run)
    assert "n_overwritten" not in run.summary(mode)


def test_every_stage_that_takes_a_while_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    run = run_of(tmp_path / "batch", Notes(), *TARGETS)
    contexts(run.lm, [(2, 3)], Text("self"))
    second_moment(run.lm, 1, Text("self", tokens=64, length=16))
    run_batch(run)
    run_single(run_of(tmp_path / "single", Notes(), *TARGETS))
    run_sequential(run_of(tmp_path / "sequential", Notes(), *TARGETS), SequentialSettings(regime="stack", chunk=2))
    said = capsys.readouterr().err.splitlines()
    for told in (
        "Sampling contexts from tiny-llama (6 tokens)",
        "Sampling text from tiny-llama (64 tokens)",
        "Second moment of layer 1",
        "Measuring the model before and after the edit",
        "Measuring the unedited model, part 1 of 1",
        "Measuring the unedited model on 4 facts",
    ):
        assert told in said
        assert any(line.startswith(f"{told}: done in ") for line in said)
    assert any(line.startswith("Scoring 4 facts (") for line in said)
