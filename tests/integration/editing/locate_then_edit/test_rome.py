"""ROME: against the authors' values, against plain whole forwards, and its guards."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import tiny
import torch
from rome_parts import FACTS, LAYER, ROME, SETTINGS, Patch, build, difference, solve, some_moment
from torch import Tensor

import editing.locate_then_edit.rome
from corrigenda import Fact, LanguageModel
from corrigenda.moments.second_moment import SecondMoment
from corrigenda.moments.text import Text
from editing import Rome

# Fit for random models, which need a longer way than trained ones; no fact stops early.

# Subjects, prompts and targets of different lengths.


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> Patch:
    """Sets the second moment that ROME uses; here at once to `some_moment` of whatever model it is."""

    def patch(matrix: Tensor | None) -> None:
        def given(lm: LanguageModel, layer: int, text: Text) -> SecondMoment:
            return SecondMoment(some_moment(lm, layer) if matrix is None else matrix, 1000, layer, text)

        monkeypatch.setattr(editing.locate_then_edit.rome, "second_moment", given)

    patch(None)
    return patch


def plain(lm: LanguageModel, fact: Fact, rome: Rome) -> tuple[Tensor, Tensor]:
    """k* and v* the long way: the whole model on each row by itself, every step, and autograd."""
    assert rome.layer is not None
    assert rome.prefixes is not None
    settings = rome.value
    module = lm.architecture.values(rome.layer)
    seen: dict[str, Tensor] = {}

    def run(text: str, at: int, target: Sequence[int], delta: Tensor) -> Tensor:
        ids = lm.tokenizer(text)["input_ids"] + list(target)

        def add(_module: object, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            coefficients, flat = args[0].reshape(len(ids), -1), output.reshape(len(ids), -1)
            seen["key"], seen["value"] = coefficients[at].detach(), flat[at].detach()
            mask = torch.zeros(len(ids), 1)
            mask[at] = 1
            return (flat + mask * delta).view_as(output)

        handle = module.register_forward_hook(add)
        try:
            return lm.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        finally:
            handle.remove()

    def at(prompt: str) -> int:
        return len(lm.tokenizer(prompt[: prompt.rindex(fact.subject) + len(fact.subject)])["input_ids"]) - 1

    assert fact.target_new is not None
    target = lm.tokenizer(fact.target_new)["input_ids"]
    rows = [prefix + fact.statement for prefix in rome.prefixes]
    kept = settings.kl_prompt.replace("{}", fact.subject)
    zero = torch.zeros(lm.memory(rome.layer).d_model)
    keys = []
    for row in rows:
        run(row, at(row), [], zero)
        keys.append(seen["key"])
        if row == rows[0]:
            old = seen["value"]
    place = at(kept) if settings.kl_position == "subject" else -1
    before = run(kept, at(kept), [], zero)[place].detach()
    delta = zero.clone().requires_grad_()
    optimiser = torch.optim.Adam([delta], lr=settings.lr)
    for _ in range(settings.steps - 1):
        loss = settings.weight_decay * (delta.square().sum() + 1e-30).sqrt() / old.norm() ** 2
        for row in rows:
            log_probs = run(row, at(row), target, delta)
            for number, token in enumerate(reversed(target)):
                loss = loss - log_probs[-2 - number, token] / (len(rows) * len(target))
        now = run(kept, at(kept), [], delta)[place]
        loss = loss + settings.kl_factor * (now.exp() * (now - before)).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        bound = settings.clamp_norm_factor * old.norm()
        with torch.no_grad():
            if delta.norm() > bound:
                delta.mul_(bound / delta.norm())
    return torch.stack(keys).mean(0), old + delta.detach()


@pytest.mark.parametrize("family", tiny.DECODERS)
def test_facts_that_stop_early_leave_the_others_alone(family: str) -> None:
    lm = build(family)
    losses = solve(lm, FACTS, dataclasses.replace(ROME, value=dataclasses.replace(SETTINGS, steps=4)))[1].loss
    threshold = float(losses.sort().values[:2].mean())  # one fact is below it after four steps
    stopping = dataclasses.replace(ROME, value=dataclasses.replace(SETTINGS, steps=10, early_stop_loss=threshold))
    alone = [solve(lm, [fact], stopping)[1] for fact in FACTS]
    values = solve(lm, FACTS, stopping)[1]
    steps = torch.cat([single.steps for single in alone])
    assert steps.min() <= 4 < steps.max()
    assert values.steps.tolist() == steps.tolist()
    assert difference(values.values, torch.cat([single.values for single in alone])) < 1e-3
    for name in ("loss", "nll", "kl"):
        expected = torch.cat([getattr(single, name) for single in alone])
        torch.testing.assert_close(getattr(values, name), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("family", tiny.DECODERS)
def test_batch_equals_one_by_one(family: str) -> None:
    lm = build(family)
    alone = [solve(lm, [fact]) for fact in FACTS]
    rewrites, values = solve(lm, FACTS)
    assert difference(rewrites.mean_keys, torch.cat([single.mean_keys for single, _ in alone])) < 1e-3
    assert difference(rewrites.bare_keys, torch.cat([single.bare_keys for single, _ in alone])) < 1e-3
    assert difference(rewrites.old_values, torch.cat([single.old_values for single, _ in alone])) < 1e-3
    assert difference(values.values, torch.cat([single.values for _, single in alone])) < 1e-3
    unsolved = solve(lm, FACTS, dataclasses.replace(ROME, value=dataclasses.replace(SETTINGS, steps=1)))[1]
    assert (values.values - rewrites.old_values).norm(dim=1).min() > 1
    assert (unsolved.nll - values.nll).min() > 0.02


@pytest.mark.parametrize("family", tiny.DECODERS)
def test_solution_equals_that_of_whole_forwards(family: str) -> None:
    lm = build(family)
    rewrites, values = solve(lm, FACTS[1:2])
    key, value = plain(lm, FACTS[1], ROME)
    assert difference(rewrites.mean_keys[0], key) < 1e-3
    assert difference(values.values[0], value) < 1e-3


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("family", tiny.DECODERS)
def test_edited_memory_answers_every_key_with_its_value(family: str, number: int, moment: Patch) -> None:
    lm = build(family)
    rewrites, values = solve(lm, FACTS[:number])
    memory = lm.memory(LAYER)
    assert difference(memory.read(rewrites.mean_keys), values.values) > 0.01
    edit = ROME.edit(lm, FACTS[:number])
    with edit.applied(lm):
        assert difference(memory.read(rewrites.mean_keys), values.values) < 1e-3
    assert edit.factors[LAYER][0].shape == (memory.d_ffn, number)
