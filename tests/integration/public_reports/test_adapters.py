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
