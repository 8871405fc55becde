"""Edits that answer for some rows of a forward only: which ones is decided at the prompt, and stays so.

That holds for all that follows the prompt: generated tokens, tokens under teacher forcing, forwards that start in the
middle of a recorded text. Where a prompt ends is told by who runs the forward (`Routes.prompts`, from
`TokenBatch.prompts`), and in transformers' own ``lm.model.generate`` by what that is called with. In a forward that
nobody told anything, ``lm.model(...)``, with an empty cache or none all tokens are the prompt; with a cache that such a
forward filled it continues the rows of that cache. What cannot be read so is refused.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from corrigenda.edits.edit import Editable
from corrigenda.edits.hooked import HookedEdit, require_range
from corrigenda.errors import WrongModelError
from corrigenda.models.routes import MAIN, Activations, Passage, Routes, attended, by_name, fitted
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

    `module` is the name of the module that holds the layer's values, `kind` the edit's.
    """

    layer: int
    module: str
    kind: ClassVar[str]
    saved_tensors: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def _shape(self) -> tuple[int, int] | None:
        """How many coefficients it reads, and how many numbers its answer has; None where it reads none."""

    def _on(self, lm: Editable) -> Any:
        """What `_route` and `_answer` need of it, on the device of the layer's values: its tensors."""
        device = lm.memory(self.layer).weight.device
        return [getattr(self, name).to(device) for name in self.saved_tensors]

    @property
    def lowest(self) -> int:
        """The lowest layer that it decides by."""
        return self.layer

    @abstractmethod
    def _route(self, placed: Any, coefficients: Tensor, passage: Passage) -> Tensor:
        """Which memory answers in each row, (batch,), or `MAIN`; from the coefficients (batch, position, d_ffn)."""

    @abstractmethod
    def _answer(self, placed: Any, coefficients: Tensor, output: Tensor, memory: int, passage: Passage) -> Tensor:
        """The FFN output of the rows that a memory answers for; `placed` is what `_on` returned for them.

        Coefficients are (n, position, d_ffn), `output`, of the memory that lies in the model, (n, position, d_model).
        """

    @contextmanager
    def _answering(self, lm: Editable, now: list[Passage]) -> Iterator[None]:
        """Inside the block it answers; `now` holds the passage that runs (`passages`)."""
        placed = self._on(lm)

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
            prompts = fitted(torch.arange(len(route)), len(output))  # a cache may have been repeated for more rows
            route = route[prompts]
            memories = [number for number in route.unique().tolist() if number != MAIN]
            if not memories:
                return None
            new = output.clone()
            for number in memories:
                rows = (route == number).nonzero()[:, 0].to(output.device)
                part = Passage(
                    passage.routes.rows(prompts[rows.cpu()]), passage._mask[rows], passage._width, passage.past
                )
                answer = self._answer(placed, coefficients[rows], output[rows], number, part).to(new.dtype)
                require_range(self.kind, self.layer, answer)
                new[rows] = answer
            return new

        with self._acting(lm, change):
            yield

    def _acting(self, lm: Editable, change: Callable[[Tensor, Tensor], Tensor | None]) -> AbstractContextManager[None]:
        """Passes the layer's coefficients and its FFN output through a function, which may put another in its place."""
        return lm.memory(self.layer).answer(change)

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
        if self._shape is None:
            return
        read, answered = self._shape
        if memory.d_ffn != read:
            raise WrongModelError(
                f"layer {self.layer}: the {self.kind} edit reads {read} coefficients, {lm.name} has {memory.d_ffn}"
            )
        if memory.d_model != answered:
            raise WrongModelError(
                f"layer {self.layer}: the {self.kind} edit's values have {answered} numbers, {lm.name}'s "
                f"{memory.d_model}"
            )


@dataclass(frozen=True, eq=False)
class RoutedEdit(RoutedLayer, HookedEdit):
    """An edit that acts on one layer's FFN, whose values `module` holds, in the rows that it answers for."""

    layer: int
    module: str
    saved_settings: ClassVar[tuple[str, ...]] = ("layer", "module")

    @property
    def touched(self) -> tuple[int, ...]:
        """The one layer."""
        return (self.layer,)

    def decides(self, lm: Editable) -> bool:
        """Always."""
        return True

    def _hooks(self, lm: Editable) -> AbstractContextManager[None]:
        return answering(lm, [self])


@contextmanager
def answering(lm: Editable, layers: Sequence[RoutedLayer]) -> Iterator[None]:
    """Inside the block some layers answer, each in the rows that it decides on."""
    now: list[Passage] = []
    with ExitStack() as stack:
        stack.enter_context(passages(lm, now))
        for layer in layers:
            stack.enter_context(layer._answering(lm, now))
        yield


def prompt_text(
    kind: str,
    text: Callable[[list[int]], str],
    passage: Passage,
    row: int,
    instead: str = "",
    behind: tuple[int, ...] = (),
    asked: Tensor | None = None,
) -> str:
    """The text of a row's prompt; where it has the tokens `behind`, the text behind the last of them.

    `asked`, (batch, position), is True for the tokens that count; None for all of the prompt's. `instead` says in
    messages what else can be done where a forward was given embeddings. Raises ValueError: it was.
    """
    if passage.tokens is None:
        otherwise = f", or {instead}" if instead else ""
        raise ValueError(
            f"a forward was given embeddings, and a {kind} edit is applied that looks for words in the prompt; call "
            f"the model with input_ids{otherwise}"
        )
    ids = passage.tokens[row][(passage.prompt if asked is None else asked)[row]].tolist()
    ends = (end for end in range(len(ids), len(behind) - 1, -1) if tuple(ids[end - len(behind) : end]) == behind)
    return text(ids[next(ends, 0) if behind else 0 :])


