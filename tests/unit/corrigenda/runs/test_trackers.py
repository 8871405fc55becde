from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from trackers_parts import CONFIG, told, wandb_settings

from corrigenda import Fact
from corrigenda.runs.trackers import TRACKERS, NoTracker, tracker


class Recorder:
    """A stand-in for the module wandb that notes what it is told."""

    def __init__(self) -> None:
        self.init_arguments: dict[str, Any] = {}
        self.logged: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.step_metrics: dict[str, str] = {}
        self.finished = 0

    def init(self, **arguments: Any) -> Recorder:
        self.init_arguments = arguments
        return self

    def define_metric(self, name: str, step_metric: str) -> None:
        self.step_metrics[name] = step_metric

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)

    def finish(self) -> None:
        self.finished += 1

    def Table(self, columns: list[str], data: list[list[Any]]) -> Any:
        return SimpleNamespace(rows=[dict(zip(columns, row, strict=True)) for row in data])

    def Image(self, path: str) -> str:
        return Path(path).name


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setitem(sys.modules, "wandb", made)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return made


def test_wandb_is_told_everything(recorder: Recorder, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told(tracker(wandb_settings(), tmp_path, CONFIG), tmp_path)
    assert recorder.init_arguments["config"] == CONFIG
    assert (recorder.init_arguments["mode"], recorder.init_arguments["name"]) == ("offline", tmp_path.name)
    assert recorder.logged[:3] == [{"losses/a/losses": x, "edit_step": n} for n, x in enumerate([3.0, 1.0, 0.2])]
    assert recorder.logged[3] == {"case/efficacy_success": 1.0, "case/fluency": 5.5, "case_number": 0}
    assert recorder.logged[4] == {"case/efficacy_success": 0.5, "case_number": 1}
    assert recorder.step_metrics == {"case/*": "case_number", "losses/*": "edit_step"}
    first, second = recorder.logged[5]["cases"].rows
    assert (first["prompt"], first["p_new before"], first["p_new after"]) == ("Tartu lies in", 0.1, 0.9)
    assert (first["answer before"], first["answer after"], first["fluency"]) == (" Estonia", " Chile", 5.5)
    assert (second["error"], second["target_true"], second["fluency"]) == ("refused: too much", None, None)
    assert recorder.logged[6] == {"pictures/curve": "curve.png"}
    assert recorder.summary["efficacy_success/after"] == 0.75
    assert recorder.summary["perplexity_drift/after"] == 0.01
    assert "perplexity_drift/before" not in recorder.summary
    assert recorder.summary["seconds_per_edit/run"] == 1.5
    assert recorder.finished == 1


def test_wandb_mode_is_respected(recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    tracker(wandb_settings(), tmp_path, CONFIG)
    assert recorder.init_arguments["mode"] == "disabled"


@pytest.mark.parametrize(
    ("group", "sweep", "expected"),
    [(None, None, None), (None, "multirun/x", "multirun/x"), ("mine", "multirun/x", "mine"), ("mine", None, "mine")],
)
def test_a_sweep_groups_its_runs(
    recorder: Recorder, tmp_path: Path, group: str | None, sweep: str | None, expected: str | None
) -> None:
    tracker(wandb_settings(group=group), tmp_path, CONFIG, sweep)
    assert recorder.init_arguments["group"] == expected


@pytest.mark.parametrize("step", ["init", "define_metric", "log", "Table", "finish"])
def test_a_failing_wandb_stops_nothing(
    recorder: Recorder, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def fail(*_: Any, **__: Any) -> None:
        calls.append(step)
        raise OSError("no space left")

    monkeypatch.setattr(recorder, step, fail)
    with pytest.warns(
        UserWarning, match=r"wandb failed, the run goes on without it: OSError\('no space left'\)"
    ) as got:
        told(tracker(wandb_settings(), tmp_path, CONFIG), tmp_path)
    assert len(got) == len(calls) == 1  # said once, and not tried again


@pytest.mark.parametrize(("name", "module"), [("wandb", "wandb"), ("tensorboard", "torch.utils.tensorboard")])
def test_a_missing_package_stops_nothing(
    tmp_path: Path, name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    settings = wandb_settings() if name == "wandb" else {"name": name}
    with pytest.warns(UserWarning, match=f"{name} failed, the run goes on without it: .*{module}") as got:
        told(tracker(settings, tmp_path, CONFIG), tmp_path)
    assert len(got) == 1


def test_tensorboard(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="tensorboard failed")
        told(tracker({"name": "tensorboard"}, tmp_path, CONFIG), tmp_path)
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()

    def scalars(tag: str) -> list[tuple[int, float]]:
        return [(event.step, pytest.approx(event.value)) for event in events.Scalars(tag)]

    assert scalars("case/efficacy_success") == [(0, 1.0), (1, 0.5)]
    assert scalars("losses/a/losses") == [(0, 3.0), (1, 1.0), (2, 0.2)]
    assert scalars("summary/efficacy_success/after") == [(0, 0.75)]
    assert events.Tags()["images"] == ["pictures/curve"]
    assert {"config/text_summary", "cases/text_summary"} <= set(events.Tags()["tensors"])


def test_none_and_unknown(tmp_path: Path) -> None:
    assert isinstance(tracker({"name": "none"}, tmp_path, CONFIG), NoTracker)
    told(NoTracker(), tmp_path)
    with pytest.raises(ValueError, match=r"logger.name=wandbb: the loggers are none, wandb, tensorboard$"):
        tracker({"name": "wandbb"}, tmp_path, CONFIG)


def test_every_tracker_has_its_configuration() -> None:
    folder = Path(__file__).parents[4] / "conf" / "logger"
    assert {path.stem for path in folder.glob("*.yaml")} == {"none", *TRACKERS}


def test_cases_of_a_real_run(recorder: Recorder, tmp_path: Path) -> None:
    from eval import EvalSettings, evaluate

    facts = [Fact("tower", "the {} is in", "Rome", "Paris", id="t")]
    settings = EvalSettings(max_new_tokens=2, perplexity_windows=3, perplexity_window=16)
    record = evaluate(tiny.build("llama"), facts, settings).cases[0].to_dict()
    one = tracker(wandb_settings(), tmp_path, CONFIG)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one.case(0, json.loads(json.dumps(record)))
    [logged] = [values for values in recorder.logged if "case_number" in values]
    assert logged == {f"case/{key}": value for key, value in record["after"]["values"].items()} | {"case_number": 0}
