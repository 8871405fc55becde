"""Typed records of what a model did with prompts, and `Measurement`, which holds those of one fact.

A record is written to a run's files as a JSON object with the fields that are known, in the order in which they are
declared here. Reading gives back what was written: a number that was not finite is written as null and read as NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, TypeVar

from torch import Tensor

PAIRED_KINDS = ("prompt", "paraphrases", "neighbourhood", "neighbourhood_plus")
"""The kinds of prompts that are scored with the new and the true object."""

PROBE_KINDS = ("locality", "portability")
"""The kinds of prompts that are scored with an expected answer of their own."""

TEXT_KIND = "generation"
"""The kind of prompts after which text is sampled."""

QUESTION_KIND = "questions"
"""The kind of questions as a person asks them."""

_R = TypeVar("_R", bound="Record")


@dataclass
class Record(Mapping[str, Any]):
    """What a model did with one prompt. It can be read like the JSON object it is written as: ``record["prompt"]``.

    Attributes:
        prompt: the prompt.
        others: further JSON values by name, for metrics that note something of their own.
    """

    prompt: str
    others: dict[str, Any] = field(default_factory=dict, kw_only=True)

    def to_dict(self) -> dict[str, Any]:
        """The fields that are known, in the order of their declaration, and then the others."""
        values = ((name, getattr(self, name)) for name in _names(type(self)))
        return {name: value for name, value in values if value is not None} | self.others

    @classmethod
    def from_dict(cls: type[_R], record: Mapping[str, Any]) -> _R:
        """The record of an object that `to_dict` gave."""
        names = _names(cls)
        known = {name: _read(name, value) for name, value in record.items() if name in names}
        return cls(**known, others={name: value for name, value in record.items() if name not in names})

    def __getitem__(self, name: str) -> Any:
        return self.to_dict()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())


@dataclass
class ScoredPrompt(Record):
    """A prompt that is scored with the fact's objects; one of `PAIRED_KINDS`.

    What was not asked for, or has no meaning for the fact, is None.

    Attributes:
        log_probs_new: the log-probabilities of the new object's tokens under teacher forcing, in nats.
        log_probs_true: those of the old object's.
        p_new: P(new), comparable with `p_true`; from the log-probabilities.
        p_true: P(true).
        token_accuracy: the share of the new object's tokens that are the most likely ones.
        answer: the greedy answer.
        strict: whether the answer begins with the new object; from the answer.
        lenient: whether it contains the new object; from the answer.
        kl: KL(before, after) of the next-token distribution, in nats.
        preserved: whether the edited model gives the unedited one's answer.
    """

    log_probs_new: Sequence[float] | None = None
    log_probs_true: Sequence[float] | None = None
    p_new: float | None = None
    p_true: float | None = None
    token_accuracy: float | None = None
    answer: str | None = None
    strict: bool | None = None
    lenient: bool | None = None
    kl: float | None = None
    preserved: bool | None = None


@dataclass
class ScoredProbe(Record):
    """A probe that is scored with its own expected answer; one of `PROBE_KINDS`.

    Attributes:
        log_probs: the log-probabilities of the expected answer's tokens under teacher forcing, in nats.
        token_accuracy: the share of these tokens that are the most likely ones.
        most_likely: for each of these tokens, the id of the one that is the most likely there (locality).
        group: what its benchmark calls this kind of probe.
        answer: the greedy answer.
        strict: whether the answer begins with an expected one; from the answer.
        lenient: whether it contains one; from the answer.
        preserved: whether the edited model gives the unedited one's answer.
    """

    log_probs: Sequence[float] | None = None
    token_accuracy: float | None = None
    most_likely: Sequence[int] | None = None
    group: str | None = None
    answer: str | None = None
    strict: bool | None = None
    lenient: bool | None = None
    preserved: bool | None = None


@dataclass
class SampledText(Record):
    """A text that was sampled after a prompt.

    Attributes:
        text: the text, without the prompt.
        entropy: its n-gram entropy in bits; from the text.
    """

    text: str = ""
    entropy: float | None = None


@dataclass
class AskedQuestion(Record):
    """A question about a fact as a person asks it, and the answer (`eval.real_use`).

    Attributes:
        kind: of which of the fact's prompts: "prompt" or "paraphrases".
        setting: how it was asked: "plain_bare", "plain_context", "chat_bare" or "chat_context".
        question: the question alone; `prompt` is all that the model reads.
        answer: the greedy answer, to its natural end.
        match: whether the answer contains the new object; from the answer.
        reply: what the judge said of the answer, word for word; None where there is no judge.
        verdict: "right", "wrong" or "unread"; from the reply.
    """

    kind: str = "prompt"
    setting: str = ""
    question: str = ""
    answer: str = ""
    match: bool | None = None
    reply: str | None = None
    verdict: str | None = None


RECORD_OF: Mapping[str, type[Record]] = {
    **dict.fromkeys(PAIRED_KINDS, ScoredPrompt),
    **dict.fromkeys(PROBE_KINDS, ScoredProbe),
    TEXT_KIND: SampledText,
    QUESTION_KIND: AskedQuestion,
}
"""By kind of prompt, what its records are."""


@dataclass
class Measurement:
    """What one model, edited or not, did with one fact's prompts.

    Attributes:
        prompts: by kind (`RECORD_OF`) a record for each prompt, in the fact's order; kinds without prompts are absent.
        values: by metric, the fact's value.
        distributions: the next-token log-probabilities after each neighbourhood prompt, (vocabulary,); for the KL, not
            for files.
        answers: for each prompt whose answer should be preserved its tokens and whether it ended there by itself.
        log_perplexity: that of the held-out text, in nats; in files it stands among the values.
        error: why the fact was not measured (`eval.fitting`); empty where it was.
    """

    prompts: dict[str, list[Record]] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    distributions: list[Tensor] = field(default_factory=list)
    answers: dict[str, tuple[list[int], bool]] = field(default_factory=dict)
    log_perplexity: float | None = None
    error: str = ""

    def scored(self, *kinds: str) -> list[ScoredPrompt]:
        """The records of prompts of these kinds, each one of `PAIRED_KINDS`."""
        return [record for kind in kinds for record in self.prompts.get(kind, ()) if isinstance(record, ScoredPrompt)]

    def probes(self, *kinds: str) -> list[ScoredProbe]:
        """The records of probes of these kinds, each one of `PROBE_KINDS`."""
        return [record for kind in kinds for record in self.prompts.get(kind, ()) if isinstance(record, ScoredProbe)]

    def elsewhere(self) -> list[ScoredPrompt | ScoredProbe]:
        """The records of neighbourhood and locality prompts: the answers there should stay as they are."""
        return [*self.scored("neighbourhood"), *self.probes("locality")]

    def texts(self) -> list[SampledText]:
        """The sampled texts."""
        return [record for record in self.prompts.get(TEXT_KIND, ()) if isinstance(record, SampledText)]

    def questions(self) -> list[AskedQuestion]:
        """The questions in real use."""
        return [record for record in self.prompts.get(QUESTION_KIND, ()) if isinstance(record, AskedQuestion)]

    def to_dict(self) -> dict[str, Any]:
        """Values and records as JSON values: what runs keep. A value that is not finite is left out."""
        values = {key: value for key, value in self.values.items() if math.isfinite(value)}
        state: dict[str, Any] = {"values": values, "prompts": finite(self.prompts)}
        return state | {"error": self.error} if self.error else state

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Measurement:
        """The measurement of an object that `to_dict` gave, without what only a running comparison needs.

        Raises:
            ValueError: it has prompts of a kind that is not known.
        """
        prompts: dict[str, list[Record]] = {}
        for kind, records in state["prompts"].items():
            if kind not in RECORD_OF:
                raise ValueError(f"there are no prompts of kind {kind!r}; the kinds are {', '.join(RECORD_OF)}")
            prompts[kind] = [RECORD_OF[kind].from_dict(record) for record in records]
        values = dict(state.get("values") or {})
        error = str(state.get("error") or "")
        return cls(prompts, values, log_perplexity=values.get("log_perplexity"), error=error)


def finite(value: Any) -> Any:
    """A nested value for JSON, which has no word for what is not finite: None stands in its place."""
    if isinstance(value, Mapping):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@cache
def _names(kind: type[Record]) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind) if one.name != "others")


_FLOATS = frozenset({"p_new", "p_true", "token_accuracy", "kl", "entropy"})
_LISTS_OF_FLOATS = frozenset({"log_probs", "log_probs_new", "log_probs_true"})


def _read(name: str, value: Any) -> Any:
    """A field's value from JSON, where null stands for a number that was not finite."""
    if name in _LISTS_OF_FLOATS and value is not None:
        return tuple(math.nan if part is None else part for part in value)
    return math.nan if value is None and name in _FLOATS else value
