"""What the tests of ROME share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

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
SETTINGS = ValueSettings(steps=8, lr=0.2, weight_decay=0.02, early_stop_loss=-1.0)
FACTS = [
    Fact("the Eiffel tower", "{} is located in the city of", "Rome", "Paris"),
    Fact("Danielle Darrieux", "the mother tongue of {} is", "the English language", "French"),
    Fact("Big Ben", "in the city with {} on the river Thomas plays the", "guitar", "piano"),
]
ROME = Rome(bare_agreement=0.0, layer=LAYER, prefixes=PREFIXES, value=SETTINGS, flag_norm=1e9, refuse_norm=1e9)


def build(family: str) -> LanguageModel:
    """A random model with weights large enough that an FFN's output changes what is predicted."""
    return tiny.build(family, scale=8.0)


def some_moment(lm: LanguageModel, layer: int) -> Tensor:
    """A well-conditioned second moment: of random coefficients of which some vary together."""
    draw = torch.Generator().manual_seed(5)
    d_ffn = lm.memory(layer).d_ffn
    mixing = torch.eye(d_ffn) + torch.randn(d_ffn, d_ffn, generator=draw) / d_ffn**0.5
    keys = torch.randn(4 * d_ffn, d_ffn, generator=draw, dtype=torch.float64) @ mixing.double()
    return keys.T @ keys / len(keys)


Patch = Callable[[Tensor | None], None]


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


def cosine(left: Tensor, right: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(left.flatten(), right.flatten(), dim=0))
