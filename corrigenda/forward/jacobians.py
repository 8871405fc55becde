"""Jacobians of the last state of a text with respect to what enters layers at an earlier position, or at the last."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from corrigenda.forward.differentiable import differentiable
from corrigenda.forward.interventions import Add, Read, intervene
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import Recording, stopping
from corrigenda.models.bare import BareModel
from corrigenda.models.sites import Site

ROWS = 192
"""Rows of a Jacobian that one backward computes."""
HELD = "corrigenda_held"
"""transformers' name of the attention in which keys and values of earlier positions are held."""


def _held_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention (batch, head, position, d) with no gradients of what is in the cache.

    The fused kernel computes them for every position, one row of a Jacobian after the other: most of its backward.
    """
    batch, heads, run, width = query.shape
    groups, earlier = key.shape[1], key.shape[2] - run
    query = query.reshape(batch, groups, heads // groups * run, width) * (width**-0.5 if scaling is None else scaling)
    keys, values = ((each[:, :, :earlier].detach(), each[:, :, earlier:]) for each in (key, value))
    scores = torch.cat([query @ each.mT for each in keys], -1).unflatten(2, (heads // groups, run))
    weights = (scores + attention_mask[:, :, None, :, : key.shape[2]]).softmax(-1).flatten(2, 3)
    found = weights[..., :earlier] @ values[0] + weights[..., earlier:] @ values[1]
    return found.view(batch, heads, run, value.shape[-1]).transpose(1, 2).contiguous(), None


AttentionInterface.register(HELD, _held_attention)
AttentionMaskInterface.register(HELD, eager_mask)


@contextmanager
def _earlier_held(lm: BareModel) -> Iterator[None]:
    """Forwards inside the block take no gradients of earlier positions' keys and values, where they would be fused."""
    config = lm.model.config.get_text_config()
    before = config._attn_implementation
    try:
        if before == "sdpa":
            config._attn_implementation = HELD
        yield
    finally:
        config._attn_implementation = before


@differentiable()
def last_state_jacobians(lm: BareModel, recording: Recording, row: int, position: int, layers: Sequence[int]) -> Tensor:
    """The Jacobians do / ds, (layer, d_model, d_model): o a row's last state, s what enters a layer at one position.

    What enters the layer at other positions is held; row i is the gradient of o's dimension i. One forward, of the
    tokens from the position on and from the lowest of the layers (whose entering states the recording has), and d_model
    backwards give those of all layers.
    """
    device = recording.batch.lengths.device
    rows, start = torch.tensor([row], device=device), torch.tensor([position], device=device)
    forward = PartialForward(lm, recording, min(layers), start, rows)
    at, last = forward.local(start), forward.local(recording.batch.lengths[rows] - 1)
    width = lm.memory(0).d_model
    # Nothing is added; but it asks for gradients, and its gradient is that of the state it joins.
    added = [torch.zeros(1, width, dtype=lm.dtype, device=lm.device, requires_grad=True) for _ in layers]
    with ExitStack() as stack:
        for layer, delta in zip(layers, added, strict=True):
            stack.enter_context(intervene(lm, Site("residual_before", layer), Add(delta), at))
        seen = stack.enter_context(intervene(lm, Site("block", lm.n_layers - 1), Read(), last))
        with _earlier_held(lm), stopping(lm, lm.n_layers - 1):
            forward.logits(last)
    units = torch.eye(width, dtype=seen.value.dtype, device=seen.value.device)[:, None]
    found = torch.empty(len(layers), width, width, dtype=lm.dtype, device=lm.device)
    for begin in range(0, width, ROWS):
        some = units[begin : begin + ROWS]
        gradients = torch.autograd.grad(seen.value, added, some, is_grads_batched=True, retain_graph=True)
        for place, gradient in enumerate(gradients):
            found[place, begin : begin + ROWS] = gradient[:, 0]
    return found
