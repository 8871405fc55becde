import time

import pytest

from corrigenda.system import progress


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines come every few hundredths of a second."""
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.02)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.04)


@pytest.mark.usefixtures("quick")
def test_a_line_at_the_start_now_and_then_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    seen = []
    for item in progress.track([1, 2, 3], "Counting [3]"):
        seen.append(item)
        time.sleep(0.15 if item == 3 else 0)
    assert seen == [1, 2, 3]
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "Counting [3]"
    assert len(said) > 2
    assert set(said[1:-1]) == {"Counting [3]: 2 of 3, 0 s, about 0 s left"}
    assert said[-1] == "Counting [3]: done in 0 s"
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("quick")
def test_what_is_left_early_or_fails_says_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in progress.track([1, 2], "Counting"):
        break
    with pytest.raises(ZeroDivisionError), progress.stage("Dividing"):
        raise ZeroDivisionError
    time.sleep(0.1)
    assert capsys.readouterr().err.splitlines() == ["Dividing"]


def test_how_far_it_is() -> None:
    assert progress.how_far(0, 60, 10) == "0 of 60, 10 s"
    assert progress.how_far(20, 60, 10) == "20 of 60, 10 s, about 20 s left"
    assert progress.how_far(60, 60, 10) == "60 of 60, 10 s"


def test_what_takes_a_moment_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress.track([1, 2, 3], "Counting")) == [1, 2, 3]
    with progress.stage("Resting", at_once=False):
        pass
    assert capsys.readouterr().err == ""


def test_a_stage_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.stage("Loading a/model"):
        assert capsys.readouterr().err == "Loading a/model\n"
    assert capsys.readouterr().err == "Loading a/model: done in 0 s\n"


def test_a_stage_says_that_it_is_still_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)
    with progress.stage("Loading a/model"):
        time.sleep(0.2)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Loading a/model"
    assert len(lines) > 2
    assert set(lines[1:-1]) == {"Loading a/model: 0 s"}
    assert lines[-1] == "Loading a/model: done in 0 s"
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
