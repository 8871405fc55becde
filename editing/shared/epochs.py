"""How editors learn facts: one after another, or in passes over shuffled mini-batches, and how far they are.

For the passes: Yang et al. 2026, "Fine-tuning Done Right in Model Editing": breadth first, every fact once before any
is seen again.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from corrigenda import Fact
from corrigenda.system.progress import counted, track
from editing.editor import EditRefusedError

T = TypeVar("T")


def in_turn(items: Sequence[T], editor: str, what: str = "fact") -> Iterable[T]:
    """The items, one after another; of several it is said how far the learning is."""
    if len(items) == 1:  # whoever asked for one says what is at work
        return items
    return track(items, f"{editor}: learning {counted(len(items), what)}", bar=False)


def in_epochs(
    editor: str,
    facts: Sequence[Fact],
    losses_of: Callable[[list[int]], Tensor],
    step: Callable[[Tensor], None],
    epochs: int,
    batch_size: int,
    stop: float | None,
    seed: int,
    beside: int = 0,
) -> list[dict[str, Any]]:
    """Learns facts until each one's loss is low: of each edited one its last loss, the passes, its loss in each.

    `losses_of` gives the losses of some facts, by their numbers, (n,), differentiable; `step` takes a step down the
    mean loss of a batch. A batch with no loss above `stop` is passed over, and learning ends after a pass in which each
    edited fact had none above it; None where every step is to be taken. The last `beside` facts are learned but not
    edited. Raises EditRefusedError: a loss is not finite.
    """
    shuffle = torch.Generator().manual_seed(seed)
    last = torch.full((len(facts),), math.inf)
    edited = len(facts) - beside
    history: list[list[float]] = []  # after each pass, of each fact
    passes: Iterable[int] = range(epochs)
    if len(facts) > batch_size:
        passes = track(passes, f"{editor}: at most {epochs} passes over {len(facts)} facts", bar=False)
    for _ in passes:
        for batch in torch.randperm(len(facts), generator=shuffle).split(batch_size):
            losses = losses_of(batch.tolist())
            last[batch] = losses.detach().cpu()
            if not bool(losses.isfinite().all()):
                lost = ", ".join(facts[number].id for number in batch.tolist())
                raise EditRefusedError(f"{editor}: the loss is not finite at fact {lost}")
            if stop is None or bool((losses > stop).any()):  # else Adam's momentum would carry it on
                step(losses.mean())
        history.append(last[:edited].tolist())
        if stop is not None and bool((last[:edited] <= stop).all()):
            break
    return [
        {"loss": losses[-1], "passes": len(history), "step_losses": list(losses)}
        for losses in zip(*history, strict=True)
    ]
