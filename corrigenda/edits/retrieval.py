"""`RetrievalEdit`: texts of which the nearest are put before a prompt.

Zheng et al. 2023, "Can We Edit Factual Knowledge by In-Context Learning?", has it for one fact at a time, whose text
stands before every prompt. Here there are many, and a prompt to which none is near enough is read as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from corrigenda.edits.context import TextEdit
from corrigenda.edits.edit import Editable
from corrigenda.edits.encoders import STATES, Encoder, encoder_named
from corrigenda.edits.gate import Gate
from corrigenda.edits.origin import Origin, require_finite
from corrigenda.errors import WrongModelError
from corrigenda.indices.index import NONE, Index, nearest
from corrigenda.indices.kinds import Kind, index_of
from corrigenda.text.question import asking
from corrigenda.text.words import Names

_GATE = "gate."

CANDIDATES = 256
"""So many an index proposes, which are then ranked exactly."""


@dataclass(frozen=True, eq=False)
class RetrievalEdit(TextEdit):
    """Puts the nearest of its texts before a prompt, and no text before one to which none is near.

    With e = the encoder's vector of a prompt (or of `corrigenda.text.question.asking` of it, where that is nearer)
    and k_j that of text j, those with

        e k_j^T > threshold

    are near, of the texts whose subject the prompt names, from its last sentence or clause on that names anything
    (`corrigenda.text.question`); of all where it names none, unless `by_subject`. The `k` nearest are put before the
    prompt, the nearest last. No weight changes, and other prompts are the model's own, to the bit.

    Attributes:
        texts: what is put before a prompt, each with its last space.
        names: of each text those of its subject, of which a prompt has to have one (`corrigenda.text.words`).
        keys: of length 1, (text, width), in float32 on the CPU.
        threshold: a cosine; -1: all are near.
        k: so many texts at most.
        by_subject: whether no text is near a prompt that names no subject.
        encoder: its name (`corrigenda.edits.encoders`).
        gate: what maps the states, where the encoder is "states".
        index: how the nearest of all are found.

    Raises:
        EditRefusedError: a key is not finite.
        ValueError: texts, names and keys are not equally many, or the threshold is no cosine.
    """

    texts: tuple[str, ...]
    names: tuple[tuple[str, ...], ...]
    keys: Tensor
    threshold: float
    k: int = 1
    by_subject: bool = True
    encoder: str = STATES
    gate: Gate | None = None
    index: Kind = "exact"
    kind: ClassVar[str] = "retrieval"
    elsewhere: ClassVar[str] = (
        "it looks up a text for each prompt, which each request has to bring along there (corrigenda ask shows it)"
    )
    saved_tensors: ClassVar[tuple[str, ...]] = ("keys",)
    saved_settings: ClassVar[tuple[str, ...]] = ("threshold", "k", "by_subject", "encoder", "index")

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", self.keys.detach().float().cpu())
        if not (self.keys.ndim == 2 and len(self.texts) == len(self.names) == len(self.keys)):
            raise ValueError(
                f"a retrieval edit has {len(self.texts)} texts, names of {len(self.names)} subjects and keys of the "
                f"shape {tuple(self.keys.shape)}: each text has a subject and a key"
            )
        if not -1 <= self.threshold <= 1 or self.k < 1:
            raise ValueError(
                f"a retrieval edit's threshold={self.threshold!r} must be a cosine, from -1 to 1, and its k={self.k!r} "
                "at least 1"
            )
        require_finite(self.kind, {"keys": self.keys})

    def before(self, lm: Editable, prompt: str) -> str:
        """The texts of those that are near, the nearest last.

        Raises:
            ImportError: the encoder, or the index, needs a package that is not installed.
        """
        return "".join(self.texts[number] for number in reversed(self.near(lm, prompt)))

    def near(self, lm: Editable, prompt: str) -> list[int]:
        """The numbers of the texts that are near a prompt, from the nearest on; at most `k`."""
        named = self._named.asked(prompt)
        if not named and self.by_subject:
            return []
        query = self._encoder(lm, sorted({prompt, asking(prompt) or prompt}))
        if named:
            found = nearest(query, self.keys[named], self.k)
        else:
            found = nearest(query, self.keys, self.k, self._index, CANDIDATES)
        scored = zip(found.scores.flatten().tolist(), found.numbers.flatten().tolist(), strict=True)
        near = sorted((-score, number) for score, number in scored if number != NONE and score > self.threshold)
        numbers = list(dict.fromkeys(number for _, number in near))[: self.k]
        return [named[number] for number in numbers] if named else numbers

    @cached_property
    def _named(self) -> Names:
        return Names(self.names)

    @cached_property
    def _encoder(self) -> Encoder:
        return encoder_named(self.encoder, self.gate)

    @cached_property
    def _index(self) -> Index | None:
        return index_of(self.index, self.keys)

    def _check(self, lm: Editable) -> None:
        if self.gate is None:
            width = self._encoder(lm, ["a"]).shape[1]
            if width != self.keys.shape[1]:
                raise WrongModelError(
                    f"the retrieval edit's keys have {self.keys.shape[1]} numbers, and its encoder {self.encoder!r} "
                    f"gives {width}: it is another model than the one by which they were made"
                )
            return
        read, d_model = len(self.gate.mean) // len(self.gate.layers), lm.memory(0).d_model
        if max(self.gate.layers) >= lm.n_layers or read != d_model:
            raise WrongModelError(
                f"the retrieval edit's gate reads layers {list(self.gate.layers)} of states of {read} numbers; "
                f"{lm.name} has {lm.n_layers} layers with {d_model}"
            )

    def _summary(self) -> str:
        about = "a prompt that names their subject" if self.by_subject else "a prompt"
        return (
            f"{len(self.texts)} texts, of which the {self.k} nearest by {self.encoder} above a cosine of "
            f"{self.threshold:.3g} stand before {about}"
        )

    def _tensors(self) -> dict[str, Tensor]:
        return super()._tensors() | ({} if self.gate is None else self.gate.tensors(_GATE))

    def _settings(self) -> dict[str, Any]:
        gate = None if self.gate is None else self.gate.said()
        names = [list(own) for own in self.names]
        return super()._settings() | {"texts": list(self.texts), "names": names, "gate": gate}

    @classmethod
    def _restore(cls, origin: Origin, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> RetrievalEdit:
        gate = None if settings["gate"] is None else Gate.restore(tensors, settings["gate"], _GATE)
        names = tuple(tuple(own) for own in settings["names"])
        plain = {name: value for name, value in settings.items() if name not in ("gate", "names", "texts")}
        parts: dict[str, Any] = {name: tensors[name] for name in cls.saved_tensors}
        return cls(origin, tuple(settings["texts"]), names, gate=gate, **parts, **plain)
