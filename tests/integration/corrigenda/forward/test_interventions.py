"""Interventions: each action by hand, in every family, in full and partial forwards."""

from __future__ import annotations

import contextlib

import pytest
import tiny
import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.interventions import Action, Add, Apply, Read, Replace, Scale, intervene
from corrigenda.forward.recording import forward_logits
from corrigenda.models.sites import SITES, WITHOUT_LAYER, Site
from corrigenda.prompts import TokenBatch

LAYER = 2

SEQUENCES = [[5, 6, 7, 8, 9, 20, 21], [10, 11, 12, 22], [13, 14, 15, 16, 17, 18]]

AT = torch.tensor([4, 1, 3])

ROWS = torch.arange(3)


def site(name: str, layer: int = LAYER) -> Site:
    return Site(name, None if name in WITHOUT_LAYER else layer)  # type: ignore[arg-type]


def a_batch(lm: LanguageModel) -> TokenBatch:
    return lm.batch(SEQUENCES)


def width(lm: LanguageModel, name: str) -> tuple[int, ...]:
    if name == "heads":
        return 4, tiny.WIDTH // 4
    return (lm.memory(LAYER).d_ffn,) if name == "coefficients" else (tiny.WIDTH,)


def hooks(lm: LanguageModel) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in lm.model.modules())


def seen_at(lm: LanguageModel, name: str, action: Action | None, at: Tensor | None) -> tuple[Tensor, Tensor]:
    """What is at a site after an action, the whole of it; and the logits at all real positions."""
    batch = a_batch(lm)
    with contextlib.ExitStack() as stack, torch.no_grad():
        if action is not None:
            stack.enter_context(intervene(lm, site(name), action, at))
        seen = stack.enter_context(intervene(lm, site(name), Read()))
        logits = forward_logits(lm, batch)
    return seen.value, logits[batch.attention_mask.bool()]


@pytest.mark.parametrize("name", SITES)
@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_each_action_by_hand(family: str, name: str) -> None:
    lm = tiny.build(family)
    plain, logits = seen_at(lm, name, None, None)
    value = torch.randn(3, *width(lm, name), generator=torch.Generator().manual_seed(1))
    chosen = plain[ROWS, AT]
    for action, expected in (
        (Add(value), chosen + value),
        (Replace(value), value),
        (Scale(-2.0), -2.0 * chosen),
        (Apply(lambda x: x.flip(0)), chosen.flip(0)),
    ):
        found, changed = seen_at(lm, name, action, AT)
        whole = plain.clone()
        whole[ROWS, AT] = expected
        assert torch.equal(found, whole)
        assert not torch.allclose(changed, logits, atol=1e-3)
    for action in (Read(), Apply(lambda _: None), Scale(1.0)):
        found, same = seen_at(lm, name, action, AT)
        assert torch.equal(found, plain)
        assert torch.equal(same, logits)
    assert hooks(lm) == 0
