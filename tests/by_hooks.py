"""What enters modules, by plain hooks of torch: with this the project's own ways to look in are compared."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from corrigenda import LanguageModel


@contextmanager
def entering(module: torch.nn.Module) -> Iterator[list[Tensor]]:
    """A list that gets the first argument of each call of a module inside the block."""
    seen: list[Tensor] = []
    handle = module.register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    try:
        yield seen
    finally:
        handle.remove()


def coefficients(lm: LanguageModel, layer: int, *rows: list[int]) -> Tensor:
    """What enters the matrix of the values, (token, d_ffn), of rows of tokens that run each by itself."""
    with entering(lm.architecture.values(layer)) as seen, torch.no_grad():
        for ids in rows:
            lm.model(input_ids=torch.tensor([ids]), use_cache=False)
    return torch.cat([m.reshape(-1, m.shape[-1]) for m in seen])
