"""Coefficients and gradients at the outputs of feed-forward networks, of several layers in one forward and backward."""

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from corrigenda.forward.differentiable import differentiable
from corrigenda.forward.recording import forward_logits
from corrigenda.models.bare import BareModel
from corrigenda.prompts import TokenBatch


@dataclass(frozen=True, eq=False)
class OutputGradients:
    """What one layer's feed-forward network did at n positions, and what a loss says of it; on the CPU.

    In float32; of a float64 model in float64.

    Attributes:
        coefficients: m, (n, d_ffn).
        outputs: FFN(x), (n, d_model).
        gradients: of the loss with respect to FFN(x), (n, d_model).
    """

    coefficients: Tensor
    outputs: Tensor
    gradients: Tensor


@differentiable()
def output_gradients(
    lm: BareModel, batch: TokenBatch, at: Tensor, layers: Collection[int], loss: Callable[[Tensor], Tensor]
) -> dict[int, OutputGradients]:
    """By layer the coefficients and gradients of a batch, run forward and back once.

    `at`, (batch, position), is True at the n positions that are looked at; `loss` takes the logits there, (n,
    vocabulary), to a number. The gradient at a position counts what it does to the logits of later positions, too.
    Below the lowest of the layers nothing is kept for the way back.
    """
    memories = {layer: lm.memory(layer) for layer in layers}
    n = int(at.sum())
    added = {
        # Nothing is added; but it asks for gradients, and its gradient is that of the output it joins.
        layer: torch.zeros(n, memory.d_model, dtype=memory.values.dtype, device=memory.values.device).requires_grad_()
        for layer, memory in memories.items()
    }
    with ExitStack() as stack:
        seen = {layer: stack.enter_context(memory.capture(at)) for layer, memory in memories.items()}
        for layer, memory in memories.items():
            stack.enter_context(memory.add(added[layer], at))
        logits = forward_logits(lm, batch, at)
    gradients = torch.autograd.grad(loss(logits), list(added.values()))
    return {
        layer: OutputGradients(*(_kept(part) for part in (seen[layer].coefficients, seen[layer].output, gradient)))
        for layer, gradient in zip(added, gradients, strict=True)
    }


def _kept(part: Tensor) -> Tensor:
    part = part.detach().cpu()
    return part if part.dtype == torch.float64 else part.float()
