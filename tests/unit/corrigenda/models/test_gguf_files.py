import logging
import math
import os
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny
import torch
from gguf_parts import write, write_gguf
from malformed_parts import refused
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    modeling_gguf_pytorch_utils,
)

from corrigenda import LanguageModel, load
from corrigenda.errors import DamagedModelError, UnsupportedModelError
from corrigenda.models import gguf_files, packed
from corrigenda.models.gguf_reader import LeanReader
from corrigenda.models.gguf_rows import complete_config, rows_of


class Nemotron(modeling_gguf_pytorch_utils.LlamaTensorProcessor):
    """Takes 1 off each norm, as those of some architectures do."""

    def process(self, weights: Any, name: str, **more: Any) -> Any:
        return super().process(weights - 1 if "norm" in name else weights, name, **more)


@pytest.fixture(scope="module")
def llama() -> LanguageModel:
    return tiny.build("llama")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_gguf_file_is_the_model_that_was_written(llama: LanguageModel, tmp_path: Path) -> None:
    lm = load(write_gguf(tmp_path / "tiny.gguf", llama))
    assert lm.fingerprint == llama.fingerprint
    assert lm.name == str(tmp_path / "tiny.gguf")
    assert lm.tokens("th") == [6]
    lm.save_pretrained(tmp_path / "saved")  # nothing says any more that it was a GGUF file
    assert load(tmp_path / "saved").fingerprint == llama.fingerprint


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F32"])
def test_weights_are_to_the_bit_those_that_transformers_reads(kind: str, llama: LanguageModel, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", llama, kind=kind)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32).state_dict()
    found = load(path)
    weights = found.model.state_dict()
    assert weights.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert weights[name].dtype == weight.dtype
        assert torch.equal(weights[name].view(torch.int32), weight.view(torch.int32)), name
    assert found.model.config.to_dict().items() >= {"hidden_size": tiny.WIDTH, "pad_token_id": 0}.items()
    narrow = load(path, dtype="bfloat16").model.state_dict()
    assert all(torch.equal(narrow[name], weight.bfloat16()) for name, weight in theirs.items())
    size = (gguf_files.converted(path) / packed.FILE).stat().st_size
    assert (size < 0.5 * sum(weight.nbytes for weight in theirs.values())) == (kind != "F32")


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F16", "F32"])
def test_row_by_row_the_folder_is_that_of_the_whole_model(
    kind: str, llama: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", llama, kind=kind)
    with monkeypatch.context() as patch:
        patch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("read whole"))
        gguf_files.convert(path, tmp_path / "rows")
    monkeypatch.setattr(gguf_files, "rows_of", lambda *_: None)
    gguf_files.convert(path, tmp_path / "whole")
    whole, rows = ({one.name: one.read_bytes() for one in (tmp_path / name).iterdir()} for name in ("whole", "rows"))
    assert packed.FILE in whole
    assert rows == whole


def test_what_transformers_transforms_is_read_whole(
    llama: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", llama)
    monkeypatch.setitem(modeling_gguf_pytorch_utils.TENSOR_PROCESSORS, "llama", Nemotron)
    found = load(path).model.state_dict()
    assert torch.equal(found["model.norm.weight"], llama.model.state_dict()["model.norm.weight"] - 1)


def test_a_weight_that_is_not_the_files_is_kept_as_it_is(llama: LanguageModel, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", llama, kind="Q8_0")
    lm = load(path)
    lm.model.model.layers[1].self_attn.q_proj.weight.data[3, 5] += 1e-6
    packed.pack(path, lm.model, tmp_path)
    assert all(torch.equal(weight, lm.model.state_dict()[name]) for name, weight in packed.unpack(tmp_path).items())


def test_a_file_is_converted_once_and_read_whole_once(
    llama: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = write_gguf(tmp_path / "tiny.gguf", llama, kind="Q8_0")
    folder = gguf_files.converted(path)
    assert f"kept in {folder}; to be rid of it, remove the folder" in caplog.text
    with monkeypatch.context() as patch:
        patch.setattr(gguf_files, "convert", lambda *_: pytest.fail("converted again"))
        copy = shutil.copy(path, tmp_path / "copy.gguf")
        assert gguf_files.converted(Path(copy)) == folder  # of the same content
        patch.setattr(gguf_files, "digest_of", lambda *_: pytest.fail("read again"))
        assert gguf_files.converted(path) == gguf_files.converted(Path(copy)) == folder


def test_a_file_that_changed_is_another_model(llama: LanguageModel, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", llama, kind="Q8_0")
    before, state = load(path).fingerprint, path.stat()
    content = bytearray(path.read_bytes())
    content[-40] ^= 1  # the last bytes may be padding
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert path.stat().st_size == state.st_size
    assert load(path).fingerprint != before


def test_what_was_read_otherwise_is_converted_anew(
    llama: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", llama)
    load(path)
    monkeypatch.setattr(gguf_files, "READING", gguf_files.READING + 1)
    with pytest.warns(UserWarning, match="it is of something else .*the model is prepared again"):
        load(path)


def test_a_damaged_folder_is_made_again(llama: LanguageModel, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", llama, kind="Q8_0")
    folder = gguf_files.converted(path)
    whole = (folder / packed.FILE).read_bytes()
    (folder / packed.FILE).write_bytes(whole[:-100])
    refused(DamagedModelError, r"the weights of the model .* cannot be read", load, folder)
    with pytest.warns(UserWarning, match="damaged .*the model is prepared again"):
        assert gguf_files.converted(path) == folder
    assert (folder / packed.FILE).read_bytes() == whole
    (folder / "contents.json").unlink()
    (folder / packed.FILE).unlink()
    with pytest.warns(UserWarning, match=r"it has no contents\.json; the model is prepared again"):
        load(path)
    assert {entry.name for entry in folder.parent.iterdir() if entry.is_dir()} == {"gguf", folder.name}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tiny-00002-of-00003.gguf", r"is piece 2 of 3.*llama-gguf-split --merge tiny-00001-of-00003\.gguf tiny\.gguf"),
        ("tiny.gguf", r"tiny\.gguf.* lacks 1 of the weights.*layers\.2\.mlp\.up_proj"),
    ],
)
def test_what_is_refused(name: str, said: str, llama: LanguageModel, tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / name, llama, without="model.layers.2.mlp.up_proj.weight")
    refused(DamagedModelError, said, load, path)
    assert not list(cache.glob("models/*/config.json"))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (lambda file: file.add_rope_scaling_type(gguf.RopeScalingType.LINEAR), ""),
        (lambda file: file.add_rope_scaling_factor(4.0), r"positions are scaled.*factor \[4\.0\]"),
        (lambda file: file.add_rope_scaling_type(gguf.RopeScalingType.YARN), "positions are scaled.*'yarn'"),
        (lambda file: file.add_tensor("rope_freqs.weight", np.ones(4, np.float32)), ""),
        (lambda file: file.add_tensor("rope_freqs.weight", np.full(4, 2, np.float32)), "otherwise than Llama 3.1's"),
        (
            lambda file: file.add_tensor("blk.1.attn_q.bias", np.ones(32, np.float32)),
            "has the tensor blk.1.attn_q.bias",
        ),
    ],
)
def test_what_transformers_passes_over_is_refused(more: Any, said: str, llama: LanguageModel, tmp_path: Path) -> None:
    """Without it, biases say, the model would be another, and nothing would tell."""
    path = write_gguf(tmp_path / "tiny.gguf", llama, more=more)
    if not said:
        assert load(path).fingerprint == llama.fingerprint
        return
    refused(UnsupportedModelError, said, load, path)


@pytest.mark.parametrize(
    ("kind", "said", "ids"),
    [
        ("llama-bpe", None, [1, 10]),
        ("llama-bpe", False, [10]),
        ("tekken", None, [1]),  # digits one by one
        ("chameleon", None, [1]),
        ("smollm", None, []),
        ("smollm", True, [1]),
    ],
)
def test_the_bos_and_the_merges_of_a_vocabulary_are_llama_cpps(
    kind: str, said: bool | None, ids: list[int], llama: LanguageModel, tmp_path: Path
) -> None:
    """As its llama-vocab.cpp has it, by `tokenizer.ggml.pre`; no merge makes "10", which is a token."""

    def more(file: gguf.GGUFWriter) -> None:
        file.add_tokenizer_pre(kind)
        if said is not None:
            file.add_add_bos_token(said)

    lm = load(write_gguf(tmp_path / "tiny.gguf", llama, more=more, word=""))
    assert lm.tokenizer("10")["input_ids"] == ids


@pytest.mark.parametrize(("family", "arch"), [("gemma2", "GEMMA2"), ("gemma3_text", "GEMMA3")])
def test_norms_of_which_files_have_one_more(family: str, arch: str, tmp_path: Path) -> None:
    model, kind = tiny.build(family).model, gguf.MODEL_ARCH[arch]
    names = gguf.get_tensor_name_map(kind, tiny.DEPTH)
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", gguf.MODEL_ARCH_NAMES[kind])
    wanted = {}
    for name, weight in model.named_parameters():
        array = weight.detach().numpy() + (1 if "norm" in name else 0)
        wanted[name] = torch.from_numpy(array - (1 if "norm" in name else 0))
        writer.add_tensor(names.get_name(name, (".weight",)), array)
    writer.add_tensor("rope_freqs.weight", np.ones(4, np.float32))
    write(writer)
    found = rows_of(LeanReader(tmp_path / "tiny.gguf"), model)
    assert found[0].keys() == wanted.keys()
    assert all(torch.equal(weight, wanted[name]) for name, weight in found[0].items())


def test_what_is_tied_and_twice_in_a_file_is_read_whole(tmp_path: Path) -> None:
    """Falcon's files have an output matrix of their own, quantised in another way than that of the embedding."""
    model = tiny.build("falcon").model
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.FALCON, tiny.DEPTH)
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "falcon")
    for name, tensor in model.state_dict().items():
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), tensor.numpy())
    assert "lm_head.weight" in model.state_dict().keys() - dict(model.named_parameters()).keys()
    write(writer)
    assert rows_of(LeanReader(tmp_path / "tiny.gguf"), model) is None


