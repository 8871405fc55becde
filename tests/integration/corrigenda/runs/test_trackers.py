"""Trackers: what each is told and keeps, and that none can stop a run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import tiny

from corrigenda import Fact
from corrigenda.moments.text import Text
from corrigenda.runs.trackers import Tracker, step_losses, tracker
from editing import Editor, FineTune, Grace, Rome, Unrelated, ValueSettings, Wise

CASES: list[dict[str, Any]] = [
    {
        "id": "a",
        "fact": {"subject": "Tartu", "prompt": "{} lies in", "target_new": "Chile", "target_true": "Estonia"},
        "error": "",
        "seconds": 1.5,
        "edit": {"loss": 0.2, "losses": [3.0, 1.0, 0.2], "steps": [1, 2], "loss_note": ["no number"]},
        "before": {
            "values": {"efficacy_success": 0.0},
            "prompts": {"prompt": [{"p_new": 0.1, "p_true": 0.6, "answer": " Estonia"}]},
        },
        "after": {
            "values": {"efficacy_success": 1.0, "fluency": 5.5},
            "prompts": {"prompt": [{"p_new": 0.9, "p_true": 0.1, "answer": " Chile"}]},
        },
    },
    {
        "id": "b",
        "fact": {"subject": "Narva", "prompt": "{} lies in", "target_new": "Peru"},
        "error": "refused: too much",
        "seconds": None,
        "edit": None,
        "before": None,
        "after": {"values": {"efficacy_success": 0.5}, "prompts": {}},
    },
]

SUMMARY: dict[str, Any] = {
    "metrics": {
        "efficacy_success": {"before": 0.0, "after": 0.75, "low": 0.5, "high": 1.0, "n": 2},
        "perplexity_drift": {"before": None, "after": 0.01, "low": None, "high": None, "n": 2},
    },
    "seconds_per_edit": 1.5,
    "peak_memory_mb": None,
    "n_facts": 2,
}

CONFIG = {"seed": 0, "editor": {"layer": 3}}


def told(one: Tracker, folder: Path) -> None:
    """A whole run, with a picture at its end."""
    for number, case in enumerate(CASES):
        one.case(number, case)
    matplotlib.image.imsave(folder / "curve.png", np.zeros((4, 6, 3)))
    one.finish(SUMMARY)


def wandb_settings(**changes: Any) -> dict[str, Any]:
    return {"name": "wandb", "project": "corrigenda", "entity": None, "group": None} | changes


TEXT = Text(tokens=640, length=16)

VALUE = ValueSettings(steps=6, lr=0.02, weight_decay=0.0)


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


@pytest.mark.parametrize(
    "editor",
    [
        Rome(layer=1, prefix_lengths=((3, 2),), text=TEXT, value=VALUE),
        FineTune(layer=1, steps=6, epochs=6, lr=0.05, stop=0.0),
        Grace(layer=1, radius=1e-3, steps=5, stop=0.0),
        Wise(
            layer=1, steps=5, lr=20.0, max_norm=1e4, weight=0.01, prefix_lengths=((3, 2),), text=TEXT,
            unrelated=Unrelated(Text(tokens=192, length=12), prompts=False),
        ),
    ],
    ids=lambda editor: editor.name,
)  # fmt: skip
def test_editors_that_learn_by_steps_report_their_losses(
    editor: Editor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path))
    lm = tiny.build("llama")
    facts = [Fact("Big Ben", "{} is in", "Rome"), Fact("the river", "{} stands in the city of", "Paris")]
    for report in editor.edit(lm, facts).origin.report:
        [(name, losses)] = step_losses({"edit": report})
        assert name == "step_losses"
        assert len(losses) == 6
        assert losses[-1] < losses[0]


def test_a_run_after_a_failed_one_is_one_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sweep, a run that fails is never told that it is over."""
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
