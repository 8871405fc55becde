import errno
import sys
import threading
from pathlib import Path

import pytest

from corrigenda.errors import LockedError
from corrigenda.runs import locks
from corrigenda.runs.locks import is_locked, locked


def test_a_lock_file_that_was_left_behind_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.write_text("1234\nanother machine\n")
    assert not is_locked(path)
    with locked(path):
        assert is_locked(path)
    assert path.is_file()


def test_looking_makes_no_file(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / ".lock")
    assert not is_locked(tmp_path / "nothing" / ".lock")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_held_and_let_go(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with pytest.raises(LockedError, match=r"\.lock is held by another process"), locked(path), locked(path, 0.05):
        raise AssertionError("both hold it")
    assert not is_locked(path)
    with locked(path):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="locks there are others")
def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refused)
    with pytest.raises(OSError, match="No locks available") as refusal, locked(tmp_path / ".lock"):
        raise AssertionError("it is held")
    assert refusal.value.filename == str(tmp_path / ".lock")


def test_somebody_else_who_only_looks_is_not_taken_for_a_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that seems to be running is left alone, so a glance of another process must not look like one."""
    monkeypatch.setattr(locks, "LOOKING_TAKES", 10.0)  # a busy machine lengthens a glance
    taken, answers = threading.Event(), []

    def glance() -> None:
        with locked(tmp_path / ".lock"):
            taken.set()
            threading.Event().wait(0.02)

    thread = threading.Thread(target=glance)
    thread.start()
    assert taken.wait(10)
    answers.append(is_locked(tmp_path / ".lock"))
    thread.join()
    assert answers == [False]
