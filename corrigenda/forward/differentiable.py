"""Where gradients are taken: whatever the caller has switched off."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from corrigenda.errors import InferenceModeError


@contextmanager
def differentiable() -> Iterator[None]:
    """A block, or as a decorator a function, in which autograd is on, also under `torch.no_grad`.

    Raises:
        InferenceModeError: under `torch.inference_mode`, whose tensors no gradient can go through.
    """
    if torch.is_inference_mode_enabled():
        raise InferenceModeError(
            "gradients are needed here, and torch.inference_mode is on: leave its block, or use torch.no_grad, which "
            "may stay on"
        )
    with torch.enable_grad():
        yield
