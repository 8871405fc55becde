import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from by_hooks import entering, logits
from editors_parts import PLAYS, TEXT, TONGUE, TOWER
from torch import Tensor

from corrigenda import AddedNeuronsEdit, Edit, EditRefusedError, Fact, LanguageModel
from corrigenda.forward.recording import forward_logits
from corrigenda.moments.text import Text
from corrigenda.prompts import encode_target
from editing import Grace, TPatcher
from editing.shared.training_rows import RowsForward

LAST = tiny.DEPTH - 1


def patcher(**changes: Any) -> TPatcher:
    return TPatcher(**({"text": TEXT, "steps": 30} | changes))


def row(lm: LanguageModel, fact: Fact) -> tuple[list[int], list[int]]:
    ids = lm.tokens(fact.statement)
    return ids, encode_target(lm.tokenizer, fact.statement, str(fact.target_new))


def queries(lm: LanguageModel, ids: list[int]) -> Tensor:
    """What enters the last layer's keys, (position, d_model)."""
    with entering(lm.architecture.keys(LAST)) as seen:
        logits(lm, ids)
    return seen[0].reshape(len(ids), -1)


def nll(lm: LanguageModel, fact: Fact) -> float:
    ids, target = row(lm, fact)
    said = forward_logits(lm, lm.batch([ids + target[:-1]], [len(ids)]))[0, len(ids) - 1 :]
    return -float(said.log_softmax(-1)[range(len(target)), target].mean())


def build(family: str) -> LanguageModel:
    return tiny.build(family, scale=4.0)


LONG = dataclasses.replace(TOWER, target_new="Rome in the north of Italy", id="long")


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_neuron_for_each_mistake_begins_at_its_query(family: str) -> None:
    """After one step: k = q / |q|^2 less Adam's first step, which is the rate in every number; a value likewise."""
    lm = build(family)
    ids, target = row(lm, LONG)
    said = logits(lm, ids + target)[len(ids) - 1 : -1].argmax(-1).tolist()
    wrong = [place for place, (one, other) in enumerate(zip(said, target, strict=True)) if one != other]
    assert len(wrong) > 2
    edit = patcher(steps=1, most=2).edit(lm, [LONG])
    assert edit.layer == LAST
    assert edit.state.counts == (2,)
    q = queries(lm, ids + target)[[len(ids) - 1 + place for place in wrong[:2]]]
    first = q / q.square().sum(1, keepdim=True)
    step = 2.0 * float(first.square().mean().sqrt())
    torch.testing.assert_close((edit.keys - first).abs(), torch.full_like(first, step), rtol=1e-3, atol=1e-6)
    with lm.memory(LAST).capture() as seen:
        forward_logits(lm, lm.batch([ids + target]))
    out = seen.output[0, [len(ids) - 1 + place for place in wrong[:2]]]
    rate = 0.1 * float(out.square().mean().sqrt())
    torch.testing.assert_close(edit.values.abs(), torch.full_like(first, rate), rtol=1e-3, atol=1e-5)
    if family == "llama":
        torch.testing.assert_close(edit.ups, first, rtol=1e-4, atol=1e-6)
        assert not edit.biases.any()
    else:
        assert len(edit.ups) == 0
        torch.testing.assert_close(edit.biases.abs(), torch.full((2,), step), rtol=1e-3, atol=1e-6)


