import warnings
from pathlib import Path

import pytest
import tiny
import torch
from malformed_parts import refused
from peft import LoraConfig, get_peft_model

from corrigenda import Fact, LanguageModel, UnsupportedModelError
from corrigenda.errors import InferenceModeError
from editing import Shift

FACT = Fact("Paris", "{} is the city of", "Rome")
PROMPT = "Paris is the city of"


def logits(lm: LanguageModel) -> torch.Tensor:
    return lm.model(input_ids=torch.tensor([lm.tokens(PROMPT)])).logits.detach()


def lora(model: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["down_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    return get_peft_model(model, config)  # type: ignore[arg-type]


def test_a_model_with_an_adapter_inside_is_refused(lm: LanguageModel) -> None:
    inside = r"has a PEFT adapter inside .*merge it first, model = peft_model\.merge_and_unload\(\)"
    wrapped = lora(lm.model)
    for model in (wrapped, wrapped.base_model.model):
        refused(UnsupportedModelError, inside, LanguageModel, model, lm.tokenizer)
    with pytest.raises(UnsupportedModelError, match=inside):  # put inside after the model was taken
        lm.generate(PROMPT, 2)
    merged = LanguageModel(wrapped.merge_and_unload(), lm.tokenizer)  # type: ignore[operator]
    assert merged.generate(PROMPT, 2)


def test_no_edit_is_lost_for_an_adapter_that_came_later(lm: LanguageModel, tmp_path: Path) -> None:
    edit = Shift().edit(lm, [FACT])
    edit.apply(lm)
    lora(lm.model)
    refused(UnsupportedModelError, "has a PEFT adapter inside", lm.save_pretrained, tmp_path / "lost")
    assert not (tmp_path / "lost").exists()
    edit.revert(lm)
    refused(UnsupportedModelError, "has a PEFT adapter inside", edit.apply, lm)


def test_train_mode_is_left_and_said() -> None:
    lm = tiny.build("gpt2")
    for module in lm.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    wanted = lm.generate(PROMPT, 5)
    lm.model.transformer.h[1].train()  # a part is enough
    with pytest.warns(UserWarning, match="was in train mode"):
        assert lm.generate(PROMPT, 5) == wanted
    assert not any(module.training for module in lm.model.modules())
    lm.model.train()
    with pytest.warns(UserWarning, match="was in train mode"):
        lm.batch([[1, 2]])


def test_compiled_code_is_left(lm: LanguageModel) -> None:
    wanted = logits(lm)
    assert LanguageModel(torch.compile(lm.model, backend="eager"), lm.tokenizer).model is lm.model  # type: ignore[arg-type]
    lm.model.compile(backend="eager")
    with pytest.warns(UserWarning, match=r"was compiled in place .*runs uncompiled from now on"):
        again = LanguageModel(lm.model, lm.tokenizer)
    assert torch.equal(logits(again), wanted)


def test_gradients_under_inference_mode_and_without_gradients() -> None:
    wanted = Shift().edit(tiny.build("llama"), [FACT])
    with torch.inference_mode():
        lm = tiny.build("llama")
        refused(InferenceModeError, "leave its block", Shift().edit, lm, [FACT])
    with torch.no_grad():
        found = Shift().edit(lm, [FACT])  # its weights were made in inference mode
    assert torch.equal(found.delta(found.touched[0]), wanted.delta(wanted.touched[0]))


def test_nothing_is_said_of_a_model_as_it_should_be() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lm = tiny.build("llama")
        assert lm.generate(PROMPT, 2)
