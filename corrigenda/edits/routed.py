"""Edits that answer for some rows of a forward only: which ones is decided at the prompt, and stays so.

A side memory or a codebook is beside the model, and something has to say when it speaks. Here that is said for each row
of a batch by itself, when the row's prompt is seen, and then holds for all that follows this prompt: generated tokens,
tokens under teacher forcing, forwards that start in the middle of a recorded text.

Where a prompt ends is told by who runs the forward (`Routes.prompts`, from `TokenBatch.prompts`). A forward that nobody
told anything, such as those of transformers' own `generate`, is read like this: with an empty cache or none, all its
tokens are the prompt; with a filled cache it continues the rows of that cache.

`activated` tells in which rows the edits that are applied to a model answered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from corrigenda.edits.edit import Editable, WrongModelError
from corrigenda.edits.hooked import HookedEdit
from corrigenda.models.routes import MAIN, Activations, Passage, Routes
from corrigenda.models.sites import entering, leaving


def activated(lm: Editable) -> AbstractContextManager[Activations]:
    """Collects, inside a ``with`` block, in which rows the edits that are applied to a model answer.

    ::

        with activated(lm) as seen:
            score(lm, queries)
        seen.share  # of the prompts that were run; None where no applied edit is routed
        seen.rows   # one answer for each, in the order in which they were run
    """
    return lm.routing.watched()


class RoutedLayer(ABC):
    """What answers at one layer's FFN, in the rows that it decides on; a routed edit is made of one or several.

    Attributes:
        layer: the layer.
        module: the name of the module that holds the layer's values.
        kind: of the edit.
    """

    layer: int
    module: str
    kind: ClassVar[str]

    @property
    @abstractmethod
    def _width(self) -> int:
        """The width of the coefficients that it reads."""

    @abstractmethod
    def _on(self, device: torch.device) -> Any:
        """What `_route` and `_answer` need of it, on the model's device."""

    @abstractmethod
    def _route(self, placed: Any, coefficients: Tensor, passage: Passage) -> Tensor:
        """Which memory answers in each row, (batch,), or `MAIN`; from the coefficients (batch, position, d_ffn)."""

    @abstractmethod
    def _answer(self, placed: Any, coefficients: Tensor, output: Tensor, memory: int, passage: Passage) -> Tensor:
        """The FFN output of some rows that a memory answers for.

        Args:
            placed: what `_on` returned.
            coefficients: (n, position, d_ffn) of these rows.
            output: (n, position, d_model), of the memory that lies in the model.
            memory: which one answers.
            passage: of these rows.
        """

    @contextmanager
    def _answering(self, lm: Editable, now: list[Passage]) -> Iterator[None]:
        """Inside the block it answers; `now` holds the passage that runs (`passages`)."""
        memory = lm.memory(self.layer)
        placed = self._on(memory.weight.device)

        def change(coefficients: Tensor, output: Tensor) -> Tensor | None:
            passage = now[0]
            route = passage.routes.decided.get(self)
            if route is None:
                if passage.past and lm.routing.current is not None:
                    raise ValueError(
                        f"a forward goes on from a recording that was made before this {self.kind} edit was applied; "
                        "record the prompts again"
                    )
                with torch.no_grad():
                    route = self._route(placed, coefficients.detach(), passage).cpu()
                passage.routes.decided[self] = route
                lm.routing.decided(passage.routes)
            route = _fitted(route, len(output))
            memories = [number for number in route.unique().tolist() if number != MAIN]
            if not memories:
                return None
            new = output.clone()
            for number in memories:
                rows = (route == number).nonzero()[:, 0].to(output.device)
                part = Passage(passage.routes.rows(rows), passage._mask[rows], passage._width, passage.past)
                new[rows] = self._answer(placed, coefficients[rows], output[rows], number, part).to(new.dtype)
            return new

        with memory.answer(change):
            yield

    def _check(self, lm: Editable) -> None:
        """Raises WrongModelError where it cannot fit the model."""
        if not 0 <= self.layer < lm.n_layers:
            raise WrongModelError(f"the {self.kind} edit is of layer {self.layer}, {lm.name} has {lm.n_layers}")
        memory = lm.memory(self.layer)
        if memory.path != self.module:
            raise WrongModelError(
                f"the {self.kind} edit is of {self.module}, the values of layer {self.layer} of {lm.name} are "
                f"{memory.path}"
            )
        if memory.d_ffn != self._width:
            raise WrongModelError(
                f"layer {self.layer}: the {self.kind} edit reads {self._width} coefficients, {lm.name} has "
                f"{memory.d_ffn}"
            )


@dataclass(frozen=True, eq=False)
class RoutedEdit(RoutedLayer, HookedEdit):
    """An edit that acts on one layer's FFN, in the rows that it answers for.

    Attributes:
        layer: the layer.
        module: the name of the module that holds the layer's values.
    """

    layer: int
    module: str

    @property
    def touched(self) -> tuple[int, ...]:
        """The one layer."""
        return (self.layer,)

    @contextmanager
    def _hooks(self, lm: Editable) -> Iterator[None]:
        now: list[Passage] = []
        with passages(lm, now), self._answering(lm, now):
            yield


@contextmanager
def passages(lm: Editable, now: list[Passage]) -> Iterator[None]:
    """Inside the block a list holds the passage that the model runs, for what acts inside its forward."""
    by_cache: WeakKeyDictionary[Any, Routes] = WeakKeyDictionary()

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        now[:] = [_passage(lm.routing.current, by_cache, args, kwargs)]

    def end(output: Any) -> None:
        # The cache that a forward made by itself: a later one may go on from it.
        cache = getattr(output, "past_key_values", None)
        if cache is not None and lm.routing.current is None and cache not in by_cache:
            by_cache[cache] = now[0].routes

    with ExitStack() as stack:
        stack.enter_context(lm.routing.deciding())
        stack.enter_context(entering(lm.model, begin))
        stack.enter_context(leaving(lm.model, end))
        yield


def _passage(
    told: Routes | None, by_cache: WeakKeyDictionary[Any, Routes], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Passage:
    """What a forward of the model runs, from the arguments of its call and what its caller told."""
    tokens = args[0] if args else kwargs.get("input_ids")
    if tokens is None:
        tokens = kwargs["inputs_embeds"]
    batch, width = tokens.shape[:2]
    cache = kwargs.get("past_key_values")
    past = 0 if cache is None else int(cache.get_seq_length())
    mask = kwargs.get("attention_mask")
    if mask is None:
        mask = torch.ones(batch, past + width, dtype=torch.long, device=tokens.device)
    elif not isinstance(mask, Tensor) or mask.ndim != 2:
        raise ValueError(
            "an edit that is routed by the prompt needs a two-dimensional attention mask, (batch, position); a static "
            "cache makes another one: use the default cache"
        )
    if told is not None:
        routes = told
    elif cache is None:
        routes = Routes()
    else:
        known = by_cache.get(cache) if past else None
        routes = by_cache[cache] = Routes() if known is None else known
    return Passage(routes, mask.long(), width, past > 0)


def _fitted(route: Tensor, batch: int) -> Tensor:
    """The routes of a batch whose rows were multiplied since (several continuations of each prompt).

    Raises:
        ValueError: rows were left out, and nothing says which.
    """
    if len(route) == batch:
        return route
    if batch % len(route):
        raise ValueError(
            f"a forward continues {batch} rows with a cache of {len(route)} prompts; which prompt a row belongs to is "
            "not known"
        )
    return route.repeat_interleave(batch // len(route))
