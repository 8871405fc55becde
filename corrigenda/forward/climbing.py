"""Rows that are run from the bottom up, while layers above are written one after another."""

import torch
from torch import Tensor

from corrigenda.forward.interventions import Read, intervene
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import watching
from corrigenda.forward.shared import Beginnings, Shares
from corrigenda.models.bare import BareModel
from corrigenda.models.sites import Site
from corrigenda.prompts import TokenBatch


class Climb:
    """Some rows, and how far up they have been run.

    What rows begin with in common runs once for all of them, at each look from the bottom: it is little.

    Args:
        lm: the model.
        batch: the rows.
        at: (row,), the position in each that is looked at; what comes before it may be shared.

    Attributes:
        layer: the layer that has been reached: nothing below it may change any more.
    """

    def __init__(self, lm: BareModel, batch: TokenBatch, at: Tensor) -> None:
        self._lm = lm
        self._batch = batch
        self._at = at
        self._shares = Shares.of(lm, batch, limit=at)
        self._states: Tensor | None = None
        self.layer = 0

    @torch.no_grad()
    def look(self, layer: int, beyond: Site, which: Tensor) -> tuple[Tensor, Tensor]:
        """Climbs to a layer and reads all rows' keys there, (row, width); and what is at `beyond` in some, (n, width).

        `beyond` lies in the same layer or above it, `which`, (n,), are those rows; all at the rows' positions. Raises
        ValueError: the layer lies below the one that was reached, or `beyond` below it.
        """
        top = beyond.layer
        whole = self._lm.routing.active  # an edit may decide by what enters a layer further down: all run, each time
        if top is None or not self.layer <= layer <= top:
            raise ValueError(f"from layer {self.layer} one climbs to layers above it, not to {layer} and then {top}")
        shared = Beginnings(self._lm, self._shares.heads, until=top)
        parts = (self._batch, self._shares.start, self._shares.owners)
        forward = shared.rest(*parts, 0 if self._states is None else self.layer, self._states)
        at = forward.local(self._at)
        entered = [layer] if layer > self.layer and not whole else []
        with watching(self._lm, entered) as watched, self._lm.memory(layer).capture_key(at) as seen:
            if top > layer and not whole:
                left = forward.states_entering(layer + 1)
            else:
                with intervene(self._lm, beyond, Read(), at) as further:
                    _run(self._lm, forward, top, at)
        if whole:
            self.layer, self._states = layer, None
        elif entered:
            self.layer, self._states = layer, watched.states[layer]
        which = which.to(at.device)
        if top == layer or whole:
            return seen.coefficients, further.value[which]
        if not len(which):
            return seen.coefficients, seen.output[:0]
        forward = shared.rest(*parts, layer + 1, left).rows(which)
        with intervene(self._lm, beyond, Read(), at[which]) as further:
            _run(self._lm, forward, top, at[which])
        return seen.coefficients, further.value


def _run(lm: BareModel, forward: PartialForward, top: int, at: Tensor) -> None:
    """Runs a partial forward with its layers up to `top`."""
    if top + 1 < lm.n_layers:
        forward.states_entering(top + 1)
    else:
        forward.logits(at)
