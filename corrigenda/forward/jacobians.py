"""Jacobians of the last state of a text with respect to what enters layers at an earlier position, or at the last."""

from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from corrigenda.forward.differentiable import differentiable
from corrigenda.forward.interventions import Add, Read, intervene
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import Recording, stopping
from corrigenda.models.bare import BareModel
from corrigenda.models.sites import Site

ROWS = 128
"""Rows of a Jacobian that one backward computes. Of more the gradients of keys are so large that malloc maps each."""


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
        with stopping(lm, lm.n_layers - 1):
            forward.logits(last)
    units = torch.eye(width, dtype=seen.value.dtype, device=seen.value.device)[:, None]
    found = torch.empty(len(layers), width, width, dtype=lm.dtype, device=lm.device)
    for begin in range(0, width, ROWS):
        some = units[begin : begin + ROWS]
        gradients = torch.autograd.grad(seen.value, added, some, is_grads_batched=True, retain_graph=True)
        for place, gradient in enumerate(gradients):
            found[place, begin : begin + ROWS] = gradient[:, 0]
    return found
