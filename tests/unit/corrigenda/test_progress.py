"""Progress where there is no terminal."""

from __future__ import annotations

import time

import pytest

from corrigenda import progress


def test_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One second an item: the first line after ten seconds, the others every thirty."""
    now = iter(range(1000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    items = list(range(60))
    assert list(progress.track(items, "Counting [60]")) == items
    said = capsys.readouterr().err.splitlines()
    assert said == ["Counting [60]: 9 of 60, 10 s", "Counting [60]: 39 of 60, 40 s"]


def test_what_takes_a_moment_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress.track([1, 2, 3], "Counting")) == [1, 2, 3]
    assert capsys.readouterr().err == ""


def test_a_stage_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.stage("Loading a/model"):
        assert capsys.readouterr().err == "Loading a/model\n"


def test_a_stage_says_that_it_is_still_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)
    with progress.stage("Loading a/model"):
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Loading a/model"
    assert len(lines) > 1
    assert set(lines[1:]) == {"Loading a/model: 0 s"}
    time.sleep(0.1)
    assert capsys.readouterr().err == ""  # nothing after the block
