import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from sequences import Nudge, plain
from sequential_parts import SMALL, Growing, Notes, facts, given_notes, go

from corrigenda import Fact, LanguageModel
from corrigenda.facts import Probe
from corrigenda.runs.folder import RunFolder
from eval import EditRun, EvalSettings, Measurement, SequentialRun, SequentialSettings, measure
from eval.protocols import pre_edit, runs
from eval.protocols.batch import run_batch
from eval.protocols.sequential import run_sequential
from eval.protocols.single import run_single

by_notes = pytest.fixture(given_notes)


@pytest.mark.parametrize("editor", [Notes(), Growing()], ids=["stacked", "extended"])
@pytest.mark.parametrize("regime", ["auto", "together"])
def test_stopped_anywhere_it_goes_on_and_ends_the_same(
    by_notes: LanguageModel, tmp_path: Path, editor: Notes, regime: Any
) -> None:
    some = facts(("Ben", "Rome"), ("red", "Rome"), ("Ben", "Paris"), ("Ben", "Paris"), ("six", "Rome"))
    fixed = [Fact("x", "{} is", "a", locality=(Probe("y", "z"),))]
    settings = SequentialSettings(checkpoints=(1, 3), every=2, chunk=2, regime=regime)
    calm = go(by_notes, some, editor, tmp_path / "calm", settings, fixed)

    def timeless(run: SequentialRun) -> list[dict[str, Any]]:
        return [
            {k: v for k, v in point.items() if k not in ("seconds_per_edit", "peak_memory_mb")} for point in run.curve
        ]

    for patience in range(3, 12):  # with fewer it is asked again before anything is done
        asked = 0

        def stop(patience: int = patience) -> bool:
            nonlocal asked
            asked += 1
            return asked > patience

        goes = 0
        while True:
            asked, goes = 0, goes + 1
            run = SequentialRun(
                EditRun(by_notes, some, editor, SMALL, RunFolder(tmp_path / f"{patience}")), settings, fixed, stop
            )
            ended = run.go()
            assert not by_notes.edits
            if ended or goes > 40:
                break
        assert ended
        assert timeless(run) == timeless(calm)
        assert [case.after for case in run.run.evaluation.cases] == [case.after for case in calm.run.evaluation.cases]
    editor.asked.clear()


@pytest.mark.parametrize("mode", ["single", "batch", "sequential"])
def test_runs_share_what_the_unedited_model_does(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm, some = tiny.build("llama"), plain(7)
    measured = 0
    monkeypatch.setattr(runs, "CHUNK", 3)

    def counted(lm: LanguageModel, facts: Sequence[Fact], settings: EvalSettings, **more: Any) -> list[Measurement]:
        nonlocal measured
        measured += len(facts)
        return measure(lm, facts, settings, **more)

    monkeypatch.setattr(pre_edit, "measure", counted)

    def records(name: str, before: Path | None, settings: EvalSettings = SMALL) -> tuple[str, int]:
        nonlocal measured
        measured = 0
        run = EditRun(lm, some, Nudge(), settings, RunFolder(tmp_path / name), before=before)
        if mode == "sequential":
            run_sequential(run, SequentialSettings(checkpoints=(5,), chunk=3), list(plain(9))[7:])
        else:
            {"single": run_single, "batch": run_batch}[mode](run)
        cases = [case.to_dict() | {"seconds": None} for case in run.cases.values()]
        return json.dumps(cases), measured

    whole = 9 if mode == "sequential" else 7
    alone, first = records("alone", None), records("first", tmp_path / "before")
    assert alone == first
    assert alone[1] == whole
    assert records("second", tmp_path / "before") == (first[0], 0)
    damaged = min((tmp_path / "before").iterdir())  # of these settings: there are no others yet
    other = replace(SMALL, max_new_tokens=3)
    assert records("other", tmp_path / "before", other) == (records("apart", None, other)[0], whole)
    # What matters after an edit alone is no reason to measure again; nor is a chunk that is there.
    _, again = records("after", tmp_path / "before", replace(SMALL, perplexity_sample=3, strict=True))
    assert again == 0
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="is damaged .*; it is measured again"):
        found = [records(name, tmp_path / "before") for name in ("third", "fourth")]
    assert [one for one, _ in found] == [alone[0]] * 2
    assert [n for _, n in found] == [found[0][1], 0]
    assert found[0][1] <= 3
