"""Running the feed-forward networks only at the positions that count.

Attention needs the rows of a batch side by side, padded to one length. An FFN acts on each position alone, and it is
where most of the time goes: so the padding is left out before it and put back (as zeros, which nobody reads) after it.
In the last block only the positions whose logits are wanted count at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from corrigenda.models import positions
from corrigenda.models.bare import BareModel
from corrigenda.models.sites import entering, leaving, looked_into


@contextmanager
def packed(lm: BareModel, real: Tensor, at: positions.At) -> Iterator[None]:
    """FFNs run at real positions only, and the last one at those positions `at` whose logits are wanted.

    Where somebody looks into an FFN (a hook on any of its modules; for the last one, on its block or the head) it runs
    whole, since what is seen there has to be (batch, position, width); and so it does in families that have no module
    of their own for it.

    Args:
        lm: the model.
        real: (batch, position), True where there is no padding.
        at: the positions that count in the last block; None for all.
    """
    last = lm.n_layers - 1
    with ExitStack() as stack:
        for layer in range(lm.n_layers):
            keep = real & _mask(at, real) if layer == last and at is not None else real
            module = lm.architecture.ffn(layer)
            watched = [lm.architecture.block(layer), lm.architecture.head] if layer == last else [module]
            if module is None or bool(keep.all()) or any(part is None or looked_into(part) for part in watched):
                continue
            rows, places = keep.nonzero(as_tuple=True)
            stack.enter_context(entering(module, _take(keep.shape, rows, places)))
            stack.enter_context(leaving(module, _put_back(keep.shape, rows, places)))
        yield


def _mask(at: Tensor, real: Tensor) -> Tensor:
    mask = torch.zeros_like(real)
    mask[positions.index(at.to(real.device))] = True
    return mask


def _take(shape: torch.Size, rows: Tensor, places: Tensor) -> Any:
    def chosen(value: Any) -> Any:
        if isinstance(value, Tensor) and value.shape[:2] == shape:
            return value[rows.to(value.device), places.to(value.device)][None]
        return value

    def take(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return tuple(map(chosen, args)), {name: chosen(value) for name, value in kwargs.items()}

    return take


def _put_back(shape: torch.Size, rows: Tensor, places: Tensor) -> Any:
    def put_back(output: Tensor | tuple[Tensor, ...]) -> Any:
        if isinstance(output, tuple):  # a mixture's, with what its router said
            return (put_back(output[0]), *output[1:])
        whole = output.new_zeros(*shape, output.shape[-1])
        return whole.index_put((rows.to(output.device), places.to(output.device)), output[0])

    return put_back
