"""What the tests of reports of ordinary runs share: a tiny model with facts, and runs in this process."""

import json
from collections.abc import Callable
from pathlib import Path

import program
import pytest
from run_parts import make_home, record

from corrigenda.runs.store import Store

SUBJECTS = ("Thomas", "Danielle", "Ben", "river", "tower", "piano", "Rome", "Berlin", "red", "blue", "seven", "north")


@pytest.fixture
def few_facts(tmp_path: Path) -> list[str]:
    """Writes a tiny model and twelve facts (counterfact.json); how a command of docs/reports is told of both."""
    make_home(tmp_path)
    facts = [
        record(number, subject, target_new="Rome" if number % 2 else "Berlin", target_true="Paris")
        for number, subject in enumerate(SUBJECTS)
    ]
    (tmp_path / "counterfact.json").write_text(json.dumps(facts))
    return [
        *("--data", "counterfact", "--files", str(tmp_path), "--model", "own", "--store", str(tmp_path / "store")),
        *("--docs", str(tmp_path / "docs"), f"model.name={tmp_path / 'model'}", "model.device=cpu"),
    ]


@pytest.fixture
def runs() -> list[list[str]]:
    """The overrides of the runs that `run_here` made."""
    return []


@pytest.fixture
def run_here(
    tmp_path: Path, runs: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[str], Store, float | None], bool]:
    """What stands in for `runs.run`: makes a run in this process, where there is no deadline.

    It draws no picture of its curve, which is a third of such a run's time: the pages draw their own.
    """
    monkeypatch.setattr("jobs.edit.job.draw_curve", lambda points, path, method: None)

    def run(overrides: list[str], store: Store, deadline: float | None) -> bool:
        if deadline is not None:
            return False
        runs.append(overrides)
        program.call(tmp_path, *overrides)
        return True

    return run
