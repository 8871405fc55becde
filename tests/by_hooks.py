"""What enters and leaves modules, by plain hooks of torch: with this the project's own ways to look in are compared.

Of several things that a module gives the first one is meant.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from corrigenda import LanguageModel


@contextmanager
def entering(module: nn.Module) -> Iterator[list[Tensor]]:
    """A list that gets the first argument of each call of a module inside the block."""
    seen: list[Tensor] = []
    with changed_input(module, lambda entered: seen.append(entered.clone())):  # others may go on in place
        yield seen


@contextmanager
def leaving(module: nn.Module) -> Iterator[list[Tensor]]:
    """A list that gets what each call of a module gives inside the block."""
    seen: list[Tensor] = []
    with changed(module, lambda _, output: seen.append(output.clone())):
        yield seen


@contextmanager
def changed_input(module: nn.Module, change: Callable[[Tensor], Tensor | None]) -> Iterator[None]:
    """Inside the block `change` of its first argument is given to a module, or that itself where it is None."""

    def hook(_module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return None if (new := change(args[0])) is None else ((new, *args[1:]), kwargs)
        return None if (new := change(kwargs["hidden_states"])) is None else (args, {**kwargs, "hidden_states": new})

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def changed(module: nn.Module, change: Callable[[Tensor, Tensor], Tensor | None]) -> Iterator[None]:
    """Inside the block a module gives `change` of its first argument and of its output, or that where it is None."""

    def hook(_module: object, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        several = isinstance(output, tuple)
        new = change(args[0] if args else kwargs.get("hidden_states"), output[0] if several else output)
        return (new, *output[1:]) if several and new is not None else new

    handle = module.register_forward_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def adding(lm: LanguageModel, layer: int, delta: Tensor) -> AbstractContextManager[None]:
    """Inside the block m `delta` joins the FFN's output at all tokens but a row's first; of rows that run alone."""

    def add(m: Tensor, output: Tensor) -> Tensor:
        change = m.reshape(-1, len(delta)) @ delta
        return output + torch.cat([torch.zeros_like(change[:1]), change[1:]]).view(output.shape)

    return changed(lm.architecture.values(layer), add)


def coefficients(lm: LanguageModel, layer: int, *rows: list[int]) -> Tensor:
    """What enters the matrix of the values, (token, d_ffn), of rows of tokens that run each by itself."""
    with entering(lm.architecture.values(layer)) as seen, torch.no_grad():
        for ids in rows:
            lm.model(input_ids=torch.tensor([ids]), use_cache=False)
    return torch.cat([m.reshape(-1, m.shape[-1]) for m in seen])


def logits(lm: LanguageModel, ids: list[int]) -> Tensor:
    """(position, vocabulary), of a row that runs by itself."""
    with torch.no_grad():
        return lm.model(input_ids=torch.tensor([ids])).logits[0]
