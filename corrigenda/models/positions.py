"""Reading and changing an activation at chosen positions.

An activation has the shape (batch, position, width), or (batch, position, head, head size). Which of its positions are
meant is said by `At`:

- None: every position;
- an integer tensor (batch,): one position in each row;
- a boolean tensor (batch, position): the positions marked True, in row-major order.
"""

import torch
from torch import Tensor

At = Tensor | None


def index(at: Tensor) -> tuple[Tensor, Tensor]:
    """The rows and the positions, each (n,), that `at` names."""
    if at.dtype == torch.bool:
        rows, positions = at.nonzero(as_tuple=True)
        return rows, positions
    return torch.arange(at.shape[0], device=at.device), at


def take(activation: Tensor, at: At) -> Tensor:
    """The chosen positions, (n, width); the whole activation for None."""
    return activation if at is None else activation[index(at.to(activation.device))]


def put(activation: Tensor, at: At, value: Tensor) -> Tensor:
    """A copy of the activation with `value` at the chosen positions.

    `value` is broadcast to (n, width) (heads: (n, head, head size)), or to the activation's shape for None.
    """
    if at is None:
        # A copy, so that a family that goes on to add to the activation in place (Falcon) does not write into `value`.
        return value.to(activation).expand_as(activation).clone()
    where = index(at.to(activation.device))
    return activation.index_put(where, value.to(activation).expand(len(where[0]), *activation.shape[2:]))


def add(activation: Tensor, at: At, value: Tensor) -> Tensor:
    """A copy of the activation with `value` added at the chosen positions; shapes as in `put`."""
    if at is None:
        return activation + value.to(activation)
    where = index(at.to(activation.device))
    whole = value.to(activation).expand(len(where[0]), *activation.shape[2:])
    return activation.index_put(where, whole, accumulate=True)


def scale(activation: Tensor, at: At, factor: float | Tensor) -> Tensor:
    """A copy of the activation, multiplied by `factor` at the chosen positions; a tensor is broadcast over them."""
    chosen = take(activation, at)
    return put(activation, at, chosen * torch.as_tensor(factor, dtype=chosen.dtype, device=chosen.device))
