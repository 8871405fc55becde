import importlib.metadata
import re
import threading
from pathlib import Path

import pytest
import tiny
from omegaconf import OmegaConf

from corrigenda import Fact
from corrigenda.data import FactSet
from editing.gate.kept import kept_gate
from editing.learned.hypernetwork import kept_network
from eval import Case, Measurement
from eval.records import ScoredPrompt
from jobs.edit import terminal
from jobs.edit.job import _code, _identity
from jobs.edit.terminal import Progress


def test_a_long_silence_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    said, broken = [], threading.Event()

    def line(text: str) -> None:
        said.append(text)
        broken.set()

    monkeypatch.setattr(terminal, "line", line)
    for place in ("jobs.edit.terminal.LINE_SECONDS", "corrigenda.system.progress.LINE_SECONDS"):
        monkeypatch.setattr(place, 0.05)
    with Progress(3) as progress:
        progress.done = 1
        assert broken.wait(60)
    assert re.fullmatch(r"\[1/3\] at work for \d+ s", said[-1])


def test_long_targets_are_cut_and_lines_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    fact = Fact("Ben " * 500, "{} is\nin", "word " * 5000)
    with Progress(3) as progress:
        progress.advance(
            Case(fact, None, Measurement(prompts={"prompt": [ScoredPrompt("")]}), error="refused: " + "why " * 500)
        )
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("[1/3] Ben Ben")
    assert "... (none) -> word word" in said
    assert len(said) < 400


def test_a_fact_without_records_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    fact = Fact("Ben", "{} is in", "Rome")
    with Progress(1) as progress:
        progress.advance(Case(fact, Measurement(), Measurement(error="too long"), error="too long to be measured"))
    assert "too long to be measured" in capsys.readouterr().err


def test_the_time_left_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress(12)
    monkeypatch.setattr(terminal, "LINE_SECONDS", 0.0)
    progress.done = 2  # by an earlier part of the run
    progress._still_at_it(60)
    progress.done, progress._advanced = 7, 5
    progress._still_at_it(60)
    assert capsys.readouterr().err.splitlines() == [
        "[2/12] at work for 60 s",
        "[7/12] at work for 60 s, about 60 s left",
    ]


def test_a_run_is_another_where_what_no_setting_says_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    lm, text = tiny.build("llama"), tmp_path / "text.txt"
    editor = {"_target_": "editing.Mend", "network": None, "gate": None}
    sequential = {"fine_tuning": {"text": {"source": str(text)}}}
    config = OmegaConf.create({"mode": "sequential", "editor": editor, "eval": {}, "job": {"sequential": sequential}})

    def run_id() -> str:
        return _identity(config, lm, FactSet("a", ()), [], "code")["id"]

    ids = [run_id()]
    for path in (text, kept_gate(lm), kept_network(lm, "mend")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("trained anew")
        ids.append(run_id())
    lm.tokenizer.chat_template = "{{ messages[0].content }}"
    ids.append(run_id())
    lm.model.config.rms_norm_eps = 0.1
    ids.append(run_id())
    assert len(set(ids)) == len(ids)


def test_a_run_is_another_where_what_else_measures_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A module of this name that another test imported would be the one that counts.
    metric, config = tmp_path / "installed_metric.py", OmegaConf.create({"plugins": []})
    metric.write_text("# one")
    monkeypatch.syspath_prepend(tmp_path)
    codes = [_code(config)]
    point = importlib.metadata.EntryPoint("theirs", "installed_metric", "corrigenda.metrics")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == point.group else [])
    codes.append(_code(config))
    metric.write_text("# another")
    codes.append(_code(config))
    assert len(set(codes)) == 3
