"""The partial forward: recompute only layers >= l and positions >= p, exactly.

The states that enter layer l, and the attention keys and values of earlier positions, come from a recorded run. The
model's own code runs all the same, so that no family needs code of its own here: blocks below l hand their input on,
block l is given the recorded states, and the attention reads a cache made of the recorded tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from corrigenda.forward.recording import (
    ReachedError,
    Recording,
    cached,
    model_logits,
    stopping,
    takes_position_ids,
    watching,
)
from corrigenda.models import positions
from corrigenda.models.bare import BareModel
from corrigenda.models.routes import Routes
from corrigenda.models.sites import skipped, state_entering
from corrigenda.prompts import TokenBatch


class PartialForward:
    """Forwards that start from a recording at layer `layer` and, in each row, at position `start`.

    Prepared once and run as often as wanted (the steps of an optimisation, say): the recorded tensors are gathered
    here, not at each run. Differentiable in everything that is put into the layers from `layer` on. Positions are
    *local* in a partial forward: `local` translates.

    Where a model cannot start in the middle of a text (it is not causal, or does not keep its attention's keys and
    values in the usual cache) all positions run, from the layer on; this is said once, by a warning.

    Args:
        lm: the model that made the recording; it must not have changed below `layer` since.
        recording: where to start from.
        layer: the first layer to run. With 0, or with `states`, rows may go on beyond what was recorded (`batch`);
            without `batch`, the states that entered layer 0 are used where the recording kept them.
        start: (n,), the first position to run in each row.
        rows: (n,), which row of the recording each row starts from; by default all, in order.
        batch: the rows' tokens where they differ from the recorded ones at or after `start`.
        routes: of the rows; by default what was decided in the recording, whatever changes above it, or what was
            decided below `layer` where edits decide anew.
        states: what enters `layer`, (n, local position, d_model), where it is not what the recording kept.

    Raises:
        KeyError: the recording was not asked to keep the states that enter `layer`.
        ValueError: a start lies outside its row.
    """

    def __init__(
        self,
        lm: BareModel,
        recording: Recording,
        layer: int,
        start: Tensor,
        rows: Tensor | None = None,
        batch: TokenBatch | None = None,
        routes: Routes | None = None,
        states: Tensor | None = None,
    ) -> None:
        self._lm = lm
        self._tuples = recording.tuples
        self._recording = recording
        self.layer = layer
        device = recording.batch.input_ids.device
        rows = torch.arange(len(recording.batch), device=device) if rows is None else rows.to(device)
        self._owners = rows
        decided = recording.routes.below(layer) if recording.anew else recording.routes
        self._routes = decided.rows(rows) if routes is None else routes
        own_tokens = batch is None
        batch = recording.batch.rows(rows) if batch is None else batch
        start = start.to(device)
        if bool((start < 0).any()) or bool((start >= batch.lengths).any()):
            raise ValueError(f"start {start.tolist()} lies outside rows of {batch.lengths.tolist()} tokens")
        if recording.cache is None:
            start = torch.zeros_like(start)
        self.start = start
        self._batch = batch
        before, after = int(start.max()), int((batch.lengths - start).max())
        # Keys and values of the earlier positions stand to the left, ending where the row's own run begins, so that
        # distances between positions (a sliding window, ALiBi) are what they are in the whole row.
        earlier = torch.arange(before, device=device) - (before - start)[:, None]
        later = torch.arange(after, device=device) + start[:, None]
        self._mask = torch.cat([earlier >= 0, later < batch.lengths[:, None]], dim=1).long()
        later = later.clamp(max=batch.input_ids.shape[1] - 1)
        self._ids = batch.input_ids.gather(1, later)
        self._position_ids = later
        self._cache: list[tuple[Tensor, Tensor]] = []
        if before > 0:
            assert recording.cache is not None
            index = earlier.clamp(min=0)
            # A layer that is skipped needs no tensors, but the model asks the first one how long the cache is.
            empty = torch.zeros(1, 1, 1, 1, device=device).expand(len(rows), 1, before, 1)
            for number, (keys, values) in enumerate(recording.cache):
                if number < layer:
                    self._cache.append((empty, empty))
                else:
                    self._cache.append((_gather(keys, rows, index), _gather(values, rows, index)))
        self._states = states
        # What enters layer 0 follows from the tokens, unless it was itself changed (noise on the embeddings).
        if states is None and (layer > 0 or (own_tokens and 0 in recording.states)):
            states = recording.states[layer]
            inside = later.clamp(max=states.shape[1] - 1).to(states.device)
            self._states = states[rows[:, None].to(states.device), inside]

    @property
    def states(self) -> Tensor | None:
        """The recorded states that enter `layer`, (n, local position, d_model); None where the tokens' are computed."""
        return self._states

    def rows(self, rows: Tensor) -> PartialForward:
        """The same for some of the rows, (k,) indices."""
        chosen = copy.copy(self)
        chosen._batch = self._batch.rows(rows)
        for name in ("start", "_mask", "_ids", "_position_ids", "_owners"):
            setattr(chosen, name, getattr(self, name)[rows])
        chosen._states = None if self._states is None else self._states[rows.to(self._states.device)]
        chosen._cache = [(_rows(keys, rows), _rows(values, rows)) for keys, values in self._cache]
        chosen._routes = self._routes.rows(rows)
        return chosen

    def local(self, position: Tensor) -> Tensor:
        """Where a position (n,) of the whole row, or a mask (n, position) over it, lies in the partial forward.

        A mask's positions must lie at or after the row's start.
        """
        position = position.to(self.start.device)
        if position.dtype != torch.bool:
            return position - self.start
        width = self._ids.shape[1]
        index = torch.arange(width, device=self.start.device) + self.start[:, None]
        return position.gather(1, index.clamp(max=position.shape[1] - 1)) & (index < position.shape[1])

    def logits(self, at: positions.At = None, states: Tensor | None = None) -> Tensor:
        """Runs the rows: logits (n', vocabulary) at the local positions `at`, or all, (n, local position, vocabulary).

        `states`, (n, local position, d_model), enter `layer` instead of the recorded ones.
        """
        inputs = self._inputs()
        if self._cache:
            inputs |= {"past_key_values": cache_of(self._cache), "use_cache": True}
        states = self._states if states is None else states
        architecture = self._lm.architecture
        with ExitStack() as stack:
            stack.enter_context(skipped(architecture.skippable[: self.layer], self._tuples))
            if states is not None:
                stack.enter_context(state_entering(architecture.block(self.layer), lambda _: states, first=True))
            return model_logits(self._lm, at, self._routes, **inputs)

    def before_running(self) -> tuple[Tensor, Tensor, DynamicCache]:
        """What a decoding goes on from: the tokens to run, the mask over the cache and them, and the cache."""
        return self._ids, self._mask, cache_of(self._cache)

    def states_entering(self, layer: int, states: Tensor | None = None) -> Tensor:
        """Runs the rows up to a layer above and stops before it: what enters it, (n, local position, d_model).

        `states` as in `logits`; differentiable, as those are.
        """
        found: list[Tensor] = []

        def stop(state: Tensor) -> None:
            found.append(state)
            raise ReachedError

        with suppress(ReachedError), state_entering(self._lm.architecture.block(layer), stop, first=True):
            self.logits(None, states)
        return found[0]

    @torch.no_grad()
    def record(self, layers: Collection[int], logits_at: Tensor | None = None, until: int | None = None) -> Recording:
        """Runs the rows from layer 0 and records them as if they had been run whole.

        Arguments are those of `recording.record`; the recording this started from has to have kept the layers too, and
        `logits_at` are positions of the whole rows, at or after the start. Raises ValueError: this partial forward does
        not start at layer 0.
        """
        if self.layer != 0:
            raise ValueError(f"only a partial forward from layer 0 records whole rows, this one starts at {self.layer}")
        cache = cache_of(self._cache) if self._recording.cache is not None else None
        inputs = self._inputs()
        if cache is not None:
            inputs |= {"past_key_values": cache, "use_cache": True}
        none = torch.zeros_like(self._ids, dtype=torch.bool)
        at = none if logits_at is None else self.local(logits_at)
        logits: Tensor | None = None
        with watching(self._lm, layers) as watched, stopping(self._lm, until):
            logits = model_logits(self._lm, at, self._routes, **inputs)
        # What ran stands behind the earlier positions, which end where the row's own run begins; now every position
        # gets its place in the whole row.
        before, width = int(self.start.max()), self._batch.input_ids.shape[1]
        index = torch.arange(width, device=self.start.device) + (before - self.start)[:, None]
        index = index.clamp(max=before + self._ids.shape[1] - 1)
        rows = torch.arange(len(self.start), device=self.start.device)
        tensors = cached(self._lm, cache, before + self._ids.shape[1], until)
        states = {}
        for layer, later in watched.states.items():
            earlier = torch.arange(before, device=later.device) - (before - self.start.to(later.device))[:, None]
            whole = later
            if before:
                old = self._recording.states[layer]
                whole = torch.cat([old[self._owners[:, None].to(old.device), earlier.clamp(min=0)], later], dim=1)
            states[layer] = whole[rows[:, None].to(whole.device), index.to(whole.device)]
        return Recording(
            batch=self._batch,
            states=states,
            cache=None
            if tensors is None
            else tuple((_gather(k, rows, index), _gather(v, rows, index)) for k, v in tensors),
            logits=None if logits_at is None else logits,
            tuples=watched.tuples,
            routes=self._routes,
        )

    def _inputs(self) -> dict[str, Any]:
        inputs: dict[str, Any] = {"input_ids": self._ids, "attention_mask": self._mask, "use_cache": False}
        if takes_position_ids(self._lm.model):
            inputs["position_ids"] = self._position_ids
        return inputs


def _gather(tensor: Tensor, rows: Tensor, index: Tensor) -> Tensor:
    """From (batch, head, position, size), the positions `index` (n, p) of the rows (n,): (n, head, p, size)."""
    rows, index = rows.to(tensor.device), index.to(tensor.device)
    return tensor[rows[:, None], :, index].transpose(1, 2)


def _rows(tensor: Tensor, rows: Tensor) -> Tensor:
    return tensor[rows.to(tensor.device)]


def cache_of(tensors: list[tuple[Tensor, Tensor]]) -> DynamicCache:
    """A cache over given tensors; it appends to copies, so the tensors serve again."""
    cache = DynamicCache()
    for keys, values in tensors:
        layer = DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache
