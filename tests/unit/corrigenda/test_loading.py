import copy
import json
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from batch_parts import a_batch, by_transformers, last_logits
from edits_parts import low_rank, origin
from malformed_parts import refused
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from corrigenda import ContextEdit, Family, LanguageModel, ModelNotFoundError, UnsupportedModelError, load, loading
from corrigenda.edits.codebook import CodebookEdit
from corrigenda.errors import DamagedModelError
from corrigenda.forward.generation import decode
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import forward_logits, record
from corrigenda.models.sources import _explained


@pytest.fixture(scope="module")
def llama() -> LanguageModel:
    return tiny.build("llama")


@pytest.fixture
def folder(llama: LanguageModel, tmp_path: Path) -> Path:
    """The tiny model on disk."""
    llama.save_pretrained(tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.mark.parametrize("family", ["llama", "bert", "gpt2", "opt", "mixtral", "bart", "t5", "t5-gated"])
def test_folder(family: str, tmp_path: Path) -> None:
    lm = tiny.build(family)
    lm.save_pretrained(tmp_path)
    again = load(str(tmp_path))
    assert (again.name, again.n_layers) == (str(tmp_path), tiny.DEPTH)
    assert type(again.model) is type(lm.model)
    assert again.tokens("the tower is in Rome") == lm.tokens("the tower is in Rome")
    assert not again.model.training
    assert not any(parameter.requires_grad for parameter in again.model.parameters())
    assert torch.equal(last_logits(again), last_logits(lm))
    assert again.fingerprint == lm.fingerprint


@pytest.mark.parametrize("name", ["nobody/nothing", "nothing"])
def test_hub_out_of_reach(name: str, no_hub: Path, naps: list[float]) -> None:
    refused(ConnectionError, rf"'{name}'.*127\.0\.0\.1:9 does not answer.*smollm2-135m", load, name)
    assert sum(naps) < 6


def test_hub_switched_off(no_hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refused(ConnectionError, "HF_HUB_OFFLINE=1", load, "nobody/nothing")


def test_hub_out_of_reach_but_cached(llama: LanguageModel, folder: Path, no_hub: Path, naps: list[float]) -> None:
    commit = "0" * 40
    repository = no_hub / "models--somebody--something"
    shutil.copytree(folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    assert load("somebody/something").fingerprint == llama.fingerprint
    assert sum(naps) < 6


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
def test_bfloat16(dtype: Any, llama: LanguageModel, folder: Path, tmp_path: Path) -> None:
    lm = load(folder, dtype=dtype)
    assert lm.dtype == torch.bfloat16
    assert all(parameter.dtype == torch.bfloat16 for parameter in lm.model.parameters())
    assert torch.equal(lm.memory(1).values, llama.memory(1).values.bfloat16())
    assert lm.fingerprint != llama.fingerprint
    lm.save_pretrained(tmp_path / "narrow")
    assert load(tmp_path / "narrow").dtype == torch.float32
    assert load(tmp_path / "narrow", dtype="auto").dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_device_map(llama: LanguageModel, folder: Path) -> None:
    lm = load(folder, device_map="auto")
    torch.testing.assert_close(last_logits(lm).cpu(), last_logits(llama), atol=1e-4, rtol=1e-4)
    assert lm.fingerprint == llama.fingerprint
    assert lm.generate("the tower is in", 5) == llama.generate("the tower is in", 5)
    batch = a_batch(lm)
    partial = PartialForward(lm, record(lm, batch, layers=[2]), 2, batch.lengths - 1)
    torch.testing.assert_close(partial.logits()[:, 0].cpu(), last_logits(llama), atol=1e-4, rtol=1e-4)
    edit = low_rank(lm, 0, {1: 2})
    with edit.applied(lm):
        assert not torch.equal(last_logits(lm), last_logits(llama))
    assert torch.equal(lm.memory(1).values.cpu(), llama.memory(1).values)


def test_layers_that_are_offloaded_to_the_disk(llama: LanguageModel, folder: Path) -> None:
    places = dict.fromkeys(["model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"], "cpu")
    places |= {f"model.layers.{layer}": "disk" if layer in (1, 3) else "cpu" for layer in range(4)}
    lm = load(folder, device_map=places)
    assert [lm.memory(layer).weight.is_meta for layer in range(4)] == [False, True, False, True]
    assert lm.fingerprint == llama.fingerprint
    torch.testing.assert_close(last_logits(lm), last_logits(llama), atol=1e-4, rtol=1e-4)
    edit = low_rank(lm, 0, {2: 2})
    with edit.applied(llama):
        edited = last_logits(llama)
    before = lm.memory(2).values.clone()
    with edit.applied(lm):
        torch.testing.assert_close(last_logits(lm), edited, atol=1e-4, rtol=1e-4)
    assert torch.equal(lm.memory(2).values, before)
    with pytest.raises(
        UnsupportedModelError, match=r"layers\.1\.mlp\.down_proj is offloaded .* edit a layer that lies on"
    ):
        low_rank(lm, 0, {1: 2}).apply(lm)


def test_a_model_that_is_split_over_processes_is_refused(folder: Path) -> None:
    from torch.distributed import destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    model = AutoModelForCausalLM.from_pretrained(folder)
    module = model.model.layers[1].mlp.down_proj
    init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=0, world_size=1)
    try:
        weight = distribute_tensor(module.weight.data, init_device_mesh("cpu", (1,)), [Shard(1)])
        module.weight = torch.nn.Parameter(weight, requires_grad=False)
        with pytest.raises(UnsupportedModelError, match=r"layers\.1\.mlp\.down_proj\.weight is split over processes"):
            LanguageModel(model, load(folder).tokenizer)
    finally:
        destroy_process_group()


def test_remote_code_is_refused(llama: LanguageModel, folder: Path) -> None:
    witness = folder / "it_ran"
    (folder / "custom.py").write_text(
        f"open({str(witness)!r}, 'w').close()\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class CustomConfig(LlamaConfig):\n    model_type = 'custom'\n"
        "class Custom(LlamaForCausalLM):\n    config_class = CustomConfig\n"
    )
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "custom", "architectures": ["Custom"]}
    config["auto_map"] = {"AutoConfig": "custom.CustomConfig", "AutoModelForCausalLM": "custom.Custom"}
    (folder / "config.json").write_text(json.dumps(config))
    refused(ValueError, "trust_remote_code", load, folder)
    assert not witness.exists()


@pytest.mark.parametrize("kind", ["AutoModelForCausalLM", "AutoModelForMaskedLM"])
def test_a_model_with_code_of_its_own_is_loaded_as_its_configuration_says(kind: str) -> None:
    config = SimpleNamespace(model_type="custom", auto_map={"AutoConfig": "custom.Config", kind: "custom.Custom"})
    assert loading._automatic_class("custom", config, None).__name__ == kind


UNKNOWN: dict[str, dict[str, Any]] = {"biogpt": tiny._SIZES, "gpt_bigcode": tiny._OLD}
UNKNOWN |= dict.fromkeys(("exaone4", "helium", "nemotron"), tiny._GROUPED)


@pytest.mark.parametrize("family", UNKNOWN)
def test_family_found_by_inspection(family: str) -> None:
    """The parts of a family outside the table: output = m @ V + b, and the blocks are those that run."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **UNKNOWN[family]))
        for parameter in model.parameters():
            parameter.data.normal_(0, 0.2)
    lm = LanguageModel(model, tiny.tokenizer())
    batch, memory = a_batch(lm), lm.memory(2)
    module, attention = lm.architecture.values(2), lm.architecture.attention(2)
    ran: list[object] = []
    handle = attention.register_forward_hook(lambda *_: ran.append(attention))
    with memory.capture() as seen:
        full = forward_logits(lm, batch)
    handle.remove()
    assert ran
    assert memory.keys.shape == memory.values.shape == (memory.d_ffn, tiny.WIDTH)
    bias = getattr(module, "bias", None)
    expected = seen.coefficients @ memory.values + (0 if bias is None else bias)
    torch.testing.assert_close(seen.output, expected, atol=1e-4, rtol=1e-4)
    real = batch.attention_mask.bool()  # what padding gives is nobody's, and depends on what is looked into
    with memory.replace(expected):
        torch.testing.assert_close(forward_logits(lm, batch)[real], full[real], atol=1e-4, rtol=1e-4)
    partial = PartialForward(lm, record(lm, batch, layers=[2]), 2, torch.tensor([3, 1, 2]))
    logits = partial.logits(partial.local(batch.lengths - 1)).log_softmax(-1)
    torch.testing.assert_close(logits, last_logits(lm).log_softmax(-1), atol=1e-4, rtol=1e-4)


def test_sharded_safetensors(llama: LanguageModel, tmp_path: Path) -> None:
    llama.model.save_pretrained(tmp_path, max_shard_size="50KB")
    llama.tokenizer.save_pretrained(tmp_path)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 1
    assert load(tmp_path).fingerprint == llama.fingerprint
    shards[-1].unlink()
    refused(ModelNotFoundError, r"could not be loaded as a model.*model-\d+-of", load, tmp_path)


REFUSED = {
    "GatedRepoError": r"'somebody/llama' is gated: accept its terms at https://huggingface\.co/somebody/llama.*log in",
    "RepositoryNotFoundError": r"no model 'somebody/llama', or it is private: then log in.*smollm2-135m",
    "RevisionNotFoundError": r"'somebody/llama' has no such revision",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_the_hub_refuses(kind: str) -> None:
    refused = type(kind, (OSError,), {})("401 Client Error")
    with pytest.raises(ModelNotFoundError, match=REFUSED[kind]):
        raise _explained("somebody/llama", refused, "")


def test_a_quantised_model_is_read_and_edited_beside_its_weights() -> None:
    lm = tiny.quantised()
    memory = lm.memory(2)
    assert (memory.d_ffn, memory.d_model) == (48, tiny.WIDTH)
    with memory.capture() as seen:
        plain = last_logits(lm)
    module = lm.architecture.values(2)
    torch.testing.assert_close(seen.output, seen.coefficients @ (module.weight.float() * module.scale).T)
    assert torch.equal(memory.read(seen.coefficients), seen.output)
    with memory.add(torch.ones(tiny.WIDTH)):
        assert not torch.equal(last_logits(lm), plain)
    with ContextEdit(origin(lm), "the tower is red .").applied(lm):
        assert lm.tokens("a") == lm.tokenizer("the tower is red . a")["input_ids"]
    key = seen.coefficients[:1, 4]  # of the first prompt's last token
    others = seen.coefficients[[1, 2], [2, 5]]
    values, radii = torch.full((1, tiny.WIDTH), 2.0), 0.5 * (others - key).norm(dim=1).min()[None]
    with CodebookEdit.of(memory, origin(lm), key, values, radii).applied(lm):
        edited = last_logits(lm)
    assert not torch.equal(edited[0], plain[0])
    torch.testing.assert_close(edited[1:], plain[1:])
    for matrix in ("values", "keys", "gates"):
        with pytest.raises(
            UnsupportedModelError, match=r"quantised \(EightBits, int8\).*beside the weights.*unquantised"
        ):
            getattr(memory, matrix)


def test_family_given(folder: Path) -> None:
    paths = {"keys": "mlp.up_proj", "gate": "mlp.gate_proj", "values": "mlp.down_proj", "attention": "self_attn"}
    assert load(folder, family=Family(blocks="model.layers", **paths)).n_layers == tiny.DEPTH
    with pytest.raises(UnsupportedModelError, match=r"no blocks at 'transformer\.h'"):
        load(folder, family=Family(blocks="transformer.h", **paths))


def test_fingerprint_is_that_of_the_weights(llama: LanguageModel, folder: Path) -> None:
    assert load(folder).fingerprint == tiny.build("llama").fingerprint == llama.fingerprint
    assert tiny.build("llama", seed=1).fingerprint != llama.fingerprint
    changed = tiny.build("llama")
    weight = changed.memory(3).weight
    weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))  # one bit
    assert changed.fingerprint != llama.fingerprint


def test_fingerprint_is_that_of_the_unedited_model(lm: LanguageModel) -> None:
    edit = low_rank(lm, 0, {1: 2})  # which asks for the fingerprint
    plain = lm.fingerprint
    with edit.applied(lm):
        assert lm.fingerprint == plain
    fresh = tiny.build("llama")
    with edit.applied(fresh, strict=False), pytest.raises(RuntimeError, match="unedited"):
        _ = fresh.fingerprint
    assert fresh.fingerprint == plain


@pytest.mark.parametrize("family", ["bloom", "gemma2", "gpt_neo", "gptj", "opt"])
def test_generate_equals_transformers_in_other_families(family: str) -> None:
    """Left padding must not show: learned positions, ALiBi, sliding windows."""
    lm = tiny.build(family)
    prompts = ["the tower", "Paris is the capital of France . London is the capital of", "Ben plays"]
    expected = [by_transformers(lm, prompt, 8) for prompt in prompts]
    assert lm.generate(prompts, 8) == expected
    assert len(set(expected)) == len(prompts)


def test_a_model_that_reads_images_too_ends_its_texts() -> None:
    """Of its configuration the part of the text alone may name the end token."""
    text = tiny.CONFIGS["gemma3_text"] | {"model_type": "gemma3_text"}
    seen = {"hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 2}
    seen |= {"image_size": 28, "patch_size": 14, "model_type": "siglip_vision_model"}
    config = AutoConfig.for_model("gemma3", text_config=text, vision_config=seen, mm_tokens_per_image=4)
    lm = LanguageModel(AutoModelForCausalLM.from_config(config), tiny.tokenizer(), "tiny-gemma3")
    assert lm.end_ids == {2}
    assert lm.generate("the tower", 4) == by_transformers(lm, "the tower", 4)


def test_generate_nothing(llama: LanguageModel) -> None:
    assert llama.generate("the tower", 0) == ""
    prompts = [llama.tokens("the tower")] * 2
    assert [len(tokens) for tokens in decode(llama, prompts, [0, 3], stop=lambda _: False)] == [0, 3]
    refused(ValueError, "masked model", tiny.build("bert").generate, "the tower")


def test_an_exported_edit_is_loaded_by_its_folder_alone(tmp_path: Path) -> None:
    from peft import AutoPeftModelForCausalLM

    tiny.build("llama").save_pretrained(tmp_path / "base")
    lm = load(tmp_path / "base")
    edit = low_rank(lm, 0, {1: 2})
    edit.to_peft(tmp_path / "adapter")
    ids = torch.tensor([lm.tokens("Paris is")])
    with edit.applied(lm):
        wanted = lm.model(input_ids=ids).logits.detach()
    found = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")(input_ids=ids).logits.detach()
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
    merged = load(tmp_path / "adapter")
    assert merged.name == str(tmp_path / "adapter")
    torch.testing.assert_close(merged.model(input_ids=ids).logits, wanted, rtol=0, atol=1e-4)
    refused(ValueError, "names a version of a hub repository", load, tmp_path / "adapter", revision="main")


@pytest.fixture
def adapter(folder: Path, tmp_path: Path) -> Path:
    """An exported edit of two layers, beside the model's folder that it names."""
    lm = load(folder)
    low_rank(lm, 0, {1: 2, tiny.DEPTH - 1: 2}).to_peft(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize("end", ["embed_tokens", "lm_head"])
def test_an_adapter_on_one_of_two_tied_ends_leaves_the_other(end: str, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    tiny.build("gemma2").save_pretrained(tmp_path / "base")
    lm = load(tmp_path / "base")
    model: Any = lm.model
    assert model.lm_head.weight is model.get_input_embeddings().weight
    model.name_or_path = str(tmp_path / "base")
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", end], init_lora_weights=False))
    adapted.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    ids = torch.tensor([lm.tokens("Paris is")])
    wanted = adapted(input_ids=ids).logits.detach()
    merged = load(tmp_path / "adapter")
    torch.testing.assert_close(merged.model(input_ids=ids).logits, wanted, rtol=0, atol=1e-4)
    merged.save_pretrained(tmp_path / "merged")
    torch.testing.assert_close(load(tmp_path / "merged").model(input_ids=ids).logits, wanted, rtol=0, atol=1e-4)


def test_an_adapter_of_a_deeper_model_is_refused(adapter: Path, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    shorter = {"num_hidden_layers": tiny.DEPTH - 1}
    (folder / "config.json").write_text(json.dumps(config | shorter))
    refused(DamagedModelError, r"has no place for 2 of its weights \(.*lora_A.*adapter_config", load, adapter)


def test_half_an_adapter_is_refused_where_warnings_are_switched_off(adapter: Path) -> None:
    path = adapter / "adapter_model.safetensors"
    save_file({name: tensor for name, tensor in load_file(path).items() if ".layers.1." in name}, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refused(DamagedModelError, r"does not fit .*missing adapter keys", load, adapter)


@pytest.mark.parametrize(("number", "dtype"), [(torch.nan, "float32"), (torch.inf, "float32"), (6e4, "float16")])
def test_an_adapter_that_leaves_no_finite_numbers_is_refused(number: float, dtype: str, adapter: Path) -> None:
    path = adapter / "adapter_model.safetensors"
    save_file({name: torch.full_like(tensor, number) for name, tensor in load_file(path).items()}, path)
    refused(DamagedModelError, "adapter.* is damaged: .*down_proj.* NaN or infinite", load, adapter, dtype=dtype)


def test_the_tokenizer_beside_an_adapter_is_taken(adapter: Path, folder: Path) -> None:
    tokenizer = load(folder).tokenizer
    assert load(adapter).tokenizer.chat_template is None
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.save_pretrained(adapter)
    assert load(adapter).tokenizer.chat_template == "{{ messages }}"


def test_the_version_of_the_base_is_the_one_that_an_adapter_names(
    adapter: Path, llama: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text())
    named = {"base_model_name_or_path": "somebody/tiny", "revision": "abc"}
    (adapter / "adapter_config.json").write_text(json.dumps(config | named))
    asked: list[Any] = []

    def read(_name: str, source: str, options: dict[str, Any], *_: Any) -> Any:
        asked.append((source, options["revision"]))
        return copy.deepcopy(llama.model), llama.tokenizer

    monkeypatch.setattr(loading, "_read", read)
    load(adapter)
    assert asked == [("somebody/tiny", "abc")]
