import warnings
from pathlib import Path

import pytest
import tiny
from trackers_parts import CONFIG, told, wandb_settings

from corrigenda import Fact
from corrigenda.runs.trackers import step_losses, tracker
from editing import FineTune


def test_the_real_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="wandb failed")
        told(tracker(wandb_settings(), tmp_path, CONFIG, "multirun/x"), tmp_path)
    assert wandb.run is None
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    assert list(run.glob("*.wandb"))
    assert list(run.rglob("curve*.png"))
    assert list(run.rglob("cases*.table.json"))


def test_editors_that_learn_by_steps_report_their_losses() -> None:
    editor = FineTune(layer=1, steps=6, epochs=6, lr=0.05, stop=0.0)
    facts = [Fact("Big Ben", "{} is in", "Rome"), Fact("the river", "{} stands in the city of", "Paris")]
    for report in editor.edit(tiny.build("llama"), facts).origin.report:
        [(name, losses)] = step_losses({"edit": report})
        assert name == "step_losses"
        assert len(losses) == 6
        assert losses[-1] < losses[0]


def test_a_run_after_a_failed_one_is_one_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="wandb failed")
        failed, after = (tracker(wandb_settings(), tmp_path / name, CONFIG | {"name": name}, None) for name in "ab")
        first, second = (each._tracker._run for each in (failed, after))  # type: ignore[attr-defined]
        assert first.id != second.id
        assert (first.config["name"], second.config["name"]) == ("a", "b")
        after.finish({"metrics": {}})
        failed.finish({"metrics": {}})
    assert wandb.run is None
