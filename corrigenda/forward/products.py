"""Matrix products in bfloat16 inside a model whose weights and sums are in float32."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from corrigenda.models.bare import BareModel
from corrigenda.models.matrices import stores_transposed

logger = logging.getLogger(__name__)


@contextmanager
def bfloat16_products(lm: BareModel, first: int = 0) -> Iterator[None]:
    """Within the block, the linear maps of the model's blocks from `first` on multiply in bfloat16.

    They can be differentiated in what enters them. Maps that are not plain float32 (quantised ones, classes of their
    own as Falcon's) stay as they are; where there are no others, a warning says so. The copies of the weights take half
    as much memory as the weights.
    """
    maps: list[Any] = [
        part
        for block in lm.architecture.blocks[first:]
        for part in block.modules()
        if type(part) in (nn.Linear, Conv1D) and part.weight.dtype == torch.float32 and "forward" not in vars(part)
    ]
    if not maps and lm.dtype == torch.float32:
        logger.warning("%s has no linear maps of a kind that can multiply in bfloat16: nothing is faster", lm.name)
    try:
        for part in maps:
            part.forward = _in_bfloat16(part)
        yield
    finally:
        for part in maps:
            vars(part).pop("forward", None)


def _in_bfloat16(part: nn.Linear | Conv1D) -> Callable[[Tensor], Tensor]:
    weight = part.weight.detach().to(torch.bfloat16)
    weight = weight.T if stores_transposed(part) else weight
    bias = None if part.bias is None else part.bias.detach()

    def forward(states: Tensor) -> Tensor:
        product = functional.linear(states.to(torch.bfloat16), weight).to(states.dtype)
        return product if bias is None else product + bias

    return forward
