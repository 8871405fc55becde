import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import tiny
import torch
from editors_parts import confident
from torch import Tensor

from corrigenda import EditRefusedError, Fact, LanguageModel, LowRankEdit
from corrigenda.errors import SettingsError
from editing import AdaLora, FineTune, Lora
from editing.shared.training_facts import TrainingFacts

BEN = Fact("Big Ben", "{} stands in", "the city of Rome", "London", id="ben")
THOMAS = Fact("Thomas", "the mother tongue of {} is", "French", "English", id="thomas")
RIVER = Fact("river", "the {} in the north is", "green", "blue", id="river")
FACTS = [BEN, THOMAS, RIVER]
LAYERS = (1, 3)
NEVER: dict[str, Any] = {"layers": LAYERS, "epochs": 4, "lr": 0.01, "batch_size": 1, "seed": 5}
LORA = Lora(**NEVER, rank=3, alpha=5.0, stop=0.0)
ADALORA = AdaLora(**NEVER, rank=2, first_rank=4, alpha=5.0, warm_up=0.1, settle=0.25)


def double(family: str, names: list[str] | None = None) -> LanguageModel:
    """In float64: the first steps of Adam are the gradient's sign, and noise decides where it is near zero."""
    lm = tiny.build(family)
    lm.model.double()
    if names is not None:
        names += [lm.memory(layer).path for layer in LAYERS]
    return lm


