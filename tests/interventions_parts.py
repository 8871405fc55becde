"""What the tests of interventions share."""

import contextlib

import tiny
import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.interventions import Action, Read, intervene
from corrigenda.forward.recording import forward_logits
from corrigenda.models.sites import WITHOUT_LAYER, Site
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
