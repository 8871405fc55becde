"""Malformed models, edits and calls, each with the one line that it gets; what is too long, too large or no number."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from corrigenda import (
    CodebookEdit,
    CoefficientEdit,
    ContextEdit,
    ContextLengthError,
    DamagedModelError,
    Edit,
    EditRefusedError,
    Fact,
    LanguageModel,
    LowRankEdit,
    ModelNotFoundError,
    Origin,
    SideMemoryEdit,
    UnsupportedModelError,
    ValueEdit,
    WrongModelError,
    load,
)
from corrigenda.forward.generation import decode
from corrigenda.prompts import MOST_TARGET_TOKENS, encode_target
from corrigenda.system.files import write_tensors
from editing import FineTune, Grace
from editing.editor import MOST_EDIT_TOKENS
from editing.locate_then_edit.prompts import build_prompts
from eval import evaluate
from eval.scoring.fitting import too_long
from eval.scoring.held_out import read_held_out
from eval.scoring.probabilities import continues_as, score
from eval.settings import EvalSettings
from locate import causal_trace

NAN, INF = float("nan"), float("inf")
LONG = "tower " * 4999 + "tower"
FACT = Fact(subject="tower", prompt="the {} is in", target_new="Rome", target_true="Paris")
FAST = EvalSettings(generate=False, perplexity_windows=0)


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return tiny.build("llama")


@pytest.fixture(scope="module")
def saved_model(lm: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    lm.save_pretrained(folder)
    return folder


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    """The message, which has to be one line that nothing of a library's own chain follows."""
    said = str(error.value)
    assert "\n" not in said
    assert said
    return said


# -- folders with a model


def edited_config(**values: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | values))

    return change