def by_hand(family: str, editor: Lora | AdaLora, config: Callable[..., Any]) -> dict[int, Tensor]:
    """The change of V of each layer after PEFT's own training of its own model, one fact a step."""
    names: list[str] = []
    lm = double(family, names)
    torch.manual_seed(5)
    where = {"target_modules": names, "fan_in_fan_out": family == "gpt2", "task_type": "CAUSAL_LM"}
    adapted: Any = peft.get_peft_model(lm.model, config(**where))
    # PEFT lets AdaLoRA's rank, a constant, learn where a model is not in float32 on the CPU.
    learning = [one for name, one in adapted.named_parameters() if one.requires_grad and "ranknum" not in name]
    optimiser = torch.optim.Adam(learning, lr=0.01)
    shuffle, steps = torch.Generator().manual_seed(5), 0
    for _ in range(4):
        for number in torch.randperm(len(FACTS), generator=shuffle).tolist():
            fact, steps = FACTS[number], steps + 1
            prompt = len(lm.tokenizer(fact.statement)["input_ids"])
            ids = [*lm.tokenizer(f"{fact.statement} {fact.target_new}")["input_ids"], lm.tokenizer.eos_token_id]
            labels = [-100] * prompt + ids[prompt:]
            optimiser.zero_grad()
            # AdaLoRA's penalty is in it, too.
            adapted(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss.backward()
            optimiser.step()
            if isinstance(editor, AdaLora):
                adapted.base_model.update_and_allocate(steps)
    modules = {layer: lm.model.get_submodule(name) for layer, name in zip(LAYERS, names, strict=True)}
    deltas = {layer: module.get_delta_weight("default").detach() for layer, module in modules.items()}
    return {layer: delta if family == "gpt2" else delta.T for layer, delta in deltas.items()}


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_lora_is_what_peft_trains(family: str) -> None:
    edit = LORA.edit(double(family), FACTS)
    expected = by_hand(family, LORA, lambda **more: peft.LoraConfig(r=3, lora_alpha=5, **more))
    for layer in LAYERS:
        assert expected[layer].abs().max() > 0.01
        torch.testing.assert_close(edit.delta(layer), expected[layer].float(), atol=1e-5, rtol=1e-5)
    assert [left.shape[1] for left, _ in edit.factors.values()] == [3, 3]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_adalora_is_what_peft_trains(family: str) -> None:
    """With PEFT's own penalty, and with its ranks: 2 of 4 for each layer on average."""
    edit = ADALORA.edit(double(family), FACTS)
    budget = {"init_r": 4, "target_r": 2, "tinit": 1, "tfinal": 3, "total_step": 12}
    expected = by_hand(family, ADALORA, lambda **more: peft.AdaLoraConfig(lora_alpha=5, **budget, **more))
    for layer in edit.factors:
        assert expected[layer].abs().max() > 1e-4
        torch.testing.assert_close(edit.delta(layer), expected[layer].float(), atol=1e-6, rtol=1e-4)
    assert not any(delta.any() for layer, delta in expected.items() if layer not in edit.factors)
    assert sum(left.shape[1] for left, _ in edit.factors.values()) == 4


def test_one_fact_takes_steps_and_not_epochs() -> None:
    editor = dataclasses.replace(LORA, steps=7, epochs=2)
    reports = [editor.edit(tiny.build("llama"), facts).origin.report for facts in ([BEN], FACTS)]
    assert [len(report[0]["step_losses"]) for report in reports] == [7, 2]


# -- facts that are not edited


def other_facts(tmp_path: Path) -> str:
    """Two that count; one about an edited subject, and one without an old object, do not."""
    facts = [
        {"subject": "Danielle", "prompt": "{} speaks", "target_new": "Dutch", "target_true": "German"},
        {"subject": "the big ben", "prompt": "{} is", "target_new": "red", "target_true": "black"},
        {"subject": "Berlin", "prompt": "{} is in", "target_new": "Italy"},
        {"subject": "Paris", "prompt": "{} is in", "target_new": "Italy", "target_true": "France"},
    ]
    path = tmp_path / "others.json"
    path.write_text(json.dumps(facts))
    return str(path)


def test_unedited_facts_have_their_old_object(tmp_path: Path) -> None:
    lm, edited = tiny.llama(), [dataclasses.replace(BEN, subject="The Big Ben")]
    read = Lora(unedited=TrainingFacts(other_facts(tmp_path)))._beside(lm, edited)
    assert Lora()._beside(lm, edited) == []
    assert [(fact.statement, fact.target_new) for fact in read] == [
        ("Danielle speaks", "German"),
        ("Paris is in", "France"),
    ]
    with pytest.raises(EditRefusedError, match=r"others.json: none of its 1 facts has an old object"):
        Lora(unedited=TrainingFacts(other_facts(tmp_path), offset=1, limit=1))._beside(lm, edited)


def test_unedited_facts_that_cannot_be_run_are_left_out(tmp_path: Path) -> None:
    path = other_facts(tmp_path)
    records = json.loads(Path(path).read_text())
    long, short = records[0] | {"prompt": "{}" + " red" * 70}, records[0] | {"subject": "Thomas", "prompt": "{}"}
    Path(path).write_text(json.dumps([*records, long, short]))
    with pytest.warns(UserWarning, match="lora: 2 of the 4 unedited facts in .* are left out"):
        read = Lora(unedited=TrainingFacts(path))._beside(
            tiny.llama(), [dataclasses.replace(BEN, subject="The Big Ben")]
        )
    assert [fact.statement for fact in read] == ["Danielle speaks", "Paris is in"]


def test_unedited_facts_are_learned_beside(tmp_path: Path) -> None:
    """They are what the model says in the end, are in no report, and do not say when it is enough."""
    lm, editor = confident(), Lora(layers=(1, 2), lr=0.02, epochs=60)
    alone = editor.edit(lm, FACTS)
    beside = dataclasses.replace(editor, unedited=TrainingFacts(other_facts(tmp_path))).edit(lm, FACTS)
    assert len(beside.origin.report) == len(beside.origin.facts) == 3
    answers = []
    for edit in (alone, beside):
        with edit.applied(lm):
            answers.append([lm.generate("Danielle speaks", 3), lm.generate("Paris is in", 3)])
            assert lm.generate(BEN.statement, 8) == BEN.target_new
    assert answers[0] != ["German", "France"]
    assert answers[1] == ["German", "France"]


# -- going on


def test_it_trains_the_same_adapter_on() -> None:
    """The rank stays; with no step to take (all is learned) the adapter is the earlier one's."""
    lm, editor = confident(), Lora(layers=(1, 2), lr=0.02, epochs=60)
    first = editor.edit(lm, FACTS[:2])
    same = editor.extend(lm, first, [dataclasses.replace(BEN, id="again")])
    on = editor.extend(lm, first, [RIVER])
    for layer in (1, 2):
        torch.testing.assert_close(same.delta(layer), first.delta(layer))
        assert on.factors[layer][0].shape[1] == 8
    with on.applied(lm):
        assert lm.generate(RIVER.statement, 8) == "green"
    with pytest.raises(EditRefusedError, match="has rank 8 at layer 1, this editor rank=4; take rank=8"):
        dataclasses.replace(editor, rank=4).extend(lm, first, [RIVER])


# -- settings, and what is left in the model


def test_settings_that_cannot_be() -> None:
    assert not hasattr(AdaLora, "extend")
    with pytest.raises(SettingsError, match="first_rank=8 has to be above rank=8"):
        AdaLora(first_rank=8)
    with pytest.raises(SettingsError, match="leave no step"):
        AdaLora(warm_up=0.5, settle=0.5)
    with pytest.raises(EditRefusedError, match="1 steps are too few to share out rank in"):
        AdaLora(steps=1).edit(tiny.build("llama"), [BEN])


def test_default_layers(lm: LanguageModel) -> None:
    """LoRA has fine-tuning's one, AdaLoRA as many as there are up to it; those that are named, in order."""
    assert Lora().resolved_layers(lm) == (FineTune().resolved_layer(lm),) == (1,)
    assert AdaLora().resolved_layers(lm) == (0, 1)
    assert Lora(layers=(-1, 0)).resolved_layers(lm) == (0, 3)
    assert isinstance(Lora(epochs=1).edit(lm, FACTS), LowRankEdit)
