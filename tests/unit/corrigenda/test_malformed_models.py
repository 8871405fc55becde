import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from malformed_parts import Case, Damage, changed_json, cut, one_line, refused, written
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from corrigenda import DamagedModelError, LanguageModel, ModelNotFoundError, UnsupportedModelError, load
from corrigenda.models import embedded

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    tiny.build("llama").save_pretrained(folder)
    return folder


# -- folders


def edited_config(**values: Any) -> Damage:
    return changed_json("config.json", lambda config: config.update(values))


def weights_changed(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def changed(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})

    return changed


def poison(value: float) -> Damage:
    return weights_changed(lambda w: w["model.layers.1.mlp.down_proj.weight"].view(-1)[7:8].fill_(value))


def larger_tokenizer(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary |= {f"more{i}": len(vocabulary) + i for i in range(3)}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


UNREADABLE: Any = (DamagedModelError, ModelNotFoundError)
FOLDERS: dict[str, Case[Path]] = {
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
    "weights-minus-inf": (poison(-INF), DamagedModelError, r"model\.layers\.1\.mlp\.down_proj\.weight"),
    "weights-of-another-width": (edited_config(hidden_size=64), DamagedModelError, "weights of the model"),
    "weights-of-another-ffn": (edited_config(intermediate_size=40), DamagedModelError, "weights of the model"),
    "more-layers-than-weights": (edited_config(num_hidden_layers=6), ValueError, r"lacks \d+ of the weights"),
    "smaller-vocabulary": (edited_config(vocab_size=40), DamagedModelError, "weights of the model"),
    "tokenizer-broken": (written("tokenizer.json", "{"), DamagedModelError, r"tokenizer of the model"),
    "tokenizer-empty": (written("tokenizer.json", ""), DamagedModelError, r"tokenizer of the model"),
    "tokenizer-list": (written("tokenizer.json", "[]"), DamagedModelError, r"tokenizer of the model"),
    "tokenizer-config-broken": (written("tokenizer_config.json", "{"), UNREADABLE, "model"),
    "tokenizer-larger": (larger_tokenizer, DamagedModelError, r"tokens up to number \d+, and the model embeds 81"),
    "config-broken": (written("config.json", "{"), UNREADABLE, "model"),
    "config-empty": (written("config.json", ""), UNREADABLE, "model"),
    "config-list": (written("config.json", "[]"), DamagedModelError, r"config\.json"),
    "config-no-type": (written("config.json", "{}"), DamagedModelError, r"no model_type in its config\.json"),
    "config-unknown-type": (edited_config(model_type="llamma"), DamagedModelError, "model_type 'llamma'"),
    "config-text-for-width": (edited_config(hidden_size="wide"), DamagedModelError, "of the model"),
    "config-no-layers": (edited_config(num_hidden_layers=0), UnsupportedModelError, "is not a list of blocks"),
    "quantised": (
        edited_config(quantization_config={"quant_method": "aqlm"}),
        DamagedModelError,
        r"the weights of the model.*quantised.*aqlm.*unquantised",
    ),
    "adapter-of-nothing": (
        written("adapter_config.json", '{"peft_type": "LORA"}'),
        DamagedModelError,
        "does not say which model it is for",
    ),
    "adapter-without-weights": (
        written("adapter_config.json", '{"base_model_name_or_path": "x"}'),
        DamagedModelError,
        r"has no adapter_model\.safetensors",
    ),
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


# -- models in hand


def mamba() -> Any:
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "vocab_size": tiny.VOCABULARY}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("mamba", **sizes))


def granite() -> Any:
    sizes = tiny._GROUPED | {"num_local_experts": 4, "num_experts_per_tok": 2}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model("granitemoe", **sizes))


def roberta() -> Any:
    """Its "attention" ends in the addition and its norm: restoring that would restore the whole stream."""
    return AutoModelForMaskedLM.from_config(AutoConfig.for_model("roberta", **tiny._SIZES))


def plbart() -> Any:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "d_model": 16}
    sizes |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 80, "pad_token_id": 0}
    return AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("plbart", **sizes))