def weights_changed(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def changed(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    return changed


def poison(value: float) -> Callable[[Path], object]:
    return weights_changed(lambda w: w["model.layers.1.mlp.down_proj.weight"].view(-1)[7:8].fill_(value))


def cut(name: str, keep: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])


def written(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def larger_tokenizer(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary |= {f"more{i}": len(vocabulary) + i for i in range(3)}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


UNREADABLE = (DamagedModelError, ModelNotFoundError)
FOLDERS: dict[str, tuple[Callable[[Path], object], type[Exception] | tuple[type[Exception], ...], str]] = {
    "weights-cut": (cut("model.safetensors", 5000), DamagedModelError, r"weights of the model .* cannot be read"),
    "weights-header-cut": (cut("model.safetensors", 4), DamagedModelError, r"weights of the model .* cannot be read"),
    "weights-empty": (cut("model.safetensors", 0), DamagedModelError, r"weights of the model .* cannot be read"),
    "weights-text": (written("model.safetensors", "hello" * 99), DamagedModelError, "weights of the model"),
    "weights-missing": (lambda f: (f / "model.safetensors").unlink(), ModelNotFoundError, "could not be loaded"),
    "weights-lacking": (
        weights_changed(lambda w: w.pop("model.layers.1.mlp.down_proj.weight")),
        ValueError,
        r"lacks 1 of the weights.*model\.layers\.1\.mlp\.down_proj\.weight",
    ),
    "weights-nan": (
        poison(NAN),
        DamagedModelError,
        r"1 of the 1536 numbers of model\.layers\.1\.mlp\.down_proj\.weight",
    ),
    "weights-inf": (poison(INF), DamagedModelError, r"model\.layers\.1\.mlp\.down_proj\.weight are NaN or infinite"),
    "weights-minus-inf": (poison(-INF), DamagedModelError, r"model\.layers\.1\.mlp\.down_proj\.weight"),
    "weights-of-another-width": (edited_config(hidden_size=64), DamagedModelError, "weights of the model"),
    "weights-of-another-ffn": (edited_config(intermediate_size=40), DamagedModelError, "weights of the model"),
    "more-layers-than-weights": (edited_config(num_hidden_layers=6), ValueError, r"lacks \d+ of the weights"),
    "smaller-vocabulary": (edited_config(vocab_size=40), DamagedModelError, "weights of the model"),
    "tokenizer-broken": (written("tokenizer.json", "{"), DamagedModelError, r"tokenizer of the model"),
    "tokenizer-empty": (written("tokenizer.json", ""), DamagedModelError, r"tokenizer of the model"),
    "tokenizer-list": (written("tokenizer.json", "[]"), DamagedModelError, r"tokenizer of the model"),
    "tokenizer-config-broken": (
        written("tokenizer_config.json", "{"),
        UNREADABLE,
        "model",
    ),
    "tokenizer-larger": (larger_tokenizer, DamagedModelError, r"tokens up to number \d+, and the model embeds 81"),
    "config-broken": (written("config.json", "{"), UNREADABLE, "model"),
    "config-empty": (written("config.json", ""), UNREADABLE, "model"),
    "config-list": (written("config.json", "[]"), DamagedModelError, r"config\.json"),
    "config-no-type": (written("config.json", "{}"), DamagedModelError, r"no model_type in its config\.json"),
    "config-unknown-type": (edited_config(model_type="llamma"), DamagedModelError, "model_type 'llamma'"),
    "config-text-for-width": (edited_config(hidden_size="wide"), DamagedModelError, "of the model"),
    "config-no-layers": (edited_config(num_hidden_layers=0), UnsupportedModelError, "is not a list of blocks"),
    "config-missing": (lambda f: (f / "config.json").unlink(), ModelNotFoundError, r"no config\.json"),
    "empty-folder": (lambda f: [path.unlink() for path in f.iterdir()], ModelNotFoundError, r"no config\.json"),
    "encoder-decoder": (
        lambda f: AutoConfig.for_model("led", d_model=16, encoder_layers=1, decoder_layers=1).save_pretrained(f),
        UnsupportedModelError,
        "encoder-decoder .*'led'",
    ),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_damaged_model(name: str, saved_model: Path, tmp_path: Path) -> None:
    damage, error, message = FOLDERS[name]
    folder = tmp_path / "model"
    shutil.copytree(saved_model, folder)
    damage(folder)
    with pytest.raises(error, match=message) as caught:
        load(folder, device="cpu")
    assert str(folder) in one_line(caught) or name == "config-no-layers"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_an_encoder_decoder_in_hand() -> None:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = AutoConfig.for_model("plbart", d_model=16, vocab_size=80, pad_token_id=0, **sizes)
    with pytest.raises(UnsupportedModelError) as caught:
        LanguageModel(AutoModelForSeq2SeqLM.from_config(config), tiny.tokenizer())
    assert "plbart" in one_line(caught)


# -- names and options of `load`


LOADS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "cuda-without-cuda": ({"device": "cuda"}, ValueError, "torch finds 0 CUDA devices.*device=cpu"),
    "cuda-7": ({"device": "cuda:7"}, ValueError, "torch finds 0 CUDA devices"),
    "gpu": ({"device": "gpu"}, ValueError, "unknown device 'gpu'; use cpu, cuda"),
    "no-device": ({"device": ""}, ValueError, "unknown device ''"),
    "device-number": ({"device": 1.5}, ValueError, "unknown device 1.5"),
    "dtype-int": ({"dtype": torch.int64}, ValueError, r"unknown dtype torch\.int64; use float32"),
    "dtype-name": ({"dtype": "float31"}, ValueError, "unknown dtype 'float31'"),
    "dtype-function": ({"dtype": "relu"}, ValueError, "unknown dtype 'relu'"),
    "dtype-none": ({"dtype": None}, ValueError, "unknown dtype None"),
    "both-devices": ({"device": "cpu", "device_map": "auto"}, ValueError, "either device or device_map"),
    "name-none": ({"name": None}, TypeError, "a model is named by a text or a path, not by NoneType"),
    "name-number": ({"name": 7}, TypeError, "not by int 7"),
    "name-empty": ({"name": ""}, TypeError, "a model is named by a text"),
    "name-list": ({"name": ["gpt2"]}, TypeError, "not by list"),
    "no-such-folder": ({"name": "/no/such/folder"}, ModelNotFoundError, "no model folder /no/such/folder"),
    "no-such-gguf": ({"name": "/no/such.gguf"}, ModelNotFoundError, r"no GGUF file /no/such\.gguf"),
    "revision": ({"revision": "main"}, ValueError, "revision='main' names a version of a hub repository"),
}


@pytest.mark.parametrize("name", LOADS)
def test_a_wrong_call_of_load(name: str, saved_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    options, error, message = LOADS[name]
    with pytest.raises(error, match=message) as caught:
        load(**{"name": saved_model, **options})
    one_line(caught)


NO_MODELS: dict[str, tuple[str, bytes, type[Exception], str]] = {
    "gguf-empty": ("model.gguf", b"", DamagedModelError, "is no GGUF file"),
    "gguf-cut": ("model.gguf", b"GG", DamagedModelError, "is no GGUF file"),
    "gguf-text": ("model.gguf", b"hello world", DamagedModelError, "is no GGUF file"),
    "gguf-zeros": ("model.gguf", b"\x00" * 64, DamagedModelError, "is no GGUF file"),
    "gguf-of-its-name": (
        "model.gguf",
        b"GGUF" + b"\x03\x00\x00\x00" + b"\x00" * 6,
        DamagedModelError,
        r"model\.gguf' cannot be read",
    ),
    "notes": ("notes.txt", b"hello", ModelNotFoundError, "is a file and no model"),
}


@pytest.mark.parametrize("case", NO_MODELS)
def test_a_file_that_is_no_model(case: str, tmp_path: Path) -> None:
    name, content, error, message = NO_MODELS[case]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=message) as caught:
        load(tmp_path / name)
    one_line(caught)


def test_good_weights_whose_sum_overflows(lm: LanguageModel, tmp_path: Path) -> None:
    """The check sums: a sum that overflows says nothing yet."""
    big = tiny.build("llama")
    big.memory(0).weight.data.fill_(6e4)
    big.save_pretrained(tmp_path)
    assert float(load(tmp_path, dtype="float16", device="cpu").memory(0).values[0, 0]) == 6e4


# -- edits


def origin(lm: LanguageModel) -> Origin:
    return Origin(lm.name, lm.fingerprint, "by hand", {"layer": 1}, (FACT,), ({"loss": 1.0},))


def low_rank(lm: LanguageModel, value: float = 0.1) -> LowRankEdit:
    memory = lm.memory(1)
    left = torch.full((memory.d_ffn, 1), 0.1)
    left[3] = value
    return LowRankEdit.of(lm, origin(lm), {1: (left, torch.ones(1, memory.d_model))})


def filled(lm: LanguageModel, value: float) -> torch.Tensor:
    return torch.full(lm.memory(1).values.shape, value)


def codebook(lm: LanguageModel, **parts: torch.Tensor) -> CodebookEdit:
    memory = lm.memory(1)
    whole = {"keys": torch.ones(2, memory.d_ffn), "values": torch.ones(2, memory.d_model), "radii": torch.ones(2)}
    return CodebookEdit.of(memory, origin(lm), **(whole | parts))


def side(lm: LanguageModel, deltas: torch.Tensor, epsilon: float = 1.0) -> SideMemoryEdit:
    return SideMemoryEdit.of(lm.memory(1), origin(lm), deltas, torch.tensor([epsilon]))


EDITS: dict[str, tuple[Callable[[LanguageModel], object], type[Exception], str]] = {
    "low-rank-nan": (lambda lm: low_rank(lm, NAN), EditRefusedError, "low_rank edit is not finite.*'layer 1: A'"),
    "low-rank-inf": (lambda lm: low_rank(lm, INF), EditRefusedError, "'layer 1: A'"),
    "low-rank-minus-inf": (lambda lm: low_rank(lm, -INF), EditRefusedError, "1 of the 48 numbers of 'layer 1: A'"),
    "low-rank-product": (
        lambda lm: LowRankEdit.of(lm, origin(lm), {1: (torch.full((48, 1), 1e15), torch.full((1, 32), 1e15))}),
        EditRefusedError,
        "'layer 1: A B'",
    ),
    "values-nan": (lambda lm: ValueEdit.of(lm, origin(lm), {1: filled(lm, NAN)}), EditRefusedError, "'layer 1: D'"),
    "values-inf": (lambda lm: ValueEdit.of(lm, origin(lm), {-3: filled(lm, INF)}), EditRefusedError, "'layer 1: D'"),
    "codebook-keys": (lambda lm: codebook(lm, keys=torch.full((2, 48), NAN)), EditRefusedError, "96 .* 'keys'"),
    "codebook-values": (lambda lm: codebook(lm, values=torch.full((2, 32), INF)), EditRefusedError, "'values'"),
    "codebook-radii": (lambda lm: codebook(lm, radii=torch.tensor([1.0, INF])), EditRefusedError, "'radii'"),
    "codebook-negative": (lambda lm: codebook(lm, radii=torch.tensor([1.0, -1.0])), ValueError, "none negative"),
    "side-nan": (lambda lm: side(lm, filled(lm, NAN)[None]), EditRefusedError, "side_memory edit.*'deltas'"),
    "side-threshold-nan": (lambda lm: side(lm, filled(lm, 1.0)[None], NAN), ValueError, "not negative"),
    "side-threshold-negative": (lambda lm: side(lm, filled(lm, 1.0)[None], -1.0), ValueError, "not negative"),
    "coefficient-nan": (
        lambda lm: CoefficientEdit.of(lm, origin(lm), {(1, 2): NAN}),
        EditRefusedError,
        "'layer 1: factors'",
    ),
    "coefficient-no-neuron": (lambda lm: CoefficientEdit.of(lm, origin(lm), {(1, 99): 2.0}), IndexError, "neuron 99"),
    "coefficient-text": (
        lambda lm: CoefficientEdit.of(lm, origin(lm), {(1, "2"): 2.0}),
        TypeError,
        "a neuron must be a whole number, not str '2'",
    ),
    "values-no-layer": (lambda lm: ValueEdit.of(lm, origin(lm), {9: filled(lm, 1.0)}), IndexError, "layer 9"),
    "values-two-names": (
        lambda lm: ValueEdit.of(lm, origin(lm), {1: filled(lm, 1.0), -3: filled(lm, 1.0)}),
        ValueError,
        "named twice",
    ),
    "finetune-lr": (
        lambda lm: FineTune(layer=1, lr=1e30, steps=3).edit(lm, [FACT]),
        EditRefusedError,
        "not finite: the norm of 'layer 1: D' is infinite",
    ),
    "apply-text": (lambda lm: low_rank(lm).apply("model"), TypeError, "a LanguageModel .*, not to str 'model'"),  # type: ignore[arg-type]
    "apply-none": (lambda lm: low_rank(lm).apply(None), TypeError, "not to NoneType"),  # type: ignore[arg-type]
    "apply-transformers": (lambda lm: low_rank(lm).apply(lm.model), TypeError, "not to LlamaForCausalLM"),  # type: ignore[arg-type]
    "revert-text": (lambda lm: low_rank(lm).revert("model"), TypeError, "not to str"),  # type: ignore[arg-type]
    "revert-not-applied": (lambda lm: low_rank(lm).revert(lm), ValueError, "not applied to this model"),
    "context-to-peft": (
        lambda lm: ContextEdit(origin(lm), "text").to_peft("/tmp/never"),
        TypeError,
        "context edit cannot be written as a PEFT adapter",
    ),
    "load-number": (lambda lm: Edit.load(3), TypeError, "loaded from a folder, not from int '3'"),  # type: ignore[arg-type]
    "load-nowhere": (lambda lm: Edit.load("/no/such/edit"), FileNotFoundError, "/no/such/edit holds no edit"),
    "memory-text": (lambda lm: lm.memory("3"), TypeError, "a layer must be a whole number, not str '3'"),  # type: ignore[arg-type]
    "memory-float": (lambda lm: lm.memory(1.0), TypeError, "not float 1.0"),  # type: ignore[arg-type]
    "memory-true": (lambda lm: lm.memory(True), TypeError, "not bool True"),
    "memory-none": (lambda lm: lm.memory(None), TypeError, "not NoneType"),  # type: ignore[arg-type]
    "memory-too-high": (lambda lm: lm.memory(4), IndexError, "layer 4: the model has 4 layers, 0 to 3"),
    "memory-too-low": (lambda lm: lm.memory(-5), IndexError, "layer -5"),
}


def test_an_edit_twice(lm: LanguageModel) -> None:
    edit = low_rank(lm)
    edit.apply(lm)
    with pytest.raises(ValueError, match="applied already"):
        edit.apply(lm)
    edit.revert(lm)
    with pytest.raises(ValueError, match="not applied to this model"):
        edit.revert(lm)


def described(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def changed(folder: Path) -> None:
        value = json.loads((folder / "edit.json").read_text())
        change(value)
        (folder / "edit.json").write_text(json.dumps(value))

    return changed


def rehashed(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Other tensors, with the hashes that fit them."""
    import hashlib

    from corrigenda.edits.edit import _digest

    write_tensors(folder / "edit.safetensors", tensors)
    value = json.loads((folder / "edit.json").read_text())
    value["tensors_sha256"] = hashlib.sha256((folder / "edit.safetensors").read_bytes()).hexdigest()
    value["description_sha256"] = _digest(value)
    (folder / "edit.json").write_text(json.dumps(value))


def with_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("no folder")


CHANGED = r"edit\.json is damaged: it was changed since the edit was saved"
FILES: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "another-layer": (
        described(lambda v: v["settings"].update(modules={"1": "model.layers.2.mlp.down_proj"})),
        ValueError,
        CHANGED,
    ),
    "another-orientation": (described(lambda v: v["settings"].update(transposed=True)), ValueError, CHANGED),
    "another-editor": (described(lambda v: v["origin"].update(editor="memit")), ValueError, CHANGED),
    "another-model": (described(lambda v: v["origin"].update(model="gpt2")), ValueError, CHANGED),
    "another-fingerprint": (described(lambda v: v["origin"].update(fingerprint="0" * 32)), ValueError, CHANGED),
    "other-settings": (described(lambda v: v["origin"]["settings"].update(layer=2)), ValueError, CHANGED),
    "another-target": (
        described(lambda v: v["origin"]["facts"][0].update(target_new="Berlin")),
        ValueError,
        CHANGED,
    ),
    "another-report": (described(lambda v: v["origin"]["report"][0].update(loss=0.0)), ValueError, CHANGED),
    "one-key-more": (described(lambda v: v.update(more=1)), ValueError, CHANGED),
    "another-digest": (described(lambda v: v.update(description_sha256="0")), ValueError, CHANGED),
    "a-number-for-a-digest": (described(lambda v: v.update(description_sha256=1)), ValueError, CHANGED),
    "nan-tensors": (
        lambda f: rehashed(f, {"1.A": torch.full((48, 1), NAN), "1.B": torch.ones(1, 32)}),
        ValueError,
        r"edit\.safetensors cannot be applied.*'layer 1: A'",
    ),
    "inf-tensors": (
        lambda f: rehashed(f, {"1.A": torch.ones(48, 1), "1.B": torch.full((1, 32), INF)}),
        ValueError,
        r"edit\.safetensors cannot be applied.*'layer 1: B'",
    ),
    "tensors-that-do-not-multiply": (
        lambda f: rehashed(f, {"1.A": torch.ones(48, 2), "1.B": torch.ones(1, 32)}),
        ValueError,
        "damaged.*do not multiply",
    ),
    "no-such-tensor": (lambda f: rehashed(f, {"2.A": torch.ones(2, 2)}), ValueError, r"damaged.*1\.A"),
    "deep-json": (written("edit.json", "[" * 100_000), ValueError, r"edit\.json is damaged"),
    "empty-json": (written("edit.json", ""), ValueError, r"edit\.json is damaged"),
    "null-json": (written("edit.json", "null"), ValueError, r"edit\.json is damaged"),
    "cut-tensors": (cut("edit.safetensors", 20), ValueError, r"edit\.safetensors is damaged"),
    "a-file": (with_a_file, NotADirectoryError, "is a file; an edit is a folder"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_changed_edit(name: str, lm: LanguageModel, tmp_path: Path) -> None:
    damage, error, message = FILES[name]
    folder = tmp_path / "edit"
    low_rank(lm).save(folder)
    damage(folder)
    with pytest.raises(error, match=message) as caught:
        Edit.load(folder)
    assert str(folder) in one_line(caught)


def test_an_edit_saved_before_descriptions_had_a_digest(lm: LanguageModel, tmp_path: Path) -> None:
    low_rank(lm).save(tmp_path)
    described(lambda v: v.pop("description_sha256"))(tmp_path)
    assert Edit.load(tmp_path).origin == low_rank(lm).origin


@pytest.mark.parametrize("what", ["save", "to_peft", "save below"])
def test_writing_onto_a_file(what: str, lm: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("mine")
    edit, place = low_rank(lm), tmp_path / "here"
    with pytest.raises(FileExistsError, match=r"here is a file, and .* is written as a folder") as caught:
        edit.to_peft(place) if what == "to_peft" else edit.save(place / "below" if what == "save below" else place)
    one_line(caught)
    assert (tmp_path / "here").read_text() == "mine"


# -- weights changed by hand


@pytest.mark.parametrize("how", ["data", "no_grad", "replaced", "one bit"])
@pytest.mark.parametrize("kind", ["low_rank", "codebook", "coefficient"])
def test_values_changed_by_hand(how: str, kind: str) -> None:
    lm = tiny.build("llama")
    edit = {
        "low_rank": low_rank,
        "codebook": codebook,
        "coefficient": lambda lm: CoefficientEdit.of(lm, origin(lm), {(1, 2): 0.0}),
    }[kind](lm)
    module = lm.architecture.values(1)
    if how == "data":
        module.weight.data.mul_(1.5)
    elif how == "no_grad":
        with torch.no_grad():
            module.weight[0, 0] += 1
    elif how == "replaced":
        module.weight = torch.nn.Parameter(torch.zeros_like(module.weight), requires_grad=False)
    else:
        module.weight.data[0, 0] = torch.nextafter(module.weight.data[0, 0], torch.tensor(9.0))
    by_hand = lm.memory(1).values.clone()
    with pytest.raises(WrongModelError, match=r"layer 1 of tiny-llama were changed by hand.*strict=False") as caught:
        edit.apply(lm)
    one_line(caught)
    with edit.applied(lm, strict=False):
        pass
    assert torch.equal(lm.memory(1).values, by_hand)


def test_values_changed_by_hand_under_an_edit_or_elsewhere() -> None:
    lm = tiny.build("gpt2")
    first, second = low_rank_of_gpt2(lm), low_rank_of_gpt2(lm)
    lm.memory(3).weight.data.mul_(2)  # another layer: not looked at
    with first.applied(lm):
        with second.applied(lm):
            pass
        kept = lm.memory(1).weight.data.clone()
        lm.memory(1).weight.data.mul_(2)
        with pytest.raises(WrongModelError, match="layer 1 of tiny-gpt2 were changed by hand"):
            second.apply(lm)
        lm.memory(1).weight.data.copy_(kept)
        second.apply(lm)
        second.revert(lm)
        lm.memory(1).weight.data.mul_(2)
        with pytest.warns(UserWarning, match=r"layer 1 of tiny-gpt2 were changed by hand .* is lost now"):
            second.apply(lm, strict=False)
        second.revert(lm)


def low_rank_of_gpt2(lm: LanguageModel) -> LowRankEdit:
    memory = lm.memory(1)
    return LowRankEdit.of(lm, origin(lm), {1: (torch.ones(memory.d_ffn, 1), torch.ones(1, memory.d_model))})


# -- too long


def fact(**changes: Any) -> Fact:
    return replace(FACT, id="f", **changes)


def test_five_thousand_words(lm: LanguageModel) -> None:
    """Said at once, by every editor that starts from the prompts; nothing is allocated."""
    for long in (fact(subject=LONG), fact(target_new=LONG), fact(prompt=f"{LONG} of {{}}")):
        for ask in (
            FineTune(layer=1).edit,
            Grace(layer=1).edit,
            lambda lm, facts: build_prompts(lm, [FACT, *facts], [""], "{} is a", "subject"),
        ):
            with pytest.raises(EditRefusedError, match=r"fact 'f': .*has 50\d\d tokens.*at most (64|256)") as caught:
                ask(lm, [long])
            assert len(one_line(caught)) < 300


LENGTHS: dict[str, tuple[Callable[[LanguageModel], object], str]] = {
    "score-prompt": (lambda lm: score(lm, [("the city", ["Rome"]), (LONG, ["Rome"])]), "5000 tokens.*at most 64"),
    "score-target": (lambda lm: score(lm, [("the city", [LONG])]), "5000 tokens, and a target has at most 256"),
    "score-both": (
        lambda lm: score(lm, [("tower " * 50, ["tower " * 16])]),
        "with the target .* has 65 tokens, and tiny-llama reads at most 64",
    ),
    "target": (lambda lm: encode_target(lm.tokenizer, "the", "tower " * (MOST_TARGET_TOKENS + 1)), "257 tokens"),
    "generate": (lambda lm: lm.generate(LONG), "5000 tokens. with up to 50 new tokens has 5049"),
    "generate-one-too-many": (lambda lm: lm.generate("tower " * 60, 6), "has 65 tokens"),
    "generate-too-many": (lambda lm: lm.generate("the tower", 10**6), "with up to 1000000 new tokens"),
    "generate-one-of-two": (lambda lm: lm.generate(["the tower", LONG], 5), "5004 tokens"),
    "decode": (lambda lm: decode(lm, [[5] * 65], 0), "65 tokens"),
    "batch": (lambda lm: lm.batch([[5, 6], [5] * 65]), "65 tokens, and tiny-llama reads at most 64; shorten it"),
    "continues": (lambda lm: continues_as(lm, [("tower " * 60, [5] * 5)]), "65 tokens"),
    "trace": (lambda lm: causal_trace(lm, fact(subject=LONG)), "5003 tokens"),
    "trace-answer": (lambda lm: causal_trace(lm, FACT, LONG), "5000 tokens"),
}


def test_what_just_fits(lm: LanguageModel) -> None:
    assert len(lm.generate("tower " * 60, 5)) > 0
    assert score(lm, [("tower " * 50, ["tower " * 15])])[0].targets[0].log_probs
    assert len(lm.batch([[5] * 64])) == 1
    # in windows that the model reads
    assert read_held_out(lm, EvalSettings(perplexity_windows=3, perplexity_window=300)).log_perplexity > 0


def test_a_prompt_longer_than_an_edit_is_computed_on(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that reads much is no reason to run an edit for an hour."""
    monkeypatch.setattr(lm.model.config, "max_position_embeddings", 10**6)
    with pytest.raises(EditRefusedError, match=f"5005 tokens, and an edit is computed on at most {MOST_EDIT_TOKENS}"):
        Grace(layer=1).edit(lm, [fact(subject=LONG)])
    monkeypatch.setattr("editing.locate_then_edit.prompts.MOST_LOGITS", 300)
    with pytest.raises(EditRefusedError, match=r"2 facts .* 4 tokens in all contexts.*smaller batch_size"):
        build_prompts(lm, [FACT, fact()], [""], "{} is a", "subject")


def test_long_targets_are_scored_in_pieces(lm: LanguageModel) -> None:
    """So that no forward holds more logits than it may; with the figures of one piece."""
    queries = [("the tower is in", ["Rome", "the city of Rome", "tower " * 30]), ("Ben plays", ["the piano . " * 7])]
    whole, pieces = score(lm, queries), score(lm, queries, max_tokens=31)
    for one, other in zip(whole, pieces, strict=True):
        for left, right in zip(one.targets, other.targets, strict=True):
            assert left.log_probs == pytest.approx(right.log_probs, abs=1e-5)
            assert len(left.log_probs) == len(right.log_probs)


FACTS_TOO_LONG = {
    "paraphrase": ("paraphrases", {"paraphrases": ("the tower", LONG)}),
    "neighbour": ("neighbourhood", {"neighbourhood": (LONG,)}),
    "subject": ("prompt", {"subject": LONG}),
    "target": ("prompt", {"target_true": LONG}),
    "statement-before-neighbour": ("neighbourhood_plus", {"neighbourhood": ("the " + "tower " * 57 + "is",)}),
}


@pytest.mark.parametrize("name", FACTS_TOO_LONG)
def test_a_fact_that_is_too_long_fails_alone(name: str, lm: LanguageModel) -> None:
    kind, changes = FACTS_TOO_LONG[name]
    long = fact(**changes)
    reason = too_long(lm, long, FAST)
    assert reason.startswith(f"too long: fact 'f', {kind}: ")
    assert "\n" not in reason
    found = evaluate(lm, [long, FACT], FAST)
    assert [case.error for case in found.cases] == [reason, ""]
    assert found.cases[0].after.values["efficacy_success"] == 0.0
    assert found.cases[1].after.values == evaluate(lm, [FACT], FAST).cases[0].after.values
    assert found.metrics["efficacy_success"]["n"] == 2


def test_generated_tokens_count(lm: LanguageModel) -> None:
    long = fact(paraphrases=("tower " * 39 + "is",))
    assert too_long(lm, long, FAST) == ""
    assert "paraphrases: a prompt with up to 50 new tokens has 89 tokens" in too_long(lm, long, EvalSettings())


# -- prompts


PROMPTS: dict[str, tuple[Callable[[LanguageModel], object], type[Exception], str]] = {
    "number": (lambda lm: lm.generate(3), TypeError, "prompts must be a text or a list of texts, not int 3"),  # type: ignore[call-overload]
    "none": (lambda lm: lm.generate(None), TypeError, "not NoneType"),  # type: ignore[call-overload]
    "dict": (lambda lm: lm.generate({"a": 1}), TypeError, "not dict"),  # type: ignore[call-overload]
    "bytes": (lambda lm: lm.generate(b"the"), TypeError, "not bytes"),  # type: ignore[call-overload]
    "list-of-numbers": (lambda lm: lm.generate([3]), TypeError, "a prompt must be a text, not int"),  # type: ignore[list-item]
    "list-of-none": (lambda lm: lm.generate(["the", None]), TypeError, "a prompt must be a text"),  # type: ignore[list-item]
    "empty-list": (lambda lm: lm.generate([]), ValueError, "at least one prompt"),
    "empty": (lambda lm: lm.generate(""), ValueError, "has no token"),
    "target-empty": (lambda lm: score(lm, [("the", [" "])]), ValueError, "empty target for the prompt 'the'"),
    "target-number": (lambda lm: score(lm, [("the", [3])]), TypeError, "a target must be a text, not int"),  # type: ignore[list-item]
    "empty-batch": (lambda lm: lm.batch([]), ValueError, "at least one sequence"),
    "empty-row": (lambda lm: lm.batch([[5], []]), ValueError, "every sequence at least one token"),
    "no-embedding": (lambda lm: lm.batch([[5, 99]]), ValueError, "token 99 .* has no embedding in tiny-llama"),
    "window-zero": (lambda lm: causal_trace(lm, FACT, "top", site="ffn", window=0), ValueError, "window"),
    "window-negative": (lambda lm: causal_trace(lm, FACT, "top", site="ffn", window=-2), ValueError, "window"),
}


TOO_LONG = {name: (ask, ContextLengthError, message) for name, (ask, message) in LENGTHS.items()}
CALLS = {**EDITS, **{f"too-long-{name}": case for name, case in TOO_LONG.items()}, **PROMPTS}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_cannot_be(name: str, lm: LanguageModel) -> None:
    """It is answered in a short line, and leaves the model as it was."""
    call, error, message = CALLS[name]
    before = lm.memory(1).values.clone()
    with pytest.raises(error, match=message) as caught:
        call(lm)
    assert len(one_line(caught)) < 400
    assert list(lm.edits) == []
    assert torch.equal(lm.memory(1).values, before)
    if isinstance(caught.value, ContextLengthError):
        assert caught.value.n_tokens > caught.value.limit > 0
