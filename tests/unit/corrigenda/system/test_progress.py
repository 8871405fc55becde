import re
import time

import pytest

from corrigenda.system import progress


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines come every few hundredths of a second."""
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.02)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.04)


def said_until(pattern: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines until one is there that matches; a busy machine may be late with it."""
    said, end = "", time.monotonic() + 60
    while not any(re.fullmatch(pattern, line) for line in said.splitlines()):
        assert time.monotonic() < end, said
        time.sleep(0.01)
        said += capsys.readouterr().err
    return said.splitlines()


@pytest.mark.usefixtures("quick")
def test_a_line_at_the_start_now_and_then_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    seen, said = [], []
    for item in progress.track([1, 2, 3], "Counting [3]"):
        seen.append(item)
        if item == 3:
            said = said_until(r"Counting \[3\]: 2 of 3, \d+ s, about \d+ s left", capsys)
    assert seen == [1, 2, 3]
    assert said[0] == "Counting [3]"
    assert re.fullmatch(r"Counting \[3\]: done in \d+ s", capsys.readouterr().err.splitlines()[-1])
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("quick")
def test_what_is_left_early_or_fails_says_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in progress.track([1, 2], "Counting"):
        break
    with pytest.raises(ZeroDivisionError), progress.stage("Dividing"):
        raise ZeroDivisionError
    said = capsys.readouterr().err
    assert "Dividing\n" in said
    assert "done" not in said
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_how_far_it_is() -> None:
    assert progress.how_far(0, 60, 10) == "0 of 60, 10 s"
    assert progress.how_far(20, 60, 10) == "20 of 60, 10 s, about 20 s left"
    assert progress.how_far(60, 60, 10) == "60 of 60, 10 s"


def test_what_takes_a_moment_says_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 60.0)
    assert list(progress.track([1, 2, 3], "Counting")) == [1, 2, 3]
    with progress.stage("Resting", at_once=False):
        pass
    assert capsys.readouterr().err == ""


def test_a_stage_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.stage("Loading a/model"):
        assert capsys.readouterr().err == "Loading a/model\n"
    assert re.fullmatch(r"Loading a/model: done in \d+ s\n", capsys.readouterr().err)


def test_a_stage_says_that_it_is_still_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)
    with progress.stage("Loading a/model"):
        said = said_until(r"Loading a/model: \d+ s", capsys)
    assert said[0] == "Loading a/model"
    assert re.fullmatch(r"Loading a/model: done in \d+ s", capsys.readouterr().err.splitlines()[-1])
    time.sleep(0.1)
    assert capsys.readouterr().err == ""  # nothing after the block


def test_lines_are_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    progress.line("word " * 100)
    assert capsys.readouterr().err.count("\n") == 1


def test_who_listens_is_told_too(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[str, int, int | None]] = []
    with progress.heard(lambda *how: told.append(how)):
        assert list(progress.track("ab", "Spelling")) == ["a", "b"]
        with progress.stage("Thinking"):
            pass
    list(progress.track("ab", "Spelling alone"))
    assert told == [("Spelling", 0, 2), ("Spelling", 1, 2), ("Thinking", 0, None)]
    assert "Thinking" in capsys.readouterr().err
