"""Edits as LoRA adapters in GGUF, read back with gguf's own reader."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import tiny
import torch
from edits_parts import drawn, low_rank, origin, values
from malformed_parts import refused

from corrigenda import EditRefusedError, LanguageModel, LowRankEdit, UnsupportedModelError, WrongModelError, load
from corrigenda.edits.export import changes as shared
from corrigenda.models.families import FAMILIES


def saved(family: str, folder: Path) -> LanguageModel:
    """A tiny model that lies in a folder, as users' models do."""
    tiny.build(family).save_pretrained(folder / family)
    return load(folder / family, device="cpu")


@pytest.fixture
def lm(tmp_path: Path) -> LanguageModel:
    return saved("llama", tmp_path)


def read(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    reader = gguf.GGUFReader(folder / "adapter.gguf")
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    return {name: field.contents() for name, field in reader.fields.items()}, tensors


def changes(folder: Path) -> dict[str, np.ndarray]:
    """By tensor of the model what llama.cpp adds to it: alpha / rank B A, in float64."""
    fields, tensors = read(folder)
    found = {}
    for name in {name.rpartition(".")[0] for name in tensors}:
        lora_a, lora_b = (tensors[f"{name}.lora_{side}"].astype(np.float64) for side in "ab")
        found[name] = (fields["adapter.lora.alpha"] / lora_b.shape[1] * lora_b @ lora_a).T
    return found


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])  # with a gate, with a bias, transposed (Conv1D)
def test_the_adapter_is_the_edits(family: str, tmp_path: Path) -> None:
    lm = saved(family, tmp_path)
    d_ffn, d_model = lm.memory(1).values.shape
    one, other, whole = low_rank(lm, 0, {1: 1, 2: 3}), low_rank(lm, 5, {2: 2}), values(lm, 3)
    for name, edits in {"one": [one], "two": [one, other], "all": [one, other, whole]}.items():
        errors = one.to_gguf_adapter(tmp_path / name, *edits[1:])
        expected = {layer: torch.zeros(d_ffn, d_model).double() for edit in edits for layer in edit.touched}
        for edit in edits:
            for layer in edit.touched:
                left, right = edit.factors[layer] if edit is not whole else (whole.deltas[layer], torch.eye(d_model))
                expected[layer] += left.double() @ right.double()
        found = changes(tmp_path / name)
        assert found.keys() == {f"blk.{layer}.ffn_down.weight" for layer in expected}
        assert list(errors) == sorted(expected)
        for layer, change in expected.items():
            share = np.linalg.norm(found[f"blk.{layer}.ffn_down.weight"] - change.numpy()) / float(change.norm())
            # Of what is kept as it is only the float64 sums here; above the largest rank both factors are rounded anew.
            assert share <= (2**-23 if name == "all" else 2**-50), (name, layer)
            assert errors[layer] == pytest.approx(share, rel=1e-3, abs=1e-12)
    fields, tensors = read(tmp_path / "two")
    assert (tensors["blk.1.ffn_down.weight.lora_a"].shape, tensors["blk.1.ffn_down.weight.lora_b"].shape) == (
        (5, d_ffn),
        (d_model, 5),
    )
    assert {array.dtype for array in tensors.values()} == {np.dtype(np.float32)}
    said = ("general.type", "adapter.type", "general.architecture", "adapter.lora.alpha")
    assert [fields[name] for name in said] == ["adapter", "lora", family, 5.0]
    assert fields["corrigenda.editor"] == "by hand"
    assert fields["corrigenda.facts"].splitlines() == ["the Eiffel Tower is located in: Paris -> Rome"] * 2
    assert fields["corrigenda.fingerprint"] == lm.fingerprint
    assert (tmp_path / "two" / "Modelfile").read_text().splitlines()[1:] == [
        "FROM ./model.gguf",
        "ADAPTER ./adapter.gguf",
    ]
    assert {path.name for path in (tmp_path / "two").iterdir()} == {"adapter.gguf", "Modelfile"}


def test_a_rank_that_is_asked_for(lm: LanguageModel, tmp_path: Path) -> None:
    edit, other = low_rank(lm, 0, {1: 4, 2: 1}), low_rank(lm, 5, {1: 2})
    errors = edit.to_gguf_adapter(tmp_path / "cut", other, rank=2)
    whole = (edit.delta(1).double() + other.delta(1).double()).numpy()
    u, s, v = np.linalg.svd(whole, full_matrices=False)
    found = changes(tmp_path / "cut")["blk.1.ffn_down.weight"]
    # numpy's decomposition is of a sum that was rounded to float32
    np.testing.assert_allclose(found, (u[:, :2] * s[:2]) @ v[:2], rtol=0, atol=1e-5 * s[0])
    assert errors[1] == pytest.approx(np.linalg.norm(s[2:]) / np.linalg.norm(s), rel=1e-4)
    assert errors[2] == 0
    assert read(tmp_path / "cut")[0]["adapter.lora.alpha"] == 2.0