IN_HAND: list[tuple[Callable[[], Any], str]] = [
    (mamba, r"mamba.*one attention module.*Known families: bart, bert, .*Family"),
    (granite, r"granitemoe.*mixture.* of experts"),
    (roberta, r"what attention adds \('attention' has 'output.LayerNorm' inside\)"),
    (plbart, "plbart"),
]


@pytest.mark.parametrize(("make", "message"), IN_HAND)
def test_a_model_whose_parts_are_not_known(make: Callable[[], Any], message: str) -> None:
    refused(UnsupportedModelError, message, LanguageModel, make(), tiny.tokenizer())


# -- names and options of `load`


LOADS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "cuda-without-cuda": ({"device": "cuda"}, ValueError, "torch finds 0 CUDA devices.*device=cpu"),
    "cuda-7": ({"device": "cuda:7"}, ValueError, "torch finds 0 CUDA devices"),
    "gpu": ({"device": "gpu"}, ValueError, "unknown device 'gpu'; use cpu, cuda"),
    "no-device": ({"device": ""}, ValueError, "unknown device ''"),
    "device-number": ({"device": 1.5}, ValueError, "unknown device 1.5"),
    "dtype-int": ({"dtype": torch.int64}, ValueError, r"unknown dtype torch\.int64; use float32"),
    "dtype-int8": ({"dtype": "int8"}, ValueError, "unknown dtype 'int8'; use float32, bfloat16"),
    "dtype-name": ({"dtype": "float31"}, ValueError, "unknown dtype 'float31'"),
    "dtype-function": ({"dtype": "relu"}, ValueError, "unknown dtype 'relu'"),
    "dtype-none": ({"dtype": None}, ValueError, "unknown dtype None"),
    "both-devices": ({"device": "cpu", "device_map": "auto"}, ValueError, "either device or device_map"),
    "parts-of-a-cpu": (
        {"device_map": {"model": "cpu", "lm_head": "cpu:1"}},
        ValueError,
        "device_map: 'lm_head' is put on 'cpu:1', and accelerate knows one CPU only",
    ),
    "name-none": ({"name": None}, TypeError, "a model is named by a text or a path, not by NoneType"),
    "name-number": ({"name": 7}, TypeError, "not by int 7"),
    "name-empty": ({"name": ""}, TypeError, "a model is named by a text"),
    "no-such-folder": ({"name": "/no/such/folder"}, ModelNotFoundError, "no model folder /no/such/folder"),
    "no-such-gguf": ({"name": "/no/such.gguf"}, ModelNotFoundError, r"no GGUF file /no/such\.gguf"),
    "no-such-relative-folder": ({"name": "./nothing"}, ModelNotFoundError, "no model folder nothing"),
    "no-such-deep-folder": ({"name": "some/deep/path"}, ModelNotFoundError, "no model folder some/deep/path"),
    "revision": ({"revision": "main"}, ValueError, "revision='main' names a version of a hub repository"),
    "revision-of-a-wheel": ({"name": "smollm2-135m", "revision": "x"}, ValueError, "revision='x' names a version"),
}


@pytest.mark.parametrize("name", LOADS)
def test_a_wrong_call_of_load(name: str, saved_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(embedded, "fetch", lambda name: pytest.fail(f"{name} was fetched"))
    options, error, message = LOADS[name]
    refused(error, message, load, **{"name": saved_model, **options})


NO_GGUF: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is no GGUF file"),
    "cut": (b"GG", "is no GGUF file"),
    "text": (b"hello world", "is no GGUF file"),
    "of its name": (b"GGUF\x03\x00\x00\x00" + b"\x00" * 6, r"model\.gguf is cut short or damaged"),
}


@pytest.mark.parametrize("case", NO_GGUF)
def test_a_file_that_is_no_gguf_file(case: str, tmp_path: Path) -> None:
    content, message = NO_GGUF[case]
    (tmp_path / "model.gguf").write_bytes(content)
    refused(DamagedModelError, message, load, tmp_path / "model.gguf")


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    refused(ModelNotFoundError, "is a file and no model", load, tmp_path / "notes.txt")


def test_good_weights_whose_sum_overflows(tmp_path: Path) -> None:
    big = tiny.build("llama")
    big.memory(0).weight.data.fill_(6e4)
    big.save_pretrained(tmp_path)
    assert float(load(tmp_path, dtype="float16", device="cpu").memory(0).values[0, 0]) == 6e4
