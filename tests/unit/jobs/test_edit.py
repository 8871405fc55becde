"""What the job of editing says while it works."""

from __future__ import annotations

import time

import pytest

from jobs import edit


def test_a_long_silence_is_broken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All facts in one edit: no fact is finished for long."""
    for place in ("jobs.edit.LINE_SECONDS", "corrigenda.progress.LINE_SECONDS"):
        monkeypatch.setattr(place, 0.05)
    with edit._Progress(3) as progress:
        progress.done = 1
        time.sleep(0.3)
    assert "[1/3] at work for 0 s" in capsys.readouterr().err