@contextmanager
def passages(lm: Editable, now: list[Passage]) -> Iterator[None]:
    """Inside the block a list holds the passage that the model runs, for what acts inside its forward."""
    by_cache: WeakKeyDictionary[Any, Routes] = WeakKeyDictionary()
    without_cache: list[Tensor] = []

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if lm.alone.elsewhere:
            raise RuntimeError(
                f"another thread uses {lm.name}, and an edit is applied that is routed by the prompt: run a forward of "
                "your own inside its lock (with lm.alone: ...), or call generate"
            )
        call = by_name(lm.model, args, kwargs)
        if lm.parts is not None and lm.parts.owns(call):
            raise ValueError(
                f"{lm.name} was called with the encoder's tokens and the decoder's apart, as by transformers' own "
                "generate, and an edit is applied that is routed by a row's prompt; call the generate of LanguageModel"
            )
        now[:] = [_passage(lm.routing.current, by_cache, without_cache, call)]

    def end(output: Any) -> None:
        # The cache that a forward filled: a later one may go on from it.
        cache = getattr(output, "past_key_values", None)
        if cache is not None and cache not in by_cache:
            by_cache[cache] = now[0].routes

    with entering(lm.model, begin), leaving(lm.model, end):
        yield


def _passage(
    given: Routes | None,
    by_cache: WeakKeyDictionary[Any, Routes],
    without_cache: list[Tensor],
    kwargs: dict[str, Any],
) -> Passage:
    """What a forward of the model runs, from the arguments of its call and what its caller says (`given`)."""
    tokens, past, mask = attended(kwargs, "an edit that is routed by the prompt of a row")
    cache = kwargs.get("past_key_values")
    width = tokens.shape[1]
    if given is not None:
        routes = given
    elif not past:
        routes = Routes()
        if cache is not None:
            by_cache[cache] = routes
        elif tokens.ndim == 2:
            _say_if_stepping(without_cache, tokens)
            without_cache[:] = [tokens]
    elif (known := by_cache.get(cache)) is None:
        raise ValueError(
            f"a forward goes on from a cache of {past} tokens that was filled before an edit that is routed by the "
            "prompt was applied, or is a copy; run the prompt again, whole, with an empty cache"
        )
    else:
        routes = known
        if width > 1:
            warnings.warn(
                f"{width} tokens at once go on from a cache: an edit that is routed by the prompt takes them for the "
                "answer to what is in the cache; run a prompt whole, in one forward, if they are a part of it",
                stacklevel=2,
            )
    return Passage(routes, mask, width, past > 0, tokens if tokens.ndim == 2 else None)


def _say_if_stepping(before: list[Tensor], tokens: Tensor) -> None:
    """Says where a forward without a cache seems to be the one before it with a token more."""
    if not before or before[0].shape[1] + 1 != tokens.shape[1] or before[0].device != tokens.device:
        return
    if bool((tokens[:, None, :-1] == before[0][None]).all(-1).any(1).all()):
        warnings.warn(
            "a forward without a cache runs the tokens of the one before and one more: an edit that is routed by the "
            "prompt takes all of them for a prompt of its own; to decode token by token pass the cache on, or use "
            "generate",
            stacklevel=2,
        )


# -- transformers' own generate


def decide_on_prompts(lm: Editable, active: bool) -> None:
    """Says whether an applied edit is routed by the prompt; the model's `generate` then tells where its prompts end."""
    lm.routing.active = active
    own = lm.model.__dict__.get("generate")
    before = own.__func__.before if isinstance(getattr(own, "__func__", None), _Generate) else own
    if active:
        lm.model.generate = MethodType(_Generate(lm, before), lm.model)
    elif before is not None:
        lm.model.generate = before
    else:
        lm.model.__dict__.pop("generate", None)


@dataclass(frozen=True, eq=False)
class _Generate:
    """`generate` of a model that routed edits are applied to: what it is called with are the prompts.

    `before` is what was put in the place of its class's `generate`, if anything.
    """

    lm: Editable
    before: Any

    def __call__(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """As the class's own.

        Raises:
            ValueError: the prompts do not run whole, in the first forward; or guidance runs other texts beside them.
        """
        given = dict(zip(("inputs", "generation_config"), args, strict=False)) | kwargs
        cache = given.get("past_key_values")
        config = given.get("generation_config") or model.generation_config
        if cache is not None and (length := cache.get_seq_length()):
            raise ValueError(
                f"generate was given a cache of {length} tokens, and an edit is applied that is routed by the whole "
                "prompt; call it without past_key_values"
            )
        asked = {
            name: given.get(name, getattr(config, name, None)) for name in ("guidance_scale", "prefill_chunk_size")
        }
        if asked["guidance_scale"] not in (None, 1):
            raise ValueError(
                "generate was told to run a second text beside the prompt, by guidance_scale, and an edit is applied "
                "that is routed by the prompt of a row; call it without guidance_scale"
            )
        if asked["prefill_chunk_size"] is not None:
            raise ValueError(
                "generate was told to run the prompt in pieces, and an edit is applied that is routed by the whole "
                "prompt; call it without prefill_chunk_size"
            )
        named = (given.get(name) for name in ("inputs", "input_ids", "inputs_embeds"))
        prompts = next((found for found in named if found is not None), None)
        routes = Routes(columns=None if prompts is None else prompts.shape[1])
        generate = partial(type(model).generate, model) if self.before is None else self.before
        with self.lm.alone, self.lm.routing.using(routes):
            return generate(*args, **kwargs)
