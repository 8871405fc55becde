"""The partial forward: recompute only layers >= l and positions >= p, exactly.

What lies below layer l or left of position p cannot have changed when something at (l, p) is touched: the states
that enter layer l come from a recorded run, and so do the attention keys and values of the earlier positions. The
model's own code runs all the same, with its block list in place: blocks below l hand their input on, block l is
given the recorded states, and the attention reads a cache made of the recorded tensors. So no family needs code of
its own here.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from corrigenda.forward.packing import packed
from corrigenda.models import positions
from corrigenda.models.bare import BareModel
from corrigenda.models.routes import Routes
from corrigenda.prompts import TokenBatch, shared_heads


@dataclass(frozen=True)
class Recording:
    """A forward whose states later forwards start from.

    Attributes:
        batch: the tokens that were run.
        states: for each layer asked for, what entered it: (batch, position, d_model).
        cache: for each layer, the attention's keys and values (batch, head, position, head size); None for a
            model that cannot go on from one.
        logits: at the positions asked for, (n, vocabulary); None if none were.
        tuples: whether this model's blocks return their state in a tuple.
        routes: what the applied edits that are routed by the prompt decided on each row.
    """

    batch: TokenBatch
    states: dict[int, Tensor]
    cache: tuple[tuple[Tensor, Tensor], ...] | None
    logits: Tensor | None
    tuples: bool
    routes: Routes


def forward_logits(lm: BareModel, batch: TokenBatch, at: positions.At = None) -> Tensor:
    """One plain forward: logits (n, vocabulary) at the chosen positions, (batch, position, vocabulary) for None.

    The unembedding, often the largest single product, runs at the chosen positions only.
    """
    inputs: dict[str, Any] = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "use_cache": False}
    return model_logits(lm, at, _routes(batch), **inputs)


@torch.no_grad()
def forward_to(lm: BareModel, batch: TokenBatch, layer: int) -> None:
    """Runs layers 0 to `layer` and stops there; for what hooks see on the way."""

    def stop(*_: Any) -> None:
        raise _ReachedError

    handle = lm.architecture.block(layer).register_forward_hook(stop)
    try:
        with lm.routing.told(_routes(batch)):
            lm.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False)
    except _ReachedError:
        pass
    finally:
        handle.remove()


@torch.no_grad()
def record(lm: BareModel, batch: TokenBatch, layers: Collection[int], logits_at: Tensor | None = None) -> Recording:
    """Runs a batch once and keeps what partial forwards start from.

    Args:
        lm: the model.
        batch: the prompts' tokens.
        layers: the layers at which partial forwards will start.
        logits_at: the positions whose logits are wanted, as in `positions.At`; None for none.
    """
    cache = DynamicCache() if lm.architecture.family.causal else None
    inputs: dict[str, Any] = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    if cache is not None:
        # Made without the config, so that a sliding window forgets nothing; the masks still know the window.
        inputs |= {"past_key_values": cache, "use_cache": True}
    none = torch.zeros_like(batch.input_ids, dtype=torch.bool)
    routes = _routes(batch)
    with _watching(lm, layers) as watched:
        logits = model_logits(lm, none if logits_at is None else logits_at, routes, **inputs)
    return Recording(
        batch=batch,
        states=watched.states,
        cache=_tensors(lm, cache, batch.input_ids.shape[1]),
        logits=None if logits_at is None else logits,
        tuples=watched.tuples,
        routes=routes,
    )


@torch.no_grad()
def record_shared(
    lm: BareModel, batch: TokenBatch, layers: Collection[int], limit: Tensor | None = None
) -> PartialForward:
    """Runs what several rows of a batch begin with once for all of them, and prepares the forward of the rest.

    Args:
        lm: the model.
        batch: the rows.
        layers: the layers at which later partial forwards will start.
        limit: (batch,), the first position of each row that must not be shared; by default its last.

    Returns:
        a partial forward from layer 0 of what each row does not share; its `record` gives the whole batch's recording.
    """
    sequences = [ids[:n].tolist() for ids, n in zip(batch.input_ids, batch.lengths.tolist(), strict=True)]
    limit = batch.lengths - 1 if limit is None else limit
    heads, rows, lengths = shared_heads(sequences, limit.tolist())
    # Routed edits decide on whole prompts: rows that begin alike may go different ways from their first token on.
    routed = lm.routing.active
    if not heads or routed or not lm.architecture.family.causal:
        heads, rows, lengths = [sequences[0][:1]], [0] * len(sequences), [0] * len(sequences)
    device = batch.lengths.device
    recording = record(lm, lm.batch(heads), layers)
    start, owners = torch.tensor(lengths, device=device), torch.tensor(rows, device=device)
    return PartialForward(lm, recording, 0, start, owners, batch, _routes(batch))


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
        layer: the first layer to run. With 0, rows may go on beyond what was recorded (`batch`); without `batch`, the
            states that entered layer 0 are used where the recording kept them.
        start: (n,), the first position to run in each row.
        rows: (n,), which row of the recording each row starts from; by default all, in order.
        batch: the rows' tokens where they differ from the recorded ones at or after `start`.
        routes: of the rows; by default what was decided in the recording, whatever changes above it.

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
    ) -> None:
        self._lm = lm
        self._tuples = recording.tuples
        self._recording = recording
        self.layer = layer
        device = recording.batch.input_ids.device
        rows = torch.arange(len(recording.batch), device=device) if rows is None else rows.to(device)
        self._owners = rows
        self._routes = recording.routes.rows(rows) if routes is None else routes
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
        self._states: Tensor | None = None
        # What enters layer 0 follows from the tokens, unless it was itself changed (noise on the embeddings).
        if layer > 0 or (own_tokens and 0 in recording.states):
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
        """Runs the rows.

        Args:
            at: local positions whose logits are wanted; None for all.
            states: what enters `layer` instead of the recorded states, (n, local position, d_model).

        Returns:
            (n', vocabulary) at the chosen positions, or (n, local position, vocabulary).
        """
        inputs = self._inputs()
        if self._cache:
            inputs |= {"past_key_values": _cache(self._cache), "use_cache": True}
        states = self._states if states is None else states
        with _skipping(self._lm, self.layer, states, self._tuples):
            return model_logits(self._lm, at, self._routes, **inputs)

    def before_running(self) -> tuple[Tensor, Tensor, DynamicCache]:
        """What a decoding goes on from: the tokens to run, the mask over the cache and them, and the cache."""
        return self._ids, self._mask, _cache(self._cache)

    def states_entering(self, layer: int, states: Tensor | None = None) -> Tensor:
        """Runs the rows up to a layer above and stops before it.

        Args:
            layer: which one; it has to lie above the partial forward's own.
            states: as in `logits`.

        Returns:
            what enters that layer, (n, local position, d_model); differentiable, as the logits are.
        """
        found: list[Tensor] = []

        def stop(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            found.append(args[0] if args else kwargs["hidden_states"])
            raise _ReachedError

        handle = self._lm.architecture.block(layer).register_forward_pre_hook(stop, with_kwargs=True)
        try:
            with suppress(_ReachedError):
                self.logits(None, states)
        finally:
            handle.remove()
        return found[0]

    @torch.no_grad()
    def record(self, layers: Collection[int], logits_at: Tensor | None = None) -> Recording:
        """Runs the rows from layer 0 and records them as if they had been run whole.

        Args:
            layers: as in `partial.record`; the recording this started from has to have kept them too.
            logits_at: the positions (in the whole rows, at or after the start) whose logits are wanted.

        Raises:
            ValueError: this partial forward does not start at layer 0.
        """
        if self.layer != 0:
            raise ValueError(f"only a partial forward from layer 0 records whole rows, this one starts at {self.layer}")
        cache = _cache(self._cache) if self._recording.cache is not None else None
        inputs = self._inputs()
        if cache is not None:
            inputs |= {"past_key_values": cache, "use_cache": True}
        none = torch.zeros_like(self._ids, dtype=torch.bool)
        at = none if logits_at is None else self.local(logits_at)
        with _watching(self._lm, layers) as watched:
            logits = model_logits(self._lm, at, self._routes, **inputs)
        # What ran stands behind the earlier positions, which end where the row's own run begins; now every position
        # gets its place in the whole row.
        before, width = int(self.start.max()), self._batch.input_ids.shape[1]
        index = torch.arange(width, device=self.start.device) + (before - self.start)[:, None]
        index = index.clamp(max=before + self._ids.shape[1] - 1)
        rows = torch.arange(len(self.start), device=self.start.device)
        tensors = _tensors(self._lm, cache, before + self._ids.shape[1])
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


class _Watched:
    """What `_watching` saw: what entered some layers, and whether blocks return tuples."""

    def __init__(self) -> None:
        self.states: dict[int, Tensor] = {}
        self.tuples = False


@contextmanager
def _watching(lm: BareModel, layers: Collection[int]) -> Iterator[_Watched]:
    """Keeps what enters some layers in the forwards inside the block."""
    watched = _Watched()

    def keep(layer: int) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            watched.states[layer] = (args[0] if args else kwargs["hidden_states"]).detach()

        return hook

    def look(_module: nn.Module, _args: Any, output: Any) -> None:
        watched.tuples = isinstance(output, tuple)

    with ExitStack() as stack:
        blocks = lm.architecture.blocks
        for layer in layers:
            stack.callback(blocks[layer].register_forward_pre_hook(keep(layer), with_kwargs=True).remove)
        stack.callback(blocks[0].register_forward_hook(look).remove)
        yield watched


class _ReachedError(Exception):
    """Raised when the last layer that was wanted is done."""


def _routes(batch: TokenBatch) -> Routes:
    """What routed edits are told of a batch's rows."""
    return Routes(batch.lengths if batch.prompts is None else batch.prompts)


def model_logits(lm: BareModel, at: positions.At, routes: Routes | None = None, **inputs: Any) -> Tensor:
    """A forward of the model whose head, often its largest single product, runs at the chosen positions only.

    Args:
        lm: the model.
        at: the positions; None for all.
        routes: of the rows, for routed edits.
        inputs: what the model's own forward takes; among it the tokens and the mask.

    Returns:
        (n, vocabulary) at the chosen positions, (batch, position, vocabulary) for None.
    """
    ids = inputs["input_ids"]
    real = inputs["attention_mask"][:, -ids.shape[1] :].bool()
    if at is None:
        with lm.routing.told(routes), packed(lm, real, None):
            return lm.model(**inputs).logits

    def choose(_module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # (n, 1, d_model): what follows the head in some families expects three dimensions.
        return (positions.take(args[0], at)[:, None], *args[1:])

    handle = lm.architecture.head.register_forward_pre_hook(choose)
    try:
        with lm.routing.told(routes), packed(lm, real, at):
            return lm.model(**inputs).logits[:, 0]
    finally:
        handle.remove()


@contextmanager
def _skipping(lm: BareModel, layer: int, states: Tensor | None, tuples: bool) -> Iterator[None]:
    """Blocks below `layer` hand their input on, and `states` enter `layer`."""

    def hand_on(hidden_states: Tensor, *_args: Any, **_kwargs: Any) -> Any:
        return (hidden_states, None) if tuples else hidden_states

    def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (states, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": states}

    with ExitStack() as stack:
        for block in lm.architecture.blocks[:layer]:
            previous = block.__dict__.get("forward")  # accelerate, for one, has put its own there
            block.forward = hand_on
            if previous is None:
                stack.callback(block.__delattr__, "forward")
            else:
                stack.callback(setattr, block, "forward", previous)
        if states is not None:
            handle = lm.architecture.block(layer).register_forward_pre_hook(enter, with_kwargs=True)
            stack.callback(handle.remove)
        yield


def _gather(tensor: Tensor, rows: Tensor, index: Tensor) -> Tensor:
    """From (batch, head, position, size), the positions `index` (n, p) of the rows (n,): (n, head, p, size)."""
    rows, index = rows.to(tensor.device), index.to(tensor.device)
    return tensor[rows[:, None], :, index].transpose(1, 2)


def _rows(tensor: Tensor, rows: Tensor) -> Tensor:
    return tensor[rows.to(tensor.device)]


def _cache(tensors: list[tuple[Tensor, Tensor]]) -> DynamicCache:
    """A cache over given tensors; it appends to copies, so the tensors serve again."""
    cache = DynamicCache()
    for keys, values in tensors:
        layer = DynamicLayer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


def _tensors(lm: BareModel, cache: DynamicCache | None, length: int) -> tuple[tuple[Tensor, Tensor], ...] | None:
    """What a forward left in its cache, or None (said once) where that is no complete set of keys and values."""
    layers = [] if cache is None else cache.layers
    tensors = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in layers]
    complete = len(tensors) == lm.architecture.n_layers and all(
        keys is not None and keys.ndim == 4 and keys.shape[2] == length for keys, _ in tensors
    )
    if complete:
        return tuple(tensors)  # type: ignore[arg-type]
    why = "does not keep its attention in the usual cache" if lm.architecture.family.causal else "is not causal"
    # The default filter of warnings shows a text once.
    warnings.warn(
        f"{lm.model.config.model_type}: partial forwards run all positions, since the model {why}", stacklevel=3
    )
    return None


def takes_position_ids(model: nn.Module) -> bool:
    """Whether a model is told its tokens' positions (BLOOM reads them off the mask)."""
    return "position_ids" in inspect.signature(model.forward).parameters