def test_its_queries_are_of_what_is_generated_where_another_edit_looks_at_the_prompt() -> None:
    lm = build("llama")
    ids, target = row(lm, TOWER)
    below = Grace(layer=0, radius=1e-3, steps=2, lr=9.0).edit(lm, [TOWER])
    with below.applied(lm):
        q = queries(lm, ids)[-1]  # all that is run is the prompt
        edit = patcher(steps=1, most=1).edit(lm, [TOWER])
    assert len(target) == 1
    torch.testing.assert_close(edit.ups[0], q / q.square().sum(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_the_losses(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """L_act and L_mem of the second fact's first step, over other text's queries and those of the first fact."""
    lm, found = build(family), []
    backward = Tensor.backward
    monkeypatch.setattr(Tensor, "backward", lambda self: (found.append(float(self.detach())), backward(self))[1])
    editor = patcher(steps=1, hardest=7, margin=0.5, memory_weight=3.0, activation_weight=2.0)
    edit = editor.edit(lm, [TONGUE, TOWER])
    assert len(found) == 2
    ids, target = row(lm, TOWER)
    assert len(target) == 1
    q = queries(lm, ids + target)[len(ids) - 1].double()
    other, answer = row(lm, TONGUE)
    told = queries(lm, other + answer)[len(other) - 1 : -1]
    remembered = torch.cat([*(queries(lm, text) for text in TEXT.sequences(lm)), told]).double()
    a = remembered @ (q / q.square().sum())
    hardest = sorted(a.exp().tolist(), reverse=True)[:7]
    memory = sum(hardest) / 7 * (torch.e**0.5 + torch.e ** (0.5 - 1))
    loss = edit.origin.report[1]["step_losses"][0] + 2.0 * torch.e**-1 + 3.0 * memory
    assert found[1] == pytest.approx(loss, rel=1e-4)
    alone = {name: getattr(edit, name)[:1] for name in ("keys", "ups", "biases", "values")}
    first = dataclasses.replace(edit, **alone)
    with first.applied(lm):  # the second fact is learned beside the first one's neuron
        assert edit.origin.report[1]["step_losses"][0] == pytest.approx(nll(lm, TOWER), abs=1e-4)


FEW: dict[str, Any] = {"text": Text(tokens=16, length=8), "lr": 2.0, "memory_weight": 0.1}
"""Random weights tell few queries from one another: with more of them no key keeps its own."""


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "phi3", "gemma2"])
def test_what_is_learned_is_what_is_applied(family: str) -> None:
    lm = build(family)
    edit = patcher(**FEW, stop=0.0).edit(lm, [TOWER, TONGUE])
    last = edit.origin.report[1]
    assert last["loss"] == last["step_losses"][-1] < last["step_losses"][0] - 0.5
    with edit.applied(lm):
        assert nll(lm, TONGUE) == pytest.approx(last["loss"], abs=1e-3)


def test_remembered_queries_are_kept_silent() -> None:
    """The more the memory loss counts, the less other text activates a neuron."""
    heard = []
    for weight in (0.1, 1.0, 10.0):
        editor = patcher(**(FEW | {"memory_weight": weight, "key_lr": 0.1}), stop=0.0)
        [report] = editor.edit(build("gpt2"), [TOWER]).origin.report
        heard.append(report["other_activation"])
    assert heard[0] > heard[1] > heard[2]


def test_it_stops_when_the_fact_is_said_and_nothing_else_is_heard() -> None:
    [report] = patcher(**FEW, stop=3.0, margin=0.5).edit(build("gpt2"), [TOWER]).origin.report
    assert 0 < report["steps"] < 30
    assert report["loss"] < 3.0
    assert report["other_activation"] <= -0.5


def test_a_value_rests_while_the_fact_is_said() -> None:
    """Keys are still learned then; a value that went on would grow without an end."""
    edit = patcher(steps=3, stop=1e9, margin=9.0).edit(build("llama"), [TOWER])
    assert edit.origin.report[0]["steps"] == 3
    assert not edit.values.any()
    assert not torch.equal(edit.keys, edit.ups)  # both began at q / |q|^2


def test_a_later_fact_takes_the_place_of_earlier_neurons(tmp_path: Path) -> None:
    lm = build("llama")
    first = patcher(steps=2).edit(lm, [LONG, TONGUE])
    n = first.state.counts[0]
    assert n > 1
    first.save(tmp_path)
    loaded = Edit.load(tmp_path)
    assert isinstance(loaded, AddedNeuronsEdit)
    other = dataclasses.replace(TOWER, target_new="London", id="later")
    edit = patcher(steps=2).extend(lm, loaded, [PLAYS, other])
    assert [fact.target_new for fact in edit.state.facts] == ["English", "guitar", "London"]
    assert edit.state.counts == (first.state.counts[1], 1, 1)
    for name in ("keys", "ups", "biases", "values"):
        kept = getattr(first, name)[n:]
        assert torch.equal(getattr(edit, name)[: len(kept)], kept)
    assert edit.origin.report[3]["contradicts"] == 0


def test_what_is_said_already_gets_one_neuron() -> None:
    lm = build("llama")
    ids = lm.tokens(TOWER.statement)
    likeliest = int(logits(lm, ids)[-1].argmax())
    fact = dataclasses.replace(TOWER, target_new=lm.text([likeliest]).strip(), id="known")
    assert row(lm, fact)[1] == [likeliest]
    assert patcher(steps=1).edit(lm, [fact]).state.counts == (1,)


def test_a_loss_that_is_not_finite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowsForward, "nll", lambda _self, added: added.sum((1, 2)) * torch.nan)
    with pytest.raises(EditRefusedError, match="'tower': the loss is not finite"):
        patcher().edit(build("llama"), [TOWER])