def test_positions_that_transformers_knows_of_a_family(tmp_path: Path) -> None:
    """Of Gemma 4 a file says by its frequencies which parts of a head are not turned; so does transformers' class."""
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "gemma4")
    writer.add_rope_freq_base(1e6)
    writer.add_tensor("rope_freqs.weight", np.array([1, 1, 1e30, 1e30], np.float32))
    write(writer)
    config = AutoConfig.for_model("gemma4_text")
    before = config.to_dict()
    assert before["rope_parameters"]["full_attention"]["rope_type"] == "proportional"
    complete_config(LeanReader(tmp_path / "tiny.gguf"), config)
    assert config.to_dict() == before


@pytest.mark.parametrize("family", ["starcoder2", "qwen2"])
def test_the_base_of_positions_is_the_files(family: str, tmp_path: Path) -> None:
    """StarCoder 2's is a million, which transformers does not read."""
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", family)
    writer.add_vocab_size(64)
    writer.add_rope_freq_base(999999.44)
    writer.add_tensor("token_embd.weight", np.ones((4, 4), np.float32))
    write(writer)
    config = AutoConfig.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    complete_config(LeanReader(tmp_path / "tiny.gguf"), config)
    assert config.rope_parameters["rope_theta"] == pytest.approx(999999.44)