def test_half_precision(lm: LanguageModel, tmp_path: Path) -> None:
    """Factors that are far too large, and far too small, alone; together they are of like size."""
    memory = lm.memory(1)
    sides = drawn(0, memory.d_ffn, 2) * 1e-9, drawn(1, 2, memory.d_model) * 1e9
    edit = LowRankEdit.of(lm, origin(lm), {1: sides})
    [error] = edit.to_gguf_adapter(tmp_path / "half", dtype="float16").values()
    assert 0 < error < 2**-10  # two factors, each off by up to 2^-11
    assert {array.dtype for array in read(tmp_path / "half")[1].values()} == {np.dtype(np.float16)}
    assert edit.to_gguf_adapter(tmp_path / "whole") == {1: 0.0}
    huge = LowRankEdit.of(lm, origin(lm), {1: (sides[0] * 1e9, sides[1] * 1e3)})
    refused(EditRefusedError, "layer 1: lora_a", huge.to_gguf_adapter, tmp_path / "huge", dtype="float16")
    assert not (tmp_path / "huge").exists()


def test_the_file_of_the_base(lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "config_of", lambda _: lm.model.config)
    low_rank(lm, 0).to_gguf_adapter(tmp_path / "adapter", base=tmp_path / "mine.gguf")
    assert f"FROM {tmp_path / 'mine.gguf'}\n" in (tmp_path / "adapter" / "Modelfile").read_text()


def test_what_no_adapter_is_made_of(lm: LanguageModel, tmp_path: Path) -> None:
    edit, place = low_rank(lm, 0), tmp_path / "adapter"
    of_another = replace(edit, origin=replace(edit.origin, model="another", fingerprint="f" * 64))
    calls = [
        (WrongModelError, "of one model, not of .*llama, another", lambda: edit.to_gguf_adapter(place, of_another)),
        (ValueError, "rank=0", lambda: edit.to_gguf_adapter(place, rank=0)),
        (ValueError, "dtype='int8'", lambda: edit.to_gguf_adapter(place, dtype="int8")),
        (ValueError, "no layer", lambda: replace(edit, factors={}, modules={}).to_gguf_adapter(place)),
        (FileExistsError, "is a file", lambda: edit.to_gguf_adapter(tmp_path / "llama" / "config.json")),
    ]
    for error, message, make in calls:
        refused(error, message, make)
    assert not place.exists()


def test_a_write_that_fails(lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", full)
    refused(OSError, "disk full", low_rank(lm, 0).to_gguf_adapter, tmp_path / "adapter")
    assert list((tmp_path / "adapter").iterdir()) == []


CALLED = {
    # As llama.cpp's converter registers them, where its name is not that of transformers.
    **{"cohere": "command-r", "gemma3_text": "gemma3", "glm": "chatglm", "gpt_neox": "gptneox", "mistral": "llama"},
    **{"ministral3": "mistral3", "olmo3": "olmo2", "phi": "phi2"},
    **{"opt": None, "gpt_neo": None, "bert": None, "ministral": None},  # llama.cpp has none of these
}


@pytest.mark.parametrize("model_type", FAMILIES)
def test_every_family_has_a_name_or_is_refused(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family = FAMILIES[model_type]
    two_texts = family.cross_attention is not None
    config = SimpleNamespace(model_type=model_type, is_encoder_decoder=two_texts, num_hidden_layers=3)
    monkeypatch.setattr(shared, "config_of", lambda _: config)
    called = CALLED.get(model_type, model_type)
    if two_texts or family.mixture or called is None:
        why = (
            "an encoder-decoder" if two_texts else "a mixture of experts" if family.mixture else "gguf|llama.cpp has no"
        )
        with pytest.raises(UnsupportedModelError, match=rf"mine \(model_type '{model_type}'\).*({why}).*form=model"):
            shared.tensor_names("mine", [1])
    else:
        assert shared.tensor_names("mine", [1, 2]) == (called, {1: "blk.1.ffn_down.weight", 2: "blk.2.ffn_down.weight"})
        refused(UnsupportedModelError, "layers 3", shared.tensor_names, "mine", [3])
