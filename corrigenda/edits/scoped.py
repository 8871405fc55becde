"""`ScopedEdit`: entries beside the weights that speak where a prompt asks their question about their subject.

Whether two prompts ask the same says a gate (`corrigenda.edits.gate`), whether one is about the subject its words say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from corrigenda.edits.edit import Editable
from corrigenda.edits.gate import Gate
from corrigenda.edits.origin import Origin, require_finite
from corrigenda.edits.routed import RoutedEdit, passages, prompt_text
from corrigenda.errors import WrongModelError
from corrigenda.models.routes import MAIN, Passage
from corrigenda.models.sites import Site, state_entering, through
from corrigenda.text.question import asking
from corrigenda.text.words import Names

_GATE = "gate."
_LOOKED_AT = 32
"""Tokens at a prompt's end, among which those that ask nothing are looked for."""


class PlacedEntries(NamedTuple):
    """The entries on the model's device, and what finds those whose subject a prompt names."""

    keys: Tensor
    entries: Tensor
    values: Tensor
    names: Names
    text: Callable[[list[int]], str]


@dataclass(frozen=True, eq=False)
class ScopedEdit(RoutedEdit):
    """Entries behind a gate, beside one layer.

    With e = `gate.embed` of a prompt's states, K_j the keys of entry j and v_j its value, entry

        j* = argmax over j of max over k in K_j of  e k^T,    of those whose subject the prompt names

    speaks if that cosine is above `threshold`: v_j* is added to the residual stream after the layer, at the prompt's
    last token. In a conversation e is of the last token that the user wrote, so that a question is the same in it and
    bare; where a prompt ends in what asks nothing (`corrigenda.text.question.asking`), the last token before it is
    tried, too. It is decided when the prompt is seen (`corrigenda.edits.routed`); at tokens that follow it nothing is
    added, and these read the answer by attention. In rows in which none speaks, nothing is touched.

    Attributes:
        gate: says whether two prompts ask the same. It reads what enters layers up to this one.
        keys: of length 1, (key, width), in float32 on the CPU.
        entries: (key,), which entry each key is of.
        values: (entry, d_model).
        names: of each entry those of its subject. A prompt has to have one of them, as whole words in a row, whatever
            their case and with or without a beginning article (`corrigenda.text.words`), from its last sentence or
            clause on that names anything (`corrigenda.text.question`): one before that is not whom it asks about.
        threshold: a cosine; -1 opens the gate for every question.
        by_subject: whether a prompt has to name the subject.
        closing: the tokens between a user's last word and the model's answer in a conversation
            (`corrigenda.models.chat.closing_tokens`): a prompt that ends in them asks at the token before them.
        turn: the tokens that open a user's turn of a conversation (`corrigenda.models.chat.turn_tokens`): names are
            looked for behind the last of them, and not in earlier turns or what the template tells the model.

    Raises:
        EditRefusedError: a tensor is not finite.
        ValueError: shapes do not fit one another.
    """

    gate: Gate
    keys: Tensor
    entries: Tensor
    values: Tensor
    names: tuple[tuple[str, ...], ...]
    threshold: float
    by_subject: bool = True
    closing: tuple[int, ...] = ()
    turn: tuple[int, ...] = ()
    kind: ClassVar[str] = "scoped"
    saved_tensors: ClassVar[tuple[str, ...]] = ("keys", "entries", "values")
    saved_settings: ClassVar[tuple[str, ...]] = ("layer", "module", "threshold", "by_subject", "closing", "turn")

    def __post_init__(self) -> None:
        for name in ("keys", "values"):
            object.__setattr__(self, name, getattr(self, name).detach().float().cpu())
        object.__setattr__(self, "entries", self.entries.detach().long().cpu())
        for name in ("closing", "turn"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        n, width = len(self.values), self.gate.width
        fits = self.keys.ndim == 2 and self.keys.shape[1] == width and self.entries.shape == self.keys.shape[:1]
        owned = sorted(set(self.entries.tolist())) == list(range(n))
        if not (fits and owned and self.values.ndim == 2 and len(self.names) == n):
            shapes = ", ".join(f"{name} {tuple(getattr(self, name).shape)}" for name in self.saved_tensors)
            raise ValueError(
                f"scoped entries of {len(self.names)} subjects behind a gate of width {width} do not fit one "
                f"another: {shapes}"
            )
        if not -1 <= self.threshold <= 1:
            raise ValueError(f"a scoped edit's threshold={self.threshold!r} must be a cosine, from -1 to 1")
        require_finite(self.kind, {"keys": self.keys, "values": self.values})

    @property
    def _shape(self) -> None:
        return None

    @property
    def lowest(self) -> int:
        """The lowest layer that its gate reads."""
        return min(self.gate.layers)

    def _check(self, lm: Editable) -> None:
        super()._check(lm)
        if max(self.gate.layers) > self.layer:
            raise WrongModelError(
                f"the scoped edit adds its values after layer {self.layer}, and its gate reads layers up to "
                f"{max(self.gate.layers)}, which come later"
            )
        d_model = lm.memory(self.layer).d_model
        read = len(self.gate.mean) // len(self.gate.layers)
        if {self.values.shape[1], read} != {d_model}:
            raise WrongModelError(
                f"layer {self.layer}: the scoped edit's values have {self.values.shape[1]} numbers, its gate reads "
                f"states of {read}, and {lm.name}'s have {d_model}"
            )

    @contextmanager
    def _hooks(self, lm: Editable) -> Iterator[None]:
        now: list[Passage] = []

        def keep(layer: int) -> Callable[[Tensor], None]:
            def kept(state: Tensor) -> None:
                if self not in now[0].routes.decided:
                    now[0].states[layer] = state.detach()

            return kept

        with ExitStack() as stack:
            stack.enter_context(passages(lm, now))
            for layer in self.gate.layers:
                stack.enter_context(state_entering(lm.architecture.block(layer), keep(layer)))
            stack.enter_context(self._answering(lm, now))
            yield

    def _acting(self, lm: Editable, change: Callable[[Tensor, Tensor], Tensor | None]) -> AbstractContextManager[None]:
        # At the block and not at its FFN: this then runs as it does without the edit, to the bit.
        return through(lm.architecture, Site("block", self.layer), lambda state: change(state, state))

    def _on(self, lm: Editable) -> PlacedEntries:
        keys, entries, values = super()._on(lm)
        return PlacedEntries(keys, entries, values, Names(self.names), lm.text)

    def _route(self, placed: PlacedEntries, coefficients: Tensor, passage: Passage) -> Tensor:
        route = torch.full((len(coefficients),), MAIN, device=coefficients.device)
        if not len(self.keys):
            return route
        asked = self._asked(passage)
        scores = self._cosines(placed, passage, asked)
        worded = self._worded(placed, passage, asked)
        if worded is not asked:
            scores = torch.maximum(scores, self._cosines(placed, passage, worded))
        scores[~(passage.prompt & passage.tail).any(1)] = -torch.inf  # where the prompt's last token did not run
        if self.by_subject:
            for row in (scores > self.threshold).any(1).nonzero()[:, 0].tolist():
                instead = "edit with by_subject=false"
                text = prompt_text(self.kind, placed.text, passage, row, instead, behind=self.turn, asked=asked)
                numbers = placed.names.asked(text)
                named = torch.tensor(numbers, dtype=torch.long, device=scores.device)
                scores[row, ~torch.isin(placed.entries, named)] = -torch.inf
        best, key = scores.max(1)
        return torch.where(best > self.threshold, placed.entries[key], MAIN)

    def _cosines(self, placed: PlacedEntries, passage: Passage, asked: Tensor) -> Tensor:
        """(batch, key), of what each row asks at the last token that is True."""
        return self.gate.embed(self.gate.read(passage.states, asked)).to(placed.keys.device) @ placed.keys.T

    def _asked(self, passage: Passage) -> Tensor:
        """(batch, position), True for the tokens of each prompt up to the last that is its user's."""
        if not self.closing:
            return passage.prompt
        n = len(self.closing)
        return _without(passage, passage.prompt, lambda ids: n if tuple(ids[-n:]) == self.closing else 0)

    def _worded(self, placed: PlacedEntries, passage: Passage, asked: Tensor) -> Tensor:
        """`asked` without the tokens at the end of each row that ask nothing; itself where there are none."""

        def filler(ids: list[int]) -> int:
            end, n = placed.text(ids[-_LOOKED_AT:]), 0
            left = "".join(end[len(asking(end)) :].split())  # some tokenizers write a token's space only in a text
            for text in (placed.text([token]) for token in reversed(ids)):
                if not text or not left.endswith(word := "".join(text.split())):
                    break
                left, n = left.removesuffix(word), n + 1
            return n

        return _without(passage, asked, filler)

    def _answer(
        self, placed: PlacedEntries, coefficients: Tensor, output: Tensor, memory: int, passage: Passage
    ) -> Tensor:
        at = (passage.prompt & passage.tail)[..., None]
        return torch.where(at, (output.float() + placed.values[memory]).to(output.dtype), output)

    def _summary(self) -> str:
        about = "on prompts that name their subjects" if self.by_subject else "whatever the prompt names"
        return (
            f"after layer {self.layer}, {len(self.values)} entries with {len(self.keys)} keys, spoken {about}, above "
            f"a cosine of {self.threshold:.3g}"
        )

    def _tensors(self) -> dict[str, Tensor]:
        return super()._tensors() | self.gate.tensors(_GATE)

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"names": [list(own) for own in self.names], "gate": self.gate.said()}

    @classmethod
    def _restore(cls, origin: Origin, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> ScopedEdit:
        gate = Gate.restore(tensors, settings["gate"], _GATE)
        parts: dict[str, Any] = {name: tensors[name] for name in cls.saved_tensors}
        plain = {name: value for name, value in settings.items() if name not in ("gate", "names", "subjects")}
        # Edits that were saved before a subject could have several names have one word for word.
        names = settings["names"] if "names" in settings else [[name] for name in settings["subjects"]]
        return cls(origin, gate=gate, names=tuple(map(tuple, names)), **parts, **plain)


def _without(passage: Passage, asked: Tensor, ends: Callable[[list[int]], int]) -> Tensor:
    """`asked` without as many of each row's last tokens as `ends` says; itself where that is none, or all, of each."""
    if passage.tokens is None:
        return asked
    left = asked
    for row, tokens in enumerate(passage.tokens):
        places = asked[row].nonzero()[:, 0]
        n = ends(tokens[places].tolist())
        if 0 < n < len(places):
            left = asked.clone() if left is asked else left
            left[row, places[-n:]] = False
    return left
