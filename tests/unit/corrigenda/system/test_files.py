import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError

from corrigenda.system import files
from corrigenda.system.files import (
    problem_of_contents,
    read_kept,
    remove_scratch,
    scratch_prefix,
    write_checked,
    write_contents,
    write_text,
)

TENSORS = {"x": torch.arange(6.0).view(2, 3)}


def test_a_file_in_the_place_of_another_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "a" / "layer3.safetensors"
    write_checked(path, TENSORS, {"n": "3"})
    found = read_kept(path, "it is computed again")
    assert torch.equal(found[0]["x"], TENSORS["x"])
    assert found[1] == {"n": "3"}
    for other in (tmp_path / "a" / "layer4.safetensors", tmp_path / "b" / "layer3.safetensors"):
        other.parent.mkdir(exist_ok=True)
        shutil.copy(path, other)
        said = rf"{other.name} is in the place of another file \(it was written as a/layer3.*\); it is computed again"
        with pytest.warns(UserWarning, match=said):
            assert read_kept(other, "it is computed again") is None
    shutil.move(tmp_path / "a", tmp_path / "elsewhere" / "a")  # a cache may be moved as a whole
    assert read_kept(tmp_path / "elsewhere" / "a" / path.name, "it is computed again") is not None


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_any_changed_byte_is_noticed(tmp_path_factory: pytest.TempPathFactory, place: int, by: int) -> None:
    path = tmp_path_factory.mktemp("kept") / "x.safetensors"
    write_checked(path, TENSORS, {"n": "3"})
    content = bytearray(path.read_bytes())
    place %= len(content)
    # A header is padded with spaces, and a tab among them is none of what the file says.
    assume(not (content[place] == ord(" ") and content[place] ^ by in b"\t\n\r"))
    content[place] ^= by
    path.write_bytes(content)
    with pytest.warns(UserWarning, match="again"):
        assert read_kept(path, "again") is None


WRITER = """
import os, sys, time
from pathlib import Path
from corrigenda.system.files import write_file
def write(scratch):
    scratch.write_text("half")
    print(scratch, flush=True)
    time.sleep(60)
write_file(Path(sys.argv[1]), write)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot be asked there whether it lives")
def test_scratch_files_of_killed_writers_are_removed_and_those_of_live_ones_stay(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "x.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        scratch = Path(writer.stdout.readline().strip())
        assert scratch.is_file()
        write_text(tmp_path / "y.json", "")
        assert scratch.is_file()  # it is alive
        writer.send_signal(signal.SIGKILL)
    files._LOOK_AGAIN.clear()
    write_text(tmp_path / "y.json", "")
    assert not scratch.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["y.json"]


def test_scratch_of_other_machines_is_removed_after_a_day(tmp_path: Path) -> None:
    mine, other, folder = (
        tmp_path / f"{prefix}abcdefgh" for prefix in (scratch_prefix("x"), ".x.0123abcd-1.", ".f.0123abcd-2.")
    )
    kept = [tmp_path / name for name in (".x.settings", "x.0123abcd-1.abcdefgh", ".git")]
    folder.mkdir()
    (folder / "wheel").touch()
    for path in (mine, other, *kept):
        path.touch()
    remove_scratch(tmp_path)
    assert all(path.exists() for path in (mine, other, folder, *kept))
    files._LOOK_AGAIN.clear()
    for path in (mine, other, folder, *kept):
        os.utime(path, (time.time() - 90_000,) * 2)
    remove_scratch(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in (mine, *kept))


def test_a_prepared_folder_holds_what_was_written_down(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"x" * 3000)
    (tmp_path / "config.json").write_text("{}")
    write_contents(tmp_path, "a")
    assert problem_of_contents(tmp_path, "a") == ""
    (tmp_path / ".DS_Store").write_text("what file browsers leave behind")
    (tmp_path / "folder").mkdir()
    assert problem_of_contents(tmp_path, "a") == ""
    assert problem_of_contents(tmp_path, "b") == "it is of something else (a)"
    (tmp_path / "weights").write_bytes(b"x" * 2999 + b"y")
    assert problem_of_contents(tmp_path, "a") == "damaged (weights)"
    (tmp_path / "weights").unlink()
    assert problem_of_contents(tmp_path, "a") == "damaged (weights)"
    for text in ("{", "[]", '{"of": "a", "files": 1}'):
        (tmp_path / files.CONTENTS).write_text(text)
        assert "is damaged" in problem_of_contents(tmp_path, "a")
    (tmp_path / files.CONTENTS).unlink()  # the rest may be gone, too
    assert problem_of_contents(tmp_path, "a") == "it has no contents.json"


WRITERS: dict[str, tuple[Callable[[Path, int], None], str]] = {
    "text": (lambda path, n: files.write_text(path, "ж" * n), "pathlib.Path.write_text"),
    "json": (lambda path, n: files.write_json(path, {"n": n}), "pathlib.Path.write_text"),
    "tensors": (lambda path, n: files.write_tensors(path, {"t": torch.full((5,), n)}), "safetensors.torch.save_file"),
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_failed_write_leaves_the_old_file(
    kind: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (write, step), path = WRITERS[kind], tmp_path / "new folder" / "file"
    write(path, 1)
    old = path.read_bytes()

    def half(*arguments: Any, **_: Any) -> None:
        next(each for each in arguments if isinstance(each, Path)).write_bytes(b"half")
        raise error

    for place in (step, "os.replace"):
        with monkeypatch.context() as patch:
            patch.setattr(place, half)
            with pytest.raises(type(error)):
                write(path, 2)
        assert path.read_bytes() == old
        assert list(path.parent.iterdir()) == [path]
    write(path, 2)
    assert path.read_bytes() != old
    assert list(path.parent.iterdir()) == [path]


def test_a_file_is_on_the_disk_before_it_is_put_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, placed, replace = list[int](), list[int](), os.replace

    def note(scratch: Path, path: Path) -> None:
        placed.append(scratch.stat().st_ino)
        assert placed == synced
        replace(scratch, path)

    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    monkeypatch.setattr(os, "replace", note)
    write_text(tmp_path / "x", "text")
    assert placed


def test_a_file_that_cannot_be_made_is_called_by_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**at: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", f"{at['dir']}/{at['prefix']}x")

    monkeypatch.setattr(tempfile, "mkstemp", refused)
    with pytest.raises(PermissionError) as refusal:
        files.write_text(tmp_path / "a.txt", "new")
    assert refusal.value.filename == str(tmp_path / "a.txt")
    monkeypatch.undo()
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(OSError, match="directory") as taken:
        files.write_text(tmp_path / "a.txt", "new")
    assert taken.value.filename == str(tmp_path / "a.txt")


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    files.write_json(path, {"kept": True})
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(path, {"loss": float("nan")})
    assert json.loads(path.read_text()) == {"kept": True}
    assert list(tmp_path.iterdir()) == [path]


def test_files_are_ordinary_ones(tmp_path: Path) -> None:
    files.write_text(tmp_path / "ours", "x")
    (tmp_path / "theirs").write_text("x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "theirs").stat().st_mode


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), SafetensorError("I/O error: No space left on device (os error 28)")],
)
def test_a_full_disk_names_the_file_and_what_to_do(tmp_path: Path, error: Exception) -> None:
    def full(_scratch: Path) -> None:
        raise error

    with pytest.raises(OSError, match="make room and give the same command again: ") as caught:
        files.write_file(tmp_path / "x.safetensors", full)
    assert caught.value.filename == str(tmp_path / "x.safetensors")
    assert list(tmp_path.iterdir()) == []
