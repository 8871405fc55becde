import warnings
from pathlib import Path

import peft
import pytest
import tiny
import torch
from public_reports import EIFFEL, logits, low_rank, model, rome

from corrigenda import LanguageModel, load


def wrapped(**changes: int) -> LanguageModel:
    return LanguageModel(model(**changes), tiny.tokenizer(), "tiny")


def test_more_layers_than_names_that_are_shortened(tmp_path: Path) -> None:
    """huggingface/peft#2144, #2773: from twenty names on PEFT looks for shorter ones, and those met other modules."""
    lm, left_out = wrapped(num_hidden_layers=24), 11
    edit = low_rank(lm, {layer: 1 + layer % 3 for layer in range(24) if layer != left_out})
    edit.to_peft(tmp_path)
    with edit.applied(lm):
        edited = logits(lm.model)
    adapted = peft.PeftModel.from_pretrained(model(num_hidden_layers=24), str(tmp_path))
    torch.testing.assert_close(logits(adapted), edited, atol=1e-4, rtol=1e-4)
    block = adapted.base_model.model.model.layers[left_out]
    assert not any(isinstance(part, peft.tuners.lora.LoraLayer) for part in block.modules())


def test_ranks_that_stand_for_one_layer_each(tmp_path: Path) -> None:
    """huggingface/peft#3582: entries of rank_pattern and alpha_pattern that match no module are passed over."""
    lm, ranks = wrapped(num_hidden_layers=12), {1: 3, 10: 1, 11: 2}
    low_rank(lm, ranks).to_peft(tmp_path)
    adapted = peft.PeftModel.from_pretrained(model(num_hidden_layers=12), str(tmp_path))
    found = {
        layer: (down.r["default"], down.scaling["default"])
        for layer, block in enumerate(adapted.base_model.model.model.layers)
        if isinstance(down := block.mlp.down_proj, peft.tuners.lora.LoraLayer)
    }
    assert found == {layer: (rank, 1.0) for layer, rank in ranks.items()}


@pytest.mark.parametrize("family", ["opt", "gpt2", "llama"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("error:.*fan_in_fan_out")
def test_merged_is_what_was_applied(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """huggingface/peft#1035, #2502, #324: after merging, the model answered otherwise than with the adapter; in GPT-2 a
    matrix is stored the other way round."""
    lm = LanguageModel(model(family).to(dtype), tiny.tokenizer(), "tiny")
    edit = low_rank(lm, {1: 2, 2: 1})
    edit.to_peft(tmp_path)
    with edit.applied(lm):
        edited, values = logits(lm.model), lm.memory(1).values.clone()
    adapted = peft.PeftModel.from_pretrained(model(family).to(dtype), str(tmp_path), autocast_adapter_dtype=False)
    merged = LanguageModel(adapted.merge_and_unload(), tiny.tokenizer(), "merged")
    # In bfloat16 the product of the factors is rounded before it is added.
    exact = {"atol": 1e-4, "rtol": 1e-4} if dtype is torch.float32 else {"atol": 0.05, "rtol": 0.05}
    torch.testing.assert_close(logits(merged.model), edited, **exact)
    torch.testing.assert_close(merged.memory(1).values, values, **exact)


def test_two_adapters_by_their_names(tmp_path: Path) -> None:
    """huggingface/peft#1111, #2773, #1155: a second adapter under another name was not loaded, or merged with other
    weights than asked for."""
    lm = wrapped()
    first, second = low_rank(lm, {1: 2}, seed=1), low_rank(lm, {1: 1, 2: 3}, seed=2)
    first.to_peft(tmp_path / "first")
    second.to_peft(tmp_path / "second")
    with first.applied(lm), second.applied(lm):
        edited = logits(lm.model)
    adapted = peft.PeftModel.from_pretrained(model(), str(tmp_path / "first"), adapter_name="mlp")
    adapted.load_adapter(str(tmp_path / "second"), "second")
    adapted.base_model.set_adapter(["mlp", "second"])
    torch.testing.assert_close(logits(adapted), edited, atol=1e-4, rtol=1e-4)
    adapted.add_weighted_adapter(["mlp", "second"], [1.0, 1.0], "both", combination_type="cat")
    adapted.set_adapter("both")
    torch.testing.assert_close(logits(adapted), edited, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("merge", [False, True])
def test_a_model_from_which_an_adapter_was_taken(merge: bool, tmp_path: Path) -> None:
    """huggingface/peft#3067, #208: a model without any adapter left is still taken for one with an adapter."""
    config = peft.LoraConfig(target_modules=["down_proj"], r=2, init_lora_weights=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(model(), config)
    plain = adapted.merge_and_unload() if merge else adapted.unload()
    plain.peft_config = {"default": config}  # as releases before 0.19 leave it
    lm = LanguageModel(plain, tiny.tokenizer(), "tiny")
    edit = rome().edit(lm, [EIFFEL])
    with edit.applied(lm):
        edited = logits(lm.model)
        lm.save_pretrained(tmp_path)
    assert torch.equal(logits(load(tmp_path).model), edited)
    assert torch.equal(logits(lm.model), logits(model())) != merge
