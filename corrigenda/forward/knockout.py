"""Attention knockout: edges between positions that attention may not use.

An edge (position q, position k) of a layer is what q reads of k there. It is taken away before the softmax, so that its
weight is zero and those of the other edges sum to one (Geva et al. 2023, "Dissecting Recall of Factual Associations in
Auto-Regressive Language Models", section 5): in the mask that every family gives its blocks.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from corrigenda.errors import UnsupportedModelError
from corrigenda.models.bare import BareModel
from corrigenda.models.families import name_of
from corrigenda.models.sites import entering

MASK = "attention_mask"
"""The argument by which transformers' blocks are told what may be read."""


@contextmanager
def knocked_out(lm: BareModel, layer: int, edges: Tensor) -> Iterator[None]:
    """Takes edges away from the attention of a layer in the forwards inside the block.

    Args:
        lm: the model.
        layer: which one; negative numbers count from the end.
        edges: (batch or 1, position, position read), True where the first may not read the second. In a partial
            forward whose rows all start at one position the first are local and the second those of the whole row.

    Raises:
        IndexError: the model has no such layer.
        UnsupportedModelError: in a forward: the model's attention takes another kind of mask (flash attention).
        ValueError: in a forward: a position is left with nothing to read, or the edges are of another shape.
    """
    layer = lm.architecture.numbered(layer)
    block = lm.architecture.block(layer)
    # The class's own: on a block that is skipped stands another.
    names = list(inspect.signature(type(block).forward).parameters)[1:]
    if MASK not in names:
        raise UnsupportedModelError(
            f"{name_of(lm.model)}: its blocks are not told by {MASK!r} what may be read; no edge can be knocked out"
        )
    place = names.index(MASK)

    def change(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        state = args[0] if args else kwargs["hidden_states"]
        by_position = len(args) > place
        mask = _without(lm, layer, args[place] if by_position else kwargs.get(MASK), state, edges)
        if by_position:
            return (*args[:place], mask, *args[place + 1 :]), kwargs
        return args, {**kwargs, MASK: mask}

    with entering(block, change):
        yield


def _without(lm: BareModel, layer: int, mask: Tensor | None, state: Tensor, edges: Tensor) -> Tensor:
    """A mask, (batch, head or 1, position, position read), without some edges: of its own kind, true or added."""
    edges = edges.to(state.device)
    if mask is None:
        mask = _whole(lm, state, edges)
    if mask.ndim != 4:
        raise UnsupportedModelError(
            f"{name_of(lm.model)}: its attention takes a mask of {mask.ndim} dimensions; edges can be knocked out of "
            "one of four (load the model with attn_implementation='sdpa' or 'eager')"
        )
    batch, (n, reads) = state.shape[0], mask.shape[2:]
    if edges.ndim != 3 or edges.shape[0] not in (1, batch) or edges.shape[1:] != (n, reads):
        raise ValueError(
            f"edges of shape {tuple(edges.shape)} do not fit the attention of layer {layer}: it has {batch} rows of "
            f"{n} positions that read {reads}"
        )
    edges = edges[:, None]
    # Some masks are longer than what there is to read, and none says a number where nothing may be read.
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    left = (allowed & ~edges).any(-1) | ~edges.any(-1)
    if not bool(left.all()):
        position = int((~left).nonzero()[0, -1])
        raise ValueError(
            f"layer {layer}: with these edges knocked out, the position {position} of those that run has nothing left "
            "to read; leave it itself, or the first position"
        )
    return mask & ~edges if mask.dtype == torch.bool else mask.masked_fill(edges, -torch.inf)


def _whole(lm: BareModel, state: Tensor, edges: Tensor) -> Tensor:
    """The mask that is meant where a model gives none, to be added: (1, 1, position, position read).

    It gives none where fused attention knows by itself what may be read: everything, or everything before.
    """
    n, reads = state.shape[1], edges.shape[-1]
    mask = torch.zeros(n, reads, dtype=state.dtype, device=state.device)
    if lm.architecture.family.causal:
        after = torch.ones(n, reads, dtype=torch.bool, device=state.device).triu(reads - n + 1)
        mask = mask.masked_fill(after, -torch.inf)
    return mask[None, None]
