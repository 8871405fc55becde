"""Interventions: looking into a forward, or changing it, at a site, at positions, by an action.

    with intervene(lm, Site("ffn", 6), Add(delta), at):                    # delta joins the FFN's output
        logits = forward_logits(lm, batch, batch.lengths - 1)
    with intervene(lm, Site("heads", 3), Read(), at) as seen:              # seen.value: (n, head, head size)
        forward_logits(lm, batch)

What is put in may ask for gradients; several act in the order they were opened; in a partial forward, whose positions
are local, they act as in a full one, from its layer on. (One primitive for all is the idea of pyvene: Wu et al. 2024.)
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from corrigenda.models import positions
from corrigenda.models.bare import BareModel
from corrigenda.models.positions import At
from corrigenda.models.sites import Site, through


class Reading:
    """What a `Read` saw: `value`, the chosen positions of the last forward, (n, width), or (batch, position, width).

    Heads have two dimensions, (head, head size), for the width. Part of the forward's graph of gradients. There is none
    before a forward ran.
    """

    value: Tensor


@dataclass(frozen=True, eq=False)
class Read:
    """Keeps what is there."""


@dataclass(frozen=True, eq=False)
class Add:
    """Adds `delta` to what is there, broadcast to (n, width) at n chosen positions, or to (batch, position, width)."""

    delta: Tensor

    def __call__(self, activation: Tensor, at: At) -> Tensor:
        """The whole activation with the sum at the chosen positions."""
        return positions.add(activation, at, self.delta)


@dataclass(frozen=True, eq=False)
class Replace:
    """Puts a value in the place of what is there; broadcast as in `Add`."""

    value: Tensor

    def __call__(self, activation: Tensor, at: At) -> Tensor:
        """The whole activation with the value at the chosen positions."""
        return positions.put(activation, at, self.value)


@dataclass(frozen=True, eq=False)
class Scale:
    """Multiplies what is there by a number, or a tensor broadcast as in `Add`; of (head, 1) each head by itself."""

    factor: float | Tensor

    def __call__(self, activation: Tensor, at: At) -> Tensor:
        """The whole activation with the product at the chosen positions."""
        return positions.scale(activation, at, self.factor)


@dataclass(frozen=True, eq=False)
class Apply:
    """Passes what is there through a function.

    It gets the chosen positions, (n, width), or the whole activation; what it returns, broadcast as in `Add`, stands in
    their place, None leaves them as they are.
    """

    function: Callable[[Tensor], Tensor | None]

    def __call__(self, activation: Tensor, at: At) -> Tensor | None:
        """The whole activation with the function's result at the chosen positions."""
        new = self.function(positions.take(activation, at))
        return None if new is None else positions.put(activation, at, new)


Action = Read | Add | Replace | Scale | Apply


@contextmanager
def intervene(lm: BareModel, site: Site, action: Action, at: At = None) -> Iterator[Reading]:
    """Acts at a site in the forwards inside the block.

    Args:
        lm: the model.
        site: where in the model.
        action: what is done there.
        at: at which positions (`corrigenda.models.positions`); None for all. In a partial forward they are local:
            ``partial.local(at)``.

    Yields:
        what a `Read` sees; empty for the other actions.

    Raises:
        IndexError: the model has no such layer.
        UnsupportedModelError: the site is not known in this model's family.
    """
    seen = Reading()

    def act(activation: Tensor) -> Tensor | None:
        if isinstance(action, Read):
            # A copy: some families go on to add to an output in place.
            seen.value = activation.clone() if at is None else positions.take(activation, at)
            return None
        return action(activation, at)

    with lm.alone, through(lm.architecture, site, act):
        yield seen
