"""The three places of a layer that tracing restores: the block's output, the FFN's and the attention's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

from torch import Tensor, nn

from corrigenda import LanguageModel

Site = Literal["block", "ffn", "attention"]
SITES: tuple[Site, ...] = get_args(Site)


@contextmanager
def through(lm: LanguageModel, site: Site, layer: int, change: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """Passes the output of a site, (batch, position, d_model), through a function in the forwards inside the block.

    Args:
        lm: the model.
        site: "block" for the residual stream after the layer, "ffn" and "attention" for what these add to it.
        layer: which layer.
        change: gets the output; what it returns stands in its place, None leaves it as it is.
    """
    if site == "ffn":
        with lm.memory(layer).through(change):
            yield
        return
    module = lm.architecture.block(layer) if site == "block" else lm.architecture.attention(layer)

    def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
        new = change(output[0] if isinstance(output, tuple) else output)
        if new is None:
            return None
        return (new, *output[1:]) if isinstance(output, tuple) else new

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()
