"""Directions of the residual stream that say a token."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from corrigenda import LanguageModel
from corrigenda.forward.differentiable import differentiable
from corrigenda.forward.interventions import Apply, intervene
from corrigenda.forward.recording import forward_logits
from corrigenda.models.sites import Site
from corrigenda.prompts import TokenBatch


@differentiable()
def raising(lm: LanguageModel, batch: TokenBatch, at: Tensor, wanted: Sequence[Tensor]) -> list[Tensor]:
    """For each set of wanted tokens the directions, (n, d_model), that raise their logits most where a forward ends.

    A set has a token, (n,), for each of the n positions `at`. Its direction, of length one, float32, is its unembedding
    row, taken back through the model's final norm at the state that is there. What is open on the model (a memory's
    `capture`, say) sees the forward.
    """
    before_norm: list[Tensor] = []

    def leaf(state: Tensor) -> Tensor:
        before_norm.append(state.detach().requires_grad_())
        return before_norm[0]

    # What leaves the last block: the final norm, and whatever else a family has there, lies behind it.
    with intervene(lm, Site("block", -1), Apply(leaf), at):
        logits = forward_logits(lm, batch, at)
    directions = []
    for tokens in wanted:
        # Behind the last block no position acts on another, so that each gradient is of its own logit alone.
        chosen = logits.gather(1, tokens.to(logits.device)[:, None]).sum()
        [gradient] = torch.autograd.grad(chosen, before_norm[0], retain_graph=True)
        directions.append(nn.functional.normalize(gradient.float(), dim=1))
    return directions