@pytest.mark.parametrize(
    ("family", "layers", "width", "heads", "head", "expected"),
    [
        ("gemma2", 26, 2304, 8, 256, 256),
        ("gemma2", 46, 4608, 32, 128, 144),
        ("gemma3", 18, 640, 4, 256, 256),
        ("gemma3", 62, 5376, 32, 128, 168),
    ],
)
def test_the_scale_of_gemmas_attention(
    family: str, layers: int, width: int, heads: int, head: int, expected: int, tmp_path: Path
) -> None:
    """Google's own settings of the 2B, 27B, 270M and 27B."""
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", family)
    writer.add_vocab_size(64)
    writer.add_block_count(layers)
    writer.add_embedding_length(width)
    writer.add_head_count(heads)
    writer.add_key_length(head)
    writer.add_tensor("token_embd.weight", np.ones((4, 4), np.float32))
    write(writer)
    config = AutoConfig.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    complete_config(LeanReader(tmp_path / "tiny.gguf"), config)
    assert config.query_pre_attn_scalar == expected


def test_the_positions_of_llama_3(tmp_path: Path) -> None:
    """Their frequencies are divided as llama.cpp's converter writes it (`Llama3Model.generate_extra_tensors`)."""
    theta = 10000.0
    scaling = {
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    settings = tiny.CONFIGS["llama"] | {"head_dim": 64}
    config = LlamaConfig(**settings, rope_parameters={"rope_type": "llama3", "rope_theta": theta, **scaling})
    llama = LanguageModel(LlamaForCausalLM(config), tiny.tokenizer(), "tiny-llama-3")
    factors = []
    for i in range(0, 64, 2):
        wavelength = 2 * math.pi * theta ** (i / 64)
        if wavelength < 8192 / 4.0:
            factors.append(1.0)
        elif wavelength > 8192 / 1.0:
            factors.append(32.0)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            factors.append(1 / ((1 - smooth) / 32.0 + smooth))
    assert len({*factors}) > 3
    array = np.array(factors, np.float32)
    path = write_gguf(tmp_path / "tiny.gguf", llama, more=lambda file: file.add_tensor("rope_freqs.weight", array))
    for _ in range(2):  # the second time from the cache
        found = load(path)
        ids = torch.arange(4, 60)[None]
        assert torch.equal(found.model(ids).logits, llama.model(ids).logits)


def test_an_architecture_that_transformers_does_not_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "odd")
    write(writer)
    refused(DamagedModelError, r"odd\.gguf.*architecture 'odd'.*hub id or a folder", load, tmp_path / "odd.gguf")


@pytest.mark.parametrize("damage", ["head", "half", "most", "counts"])
def test_a_file_that_is_cut_short_or_damaged(damage: str, llama: LanguageModel, tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", llama, kind="Q8_0")
    whole = path.read_bytes()
    counts = whole[:8] + b"\xff" * 16 + whole[24:]
    path.write_bytes(
        {"head": whole[:20], "half": whole[: len(whole) // 2], "most": whole[:-200], "counts": counts}[damage]
    )
    refused(DamagedModelError, r"tiny\.gguf is cut short or damaged \(.*\); fetch it again", load, path)
    assert not list(cache.glob("models/*/config.json"))
