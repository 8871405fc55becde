"""Plain forwards: logits at chosen positions, and recordings, from which partial forwards start.

The unembedding, often the largest single product of a forward, runs at the positions only whose logits are wanted.
"""

import inspect
import warnings
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from corrigenda.forward.packing import packed
from corrigenda.models import positions
from corrigenda.models.bare import BareModel
from corrigenda.models.routes import Routes
from corrigenda.models.sites import leaving, state_entering
from corrigenda.prompts import TokenBatch


@dataclass(frozen=True)
class Recording:
    """A forward whose states later forwards start from.

    Attributes:
        batch: the tokens that were run.
        states: for each layer asked for, what entered it: (batch, position, d_model).
        cache: for each layer, the attention's keys and values (batch, head, position, head size); None for a
            model that cannot go on from one, or where edits decide anew.
        logits: at the positions asked for, (n, vocabulary); None if none were.
        tuples: whether this model's blocks return their state in a tuple.
        routes: what the applied edits that are routed by the prompt decided on each row.
        anew: whether these decide again in partial forwards.
    """

    batch: TokenBatch
    states: dict[int, Tensor]
    cache: tuple[tuple[Tensor, Tensor], ...] | None
    logits: Tensor | None
    tuples: bool
    routes: Routes
    anew: bool = False


def forward_logits(lm: BareModel, batch: TokenBatch, at: positions.At = None) -> Tensor:
    """One plain forward: logits (n, vocabulary) at the chosen positions, (batch, position, vocabulary) for None.

    The unembedding, often the largest single product, runs at the chosen positions only.
    """
    inputs: dict[str, Any] = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "use_cache": False}
    return model_logits(lm, at, routes_of(batch), **inputs)


@torch.no_grad()
def forward_to(lm: BareModel, batch: TokenBatch, layer: int) -> None:
    """Runs layers 0 to `layer` and stops there; for what hooks see on the way."""
    with lm.alone, stopping(lm, layer), lm.routing.using(routes_of(batch)):
        lm.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False)


@torch.no_grad()
def record(
    lm: BareModel,
    batch: TokenBatch,
    layers: Collection[int],
    logits_at: Tensor | None = None,
    until: int | None = None,
    anew: bool = False,
) -> Recording:
    """Runs a batch once and keeps what partial forwards start from at some layers.

    `logits_at` are the positions whose logits are wanted (`positions.At`; None for none). With `until` that layer is
    the last that is run, for partial forwards that end there, too; there are no logits then. With `anew` edits that are
    routed by the prompt decide again in partial forwards, by what enters their first layer and by what lies above: on
    whole rows, so that there is no cache where such an edit is applied.
    """
    anew = anew and lm.routing.active
    cache = DynamicCache() if lm.architecture.goes_on else None
    inputs: dict[str, Any] = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    if cache is not None:
        # Made without the config, so that a sliding window forgets nothing; the masks still know the window.
        inputs |= {"past_key_values": cache, "use_cache": True}
    none = torch.zeros_like(batch.input_ids, dtype=torch.bool)
    routes = routes_of(batch)
    logits: Tensor | None = None
    with watching(lm, layers) as watched, stopping(lm, until):
        logits = model_logits(lm, none if logits_at is None else logits_at, routes, **inputs)
    return Recording(
        batch=batch,
        states=watched.states,
        cache=None if anew else cached(lm, cache, batch.input_ids.shape[1], until),
        logits=None if logits_at is None else logits,
        tuples=watched.tuples,
        routes=routes,
        anew=anew,
    )


class Watched:
    """What `watching` sees: what entered some layers, and whether blocks return tuples."""

    def __init__(self) -> None:
        self.states: dict[int, Tensor] = {}
        self.tuples = False


@contextmanager
def watching(lm: BareModel, layers: Collection[int]) -> Iterator[Watched]:
    """Keeps what enters some layers in the forwards inside the block."""
    watched = Watched()

    def keep(layer: int) -> Any:
        def kept(state: Tensor) -> None:
            watched.states[layer] = state.detach()

        return kept

    def look(output: Any) -> None:
        watched.tuples = isinstance(output, tuple)

    with ExitStack() as stack:
        blocks = lm.architecture.blocks
        for layer in layers:
            stack.enter_context(state_entering(blocks[layer], keep(layer), first=True))
        stack.enter_context(leaving(blocks[0], look))
        yield watched


class ReachedError(Exception):
    """Stops a forward where what was wanted has been reached."""


@contextmanager
def stopping(lm: BareModel, layer: int | None) -> Iterator[None]:
    """A forward inside the block ends with a layer, and so does the block; None for a whole forward."""

    def stop(_output: Any) -> None:
        raise ReachedError

    with ExitStack() as stack:
        stack.enter_context(suppress(ReachedError))
        if layer is not None:
            stack.enter_context(leaving(lm.architecture.block(layer), stop))
        yield


def routes_of(batch: TokenBatch) -> Routes:
    """What routed edits are told of a batch's rows."""
    return Routes(batch.lengths if batch.prompts is None else batch.prompts)


def model_logits(lm: BareModel, at: positions.At, routes: Routes | None = None, **inputs: Any) -> Tensor:
    """A forward of the model whose head, often its largest single product, runs at the positions `at` only.

    `inputs` are what the model's own forward takes. Logits are (n, vocabulary), for None (batch, position, vocabulary).
    """
    ids = inputs["input_ids"]
    real = inputs["attention_mask"][:, -ids.shape[1] :].bool()
    if at is None:
        with lm.alone, lm.routing.using(routes), packed(lm, real, None):
            return lm.model(**inputs).logits

    def choose(state: Tensor) -> Tensor:
        # (n, 1, d_model): what follows the head in some families expects three dimensions.
        return positions.take(state, at)[:, None]

    with lm.alone, lm.routing.using(routes), packed(lm, real, at), state_entering(lm.architecture.head, choose):
        return lm.model(**inputs).logits[:, 0]


def cached(
    lm: BareModel, cache: DynamicCache | None, length: int, until: int | None = None
) -> tuple[tuple[Tensor, Tensor], ...] | None:
    """What a forward of `length` tokens left in its cache; None (said once) where keys and values are not complete.

    `until` is the last layer that it ran; None for all.
    """
    n_layers = lm.architecture.n_layers if until is None else until + 1
    # Where a forward went on from a cache, those above have what was there before.
    layers = [] if cache is None else cache.layers[: None if until is None else n_layers]
    tensors = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in layers]
    complete = len(tensors) == n_layers and all(
        keys is not None and keys.ndim == 4 and keys.shape[2] == length for keys, _ in tensors
    )
    if complete:
        return tuple(tensors)  # type: ignore[arg-type]
    if lm.architecture.has_encoder:  # as the documentation says: what a row's decoder runs is short
        return None
    why = "does not keep its attention in the usual cache" if lm.architecture.family.causal else "is not causal"
    # The default filter of warnings shows a text once.
    warnings.warn(
        f"{lm.model.config.model_type}: partial forwards run all positions, since the model {why}", stacklevel=3
    )
    return None


def takes_position_ids(model: nn.Module) -> bool:
    """Whether a model is told its tokens' positions (BLOOM reads them off the mask)."""
    return "position_ids" in inspect.signature(model.forward).parameters
