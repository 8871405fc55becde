"""Running FFNs and projections only at the positions that count: not at padding, nor where no logits are wanted."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from corrigenda.models import positions
from corrigenda.models.bare import BareModel
from corrigenda.models.matrices import is_matrix
from corrigenda.models.sites import entering, leaving, looked_into

LEAST_PADDING = 0.1
"""Projections of the attention run whole where less is padding: taking it out and putting it back costs about that."""


@contextmanager
def packed(lm: BareModel, real: Tensor, at: positions.At) -> Iterator[None]:
    """FFNs and projections of the attention run at `real` positions only, the last FFN at those of `at`.

    Both are (batch, position). Where somebody looks into an FFN or an attention (a hook on any of its modules; for the
    last FFN, on its block or the head) it runs whole, since what is seen there has to be (batch, position, width); and
    so does the FFN in families that have no module of their own for it.
    """
    last = lm.n_layers - 1
    inside = _Places(real)
    wanted = inside if at is None else _Places(real & _mask(at, real))
    with ExitStack() as stack:
        for layer in range(lm.n_layers):
            attention, ffn = lm.architecture.attention(layer), lm.architecture.ffn(layer)
            places = wanted if layer == last else inside
            if layer == last and any(map(looked_into, (lm.architecture.block(layer), lm.architecture.head))):
                continue
            if ffn is not None and places.left_out and not looked_into(ffn):
                stack.enter_context(places.only(ffn))
            if inside.left_out >= LEAST_PADDING and not looked_into(attention):
                for module in filter(is_matrix, attention.modules()):
                    stack.enter_context(inside.only(module))
        yield


def _mask(at: Tensor, real: Tensor) -> Tensor:
    mask = torch.zeros_like(real)
    mask[positions.index(at.to(real.device))] = True
    return mask


class _Places:
    """Some positions of a batch, (batch, position): modules that act on each position alone run there only.

    `left_out` is the share of the others.
    """

    def __init__(self, keep: Tensor) -> None:
        self._shape = keep.shape
        self._index = keep.flatten().nonzero()[:, 0]
        self.left_out = 1 - len(self._index) / max(keep.numel(), 1)

    @contextmanager
    def only(self, module: nn.Module) -> Iterator[None]:
        """The module runs at these positions, and gives zeros at the others."""
        with entering(module, self._take), leaving(module, self._put_back):
            yield

    def _take(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return tuple(map(self._chosen, args)), {name: self._chosen(value) for name, value in kwargs.items()}

    def _chosen(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.shape[:2] == self._shape:
            return value.flatten(0, 1).index_select(0, self._index.to(value.device))[None]
        return value

    def _put_back(self, output: Any) -> Any:
        if isinstance(output, tuple):  # a mixture's, with what its router said
            return (self._put_back(output[0]), *output[1:])
        if not isinstance(output, Tensor) or output.shape[:2] != (1, len(self._index)):
            return None  # it was not called with a state of the batch
        whole = output.new_zeros(self._shape.numel(), *output.shape[2:])
        return whole.index_copy(0, self._index.to(output.device), output[0]).unflatten(0, self._shape)
