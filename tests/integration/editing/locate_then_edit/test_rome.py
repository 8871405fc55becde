"""ROME: against the authors' values, against plain whole forwards, and its guards."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import tiny
import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from editing import Rome, ValueSettings
from editing.locate_then_edit.keys import bare_keys, mean_keys
from editing.locate_then_edit.prompts import Prompts, build_prompts, run_prompts
from editing.locate_then_edit.targets import TargetValues, old_values, solve_target_values

LAYER = 1
PREFIXES = ("", "red green . ", "the river is in the north . ")
# Fit for random models, which need a longer way than trained ones; no fact stops early.
SETTINGS = ValueSettings(steps=8, lr=0.2, weight_decay=0.02, early_stop_loss=-1.0)
# Subjects, prompts and targets of different lengths.
FACTS = [
    Fact("the Eiffel tower", "{} is located in the city of", "Rome", "Paris"),
    Fact("Danielle Darrieux", "the mother tongue of {} is", "the English language", "French"),
    Fact("Big Ben", "in the city with {} on the river Thomas plays the", "guitar", "piano"),
]
ROME = Rome(bare_agreement=0.0, layer=LAYER, prefixes=PREFIXES, value=SETTINGS, flag_norm=1e9, refuse_norm=1e9)


def build(family: str) -> LanguageModel:
    """A random model with weights large enough that an FFN's output changes what is predicted."""
    return tiny.build(family, scale=8.0)


@dataclasses.dataclass(frozen=True)
class Rewrites:
    """What one run of some facts' prompts gives at ROME's layer."""

    prompts: Prompts
    mean_keys: Tensor
    bare_keys: Tensor
    old_values: Tensor


def solve(lm: LanguageModel, facts: Sequence[Fact], rome: Rome = ROME) -> tuple[Rewrites, TargetValues]:
    assert rome.layer is not None
    assert rome.prefixes is not None
    layer = rome.layer
    prompts = build_prompts(lm, facts, rome.prefixes, rome.value.kl_prompt, rome.value.kl_position)
    run = run_prompts(lm, prompts, [layer])
    rewrites = Rewrites(prompts, mean_keys(run, layer), bare_keys(run, layer), old_values(run, layer))
    return rewrites, solve_target_values(lm, run, layer, rome.value)


def difference(left: Tensor, right: Tensor) -> float:
    """The largest relative difference of two rows."""
    return float(((left - right).norm(dim=-1) / right.norm(dim=-1)).max())


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
