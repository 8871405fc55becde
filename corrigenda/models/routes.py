"""Which rows of a forward an edit answers for: told by who runs it, decided once at the prompt.

Kept below the edits, so that forwards can carry it without knowing what an edit is.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

MAIN = -1
"""The route of a row that the model answers by itself."""


@dataclass(eq=False)
class Routes:
    """The rows of a text that is run in one forward or in several, and what was decided on them.

    Attributes:
        prompts: (row,), how many of each row's tokens are its prompt; None until the first forward, which then is the
            prompt.
        decided: for each routed edit its route of each row, (row,), on the CPU: `MAIN`, or which of the edit's
            memories answers.
        columns: where `prompts` is None, how many of the first forward's positions are prompts; None for all.
    """

    prompts: Tensor | None = None
    decided: dict[Any, Tensor] = field(default_factory=dict)
    columns: int | None = None

    def rows(self, rows: Tensor) -> Routes:
        """The same for some of the rows, (n,) indices, in that order."""
        prompts = None if self.prompts is None else self.prompts[rows.to(self.prompts.device)]
        return Routes(prompts, {edit: route[rows.cpu()] for edit, route in self.decided.items()})

    def below(self, layer: int) -> Routes:
        """The same with what was decided by layers below one: what changes there changes nothing of that."""
        return Routes(self.prompts, {edit: route for edit, route in self.decided.items() if edit.lowest < layer})


def by_name(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a model's forward by their names: those given by position, too."""
    given = inspect.signature(model.forward).bind_partial(*args).arguments if args else {}
    return {**given, **kwargs}


def attended(kwargs: Mapping[str, Any], what: str) -> tuple[Tensor, int, Tensor]:
    """What a forward of a model is called with: its tokens or embeddings, the size of its cache, and the mask of both.

    Raises ValueError: a row holds several texts (`what` asks for each in a row of its own); or the attention mask is
    not (batch, position).
    """
    tokens = next(found for found in map(kwargs.get, ("input_ids", "inputs_embeds")) if found is not None)
    cache, mask, places = map(kwargs.get, ("past_key_values", "attention_mask", "position_ids"))
    restarts = mask is None and places is not None and places.ndim == 2 and bool((places.diff(dim=1) != 1).any())
    if restarts or kwargs.get("cu_seq_lens_q") is not None:
        raise ValueError(
            f"a forward runs several texts in one row, which {what} cannot tell apart; give each text a row of its own "
            "(of transformers' generate_batch: use generate)"
        )
    past = 0 if cache is None else int(cache.get_seq_length())
    if mask is None:
        mask = torch.ones(len(tokens), past + tokens.shape[1], device=tokens.device)
    elif not isinstance(mask, Tensor) or mask.ndim != 2:
        raise ValueError(
            f"{what} needs a two-dimensional attention mask, (batch, position); a static cache makes another one: use "
            "the default cache"
        )
    return tokens, past, mask.long()


def fitted(rows: Tensor, batch: int) -> Tensor:
    """What is known of the prompts, (row,), for a batch of several continuations of each.

    Raises:
        ValueError: rows were left out, and nothing says which.
    """
    if len(rows) == batch:
        return rows
    if batch % len(rows):
        raise ValueError(
            f"a forward continues {batch} rows with a cache of {len(rows)} prompts; which prompt a row belongs to is "
            "not known"
        )
    return rows.repeat_interleave(batch // len(rows))


class Passage:
    """One forward, as a routed edit sees it.

    Args:
        routes: of its rows.
        mask: (batch, earlier positions + position), which positions hold tokens.
        width: how many of the last positions the forward runs.
        past: whether the rows began in an earlier forward.
        tokens: (batch, position), of the positions that it runs; None where it was given embeddings.

    Attributes:
        states: what entered the layers that an edit looks into, (batch, position, d_model) each.
    """

    def __init__(self, routes: Routes, mask: Tensor, width: int, past: bool, tokens: Tensor | None = None) -> None:
        self.routes = routes
        self.past = past
        self.tokens = tokens
        self.states: dict[int, Tensor] = {}
        self._mask = mask
        self._width = width
        if routes.prompts is None:
            routes.prompts = mask[:, : routes.columns].sum(1)

    @cached_property
    def place(self) -> Tensor:
        """(batch, position), which of its row's tokens each position holds, from 1; 0 for padding."""
        return (self._mask.cumsum(1) * self._mask)[:, -self._width :]

    @cached_property
    def prompt(self) -> Tensor:
        """(batch, position), True for tokens of the prompt."""
        return (self.place > 0) & (self.place <= self._lengths)

    @cached_property
    def tail(self) -> Tensor:
        """(batch, position), True for the prompt's last token and all after it."""
        return (self.place > 0) & (self.place >= self._lengths)

    @property
    def _lengths(self) -> Tensor:
        assert self.routes.prompts is not None
        return fitted(self.routes.prompts, len(self._mask)).to(self.place.device)[:, None]


class Activations:
    """In which rows applied edits answered, of those on which they decided while this was watched.

    A row is a prompt, with all that follows it: one on which the edits decided once counts once, however many forwards
    go on from it.
    """

    def __init__(self) -> None:
        self._decided: list[Routes] = []

    def note(self, routes: Routes) -> None:
        """Notes that an edit has decided on the rows of a forward."""
        if not any(noted is routes for noted in self._decided):  # a second edit decides on the same rows
            self._decided.append(routes)

    @property
    def rows(self) -> tuple[bool, ...]:
        """For each row, in the order in which they were run, whether some edit answers; empty where none is routed."""
        answers = [torch.stack([*routes.decided.values()]).ne(MAIN).any(0) for routes in self._decided]
        return tuple(answer for batch in answers for answer in batch.tolist())

    @property
    def share(self) -> float | None:
        """The share of rows in which some edit answers; None where no edit decided on any."""
        rows = self.rows
        return sum(rows) / len(rows) if rows else None


class Routing:
    """What a model's forwards and its routed edits tell each other.

    Attributes:
        current: what who runs a forward says of its rows (`using`); None where nobody says anything.
        active: whether an applied edit is routed by the prompt: rows that begin alike may then go different ways.
    """

    def __init__(self) -> None:
        self.current: Routes | None = None
        self.active = False
        self._watching: list[Activations] = []

    @contextmanager
    def using(self, routes: Routes | None) -> Iterator[None]:
        """Tells the routed edits which rows the forward inside the ``with`` block runs."""
        before, self.current = self.current, routes
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def watched(self) -> Iterator[Activations]:
        """Collects what routed edits decide inside the ``with`` block."""
        seen = Activations()
        self._watching.append(seen)
        try:
            yield seen
        finally:
            self._watching = [other for other in self._watching if other is not seen]

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Collects nothing of what runs inside the ``with`` block: it is no prompt of who watches."""
        before, self._watching = self._watching, []
        try:
            yield
        finally:
            self._watching = before

    def decided(self, routes: Routes) -> None:
        """Is told by a routed edit of each decision, when it has made it."""
        for seen in self._watching:
            seen.note(routes)
