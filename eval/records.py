"""Typed records of what a model did with prompts, and `Measurement`, which holds those of one fact.

A record is written to a run's files as a JSON object with the fields that are known, in the order in which they are
declared here. Reading gives back what was written: a number that was not finite is written as null and read as NaN.

What the records of a run mean is numbered (`DEFINITIONS`), so that figures of different meanings are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, TypeVar

from torch import Tensor

PAIRED_KINDS = ("prompt", "paraphrases", "neighbourhood", "neighbourhood_plus", "negations")
"""The kinds of prompts that are scored with the new and the true object."""

PROBE_KINDS = ("locality", "portability", "reversals")
"""The kinds of prompts that are scored with an expected answer of their own."""

CHECK_KIND = "fact_checks"
"""The kind of questions to be answered with "Yes" or "No"."""

SUBJECT_KIND = "same_subject"
"""The kind of prompts about other things of the edited subject; nothing is scored, what the model gives is compared."""

SIDE_KINDS = frozenset({"negations", "reversals", CHECK_KIND, SUBJECT_KIND})
"""The kinds of prompts that show what an edit should not do (`corrigenda.data.side_effects`)."""

TEXT_KIND = "generation"
"""The kind of prompts after which text is sampled."""

QUESTION_KIND = "questions"
"""The kind of questions as a person asks them."""

DEFINITIONS = 3
"""The number of the definitions by which records and values are made; a run's summary holds it as ``definitions``.

1 (runs that name none): where an answer should stay, the answer ended at the end token or at a line break, so that two
blank ones were the same; P was the joint probability where both objects had the same number of tokens. 2: continuations
of a given length, end tokens barred, are compared; P is exp of the mean log-probability of the object's tokens. 3: what
whole words are is known for every script, and signs count ("C" does not give "C++"); a free answer is as long as its
object needs; what stands between prompt and target follows from both (`corrigenda.text.joints`), not always a space.
"""

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
    """A prompt that is scored with the fact's objects; one of `PAIRED_KINDS`, or with nothing (`SUBJECT_KIND`).

    What was not asked for, or has no meaning for the fact, is None.

    Attributes:
        log_probs_new: the log-probabilities of the new object's tokens under teacher forcing, in nats.
        log_probs_true: those of the old object's.
        p_new: P(new), exp of the mean of the log-probabilities; from them.
        p_true: P(true), likewise.
        token_accuracy: the share of the new object's tokens that are the most likely ones.
        answer: the greedy answer; of neighbourhood prompts the continuation that should stay (`preserved`).
        strict: whether the answer begins with the new object; from the answer.
        lenient: whether it contains the new object; from the answer.
        begins_true: whether it begins with the old object; from the answer, as what follows.
        says_true: of neighbourhood prompts, whether it contains the old object.
        says_new: of neighbourhood prompts, whether it contains the new object.
        content_word: of neighbourhood prompts, its first content word; "" where it has none.
        kl: KL(before, after) of the next-token distribution, in nats.
        preserved: whether the edited model's greedy continuation, end tokens barred, is the unedited one's.
        same_tokens: how many of its tokens, from the first on, are the unedited one's.
        blank: whether the unedited model, left to end where it will, answers with nothing.
    """

    log_probs_new: Sequence[float] | None = None
    log_probs_true: Sequence[float] | None = None
    p_new: float | None = None
    p_true: float | None = None
    token_accuracy: float | None = None
    answer: str | None = None
    strict: bool | None = None
    lenient: bool | None = None
    begins_true: bool | None = None
    says_true: bool | None = None
    says_new: bool | None = None
    content_word: str | None = None
    kl: float | None = None
    preserved: bool | None = None
    same_tokens: int | None = None
    blank: bool | None = None


@dataclass
class ScoredProbe(Record):
    """A probe that is scored with its own expected answer; one of `PROBE_KINDS`.

    Attributes:
        log_probs: the log-probabilities of the expected answer's tokens under teacher forcing, in nats.
        token_accuracy: the share of these tokens that are the most likely ones.
        most_likely: for each of these tokens, the id of the one that is the most likely there (locality).
        group: what its benchmark calls this kind of probe.
        answer: the greedy answer; of locality probes the continuation that should stay (`preserved`).
        strict: whether the answer begins with an expected one; from the answer.
        lenient: whether it contains one; from the answer.
        says_true: whether it contains an expected one (locality); from the answer, as what follows.
        says_new: whether it contains the fact's new object, where this is no expected answer (locality).
        content_word: its first content word (locality); "" where it has none.
        kl: KL(before, after) of the next-token distribution, in nats (locality).
        preserved: whether the edited model's greedy continuation, end tokens barred, is the unedited one's (locality).
        same_tokens: how many of its tokens, from the first on, are the unedited one's (locality).
        blank: whether the unedited model, left to end where it will, answers with nothing (locality).
    """

    log_probs: Sequence[float] | None = None
    token_accuracy: float | None = None
    most_likely: Sequence[int] | None = None
    group: str | None = None
    answer: str | None = None
    strict: bool | None = None
    lenient: bool | None = None
    says_true: bool | None = None
    says_new: bool | None = None
    content_word: str | None = None
    kl: float | None = None
    preserved: bool | None = None
    same_tokens: int | None = None
    blank: bool | None = None


@dataclass
class ScoredCheck(Record):
    """A question to be answered with "Yes" or "No".

    Attributes:
        log_probs_right: the log-probabilities of the right answer's tokens under teacher forcing, in nats.
        log_probs_wrong: those of the wrong answer's.
        expected: the right answer; from the fact.
    """

    log_probs_right: Sequence[float] | None = None
    log_probs_wrong: Sequence[float] | None = None
    expected: str | None = None


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
    SUBJECT_KIND: ScoredPrompt,
    CHECK_KIND: ScoredCheck,
    TEXT_KIND: SampledText,
    QUESTION_KIND: AskedQuestion,
}
"""By kind of prompt, what its records are."""


@dataclass(frozen=True)
class HeldOut:
    """What a model gave to windows of the held-out texts.

    Attributes:
        windows: their numbers; window k is of text k modulo the number of texts.
        log_probs: for each the sum of its tokens' log-probabilities, in nats.
        tokens: for each, how many tokens that are; a window's first token is read and not predicted.
        activated: for each, whether an applied edit answered in it; None where no applied edit is routed.
    """

    windows: tuple[int, ...]
    log_probs: tuple[float, ...]
    tokens: tuple[int, ...]
    activated: tuple[bool, ...] | None = None

    @property
    def log_perplexity(self) -> float:
        """The mean negative log-probability of a token, in nats."""
        return -sum(self.log_probs) / sum(self.tokens)

    def by_window(self) -> dict[int, float]:
        """By window the mean negative log-probability of its tokens, in nats."""
        parts = zip(self.windows, self.log_probs, self.tokens, strict=True)
        return {window: -log_prob / n for window, log_prob, n in parts}

    def only(self, windows: Sequence[int]) -> HeldOut:
        """Some of the windows, in that order; those that were not read are left out.

        Raises:
            ValueError: none of them was read.
        """
        place = {window: number for number, window in enumerate(self.windows)}
        kept = [place[window] for window in windows if window in place]
        if not kept:
            raise ValueError(f"held-out windows {list(windows)}: none was read; there are {list(self.windows)}")
        return HeldOut(
            tuple(self.windows[number] for number in kept),
            tuple(self.log_probs[number] for number in kept),
            tuple(self.tokens[number] for number in kept),
            None if self.activated is None else tuple(self.activated[number] for number in kept),
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields that are known, as JSON values: what runs keep."""
        found: dict[str, Any] = {
            "windows": list(self.windows),
            "log_probs": [value if math.isfinite(value) else None for value in self.log_probs],
            "tokens": list(self.tokens),
        }
        return found if self.activated is None else found | {"activated": list(self.activated)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> HeldOut:
        """What an object holds that `to_dict` gave.

        Raises:
            ValueError: its lists are not of one length, or empty, or a window has no token.
        """
        log_probs = tuple(math.nan if value is None else float(value) for value in record["log_probs"])
        windows, tokens, answers = tuple(record["windows"]), tuple(record["tokens"]), record.get("activated")
        lengths = {len(windows), len(log_probs), len(tokens), len(windows if answers is None else answers)}
        if len(lengths) > 1 or not windows or min(tokens) < 1:
            raise ValueError(
                "held_out: windows, log_probs, tokens and activated must be lists of one length, not empty"
            )
        return cls(windows, log_probs, tokens, None if answers is None else tuple(map(bool, answers)))


@dataclass
class Measurement:
    """What one model, edited or not, did with one fact's prompts.

    Attributes:
        prompts: by kind (`RECORD_OF`) a record for each prompt, in the fact's order; kinds without prompts are absent.
        values: by metric, the fact's value.
        distributions: by prompt the next-token log-probabilities, (vocabulary,), that are compared with those before or
            after; for the KL, not for files.
        continuations: by prompt the tokens of the greedy continuation, end tokens barred, that should stay; for
            `preserved`, not for files.
        log_perplexity: that of the held-out texts, in nats, where nothing is known of their windows (older records,
            submissions); in files it stands among the values.
        error: why the fact was not measured (`eval.scoring.fitting`); empty where it was.
        held_out: what the model gave to windows of the held-out texts, if they were read.
    """

    prompts: dict[str, list[Record]] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    distributions: dict[str, Tensor] = field(default_factory=dict)
    continuations: dict[str, list[int]] = field(default_factory=dict)
    log_perplexity: float | None = None
    error: str = ""
    held_out: HeldOut | None = None

    def scored(self, *kinds: str) -> list[ScoredPrompt]:
        """The records of prompts of these kinds, each one of `PAIRED_KINDS`."""
        return [record for kind in kinds for record in self.prompts.get(kind, ()) if isinstance(record, ScoredPrompt)]

    def probes(self, *kinds: str) -> list[ScoredProbe]:
        """The records of probes of these kinds, each one of `PROBE_KINDS`."""
        return [record for kind in kinds for record in self.prompts.get(kind, ()) if isinstance(record, ScoredProbe)]

    def elsewhere(self) -> list[ScoredPrompt | ScoredProbe]:
        """The records of neighbourhood and locality prompts: the answers there should stay as they are."""
        return [*self.scored("neighbourhood"), *self.probes("locality")]

    def keeping(self) -> list[ScoredPrompt | ScoredProbe]:
        """The records of all prompts whose continuations and next-token distributions are compared."""
        return [*self.elsewhere(), *self.scored(SUBJECT_KIND)]

    def checks(self) -> list[ScoredCheck]:
        """The records of fact-check questions."""
        return [record for record in self.prompts.get(CHECK_KIND, ()) if isinstance(record, ScoredCheck)]

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
        if self.held_out is not None:
            state["held_out"] = self.held_out.to_dict()
        return state | {"error": self.error} if self.error else state

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Measurement:
        """The measurement of an object that `to_dict` gave, without what only a running comparison needs.

        Records of earlier versions are read as they are: what `preserved`, `answer`, `p_new`, `p_true` and the values
        that follow from them mean there is said at `DEFINITIONS`, and they name no `blank`.

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
        held_out = HeldOut.from_dict(state["held_out"]) if state.get("held_out") is not None else None
        level = values.get("log_perplexity") if held_out is None else None
        return cls(prompts, values, log_perplexity=level, error=error, held_out=held_out)


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
LOG_PROBS = ("log_probs", "log_probs_new", "log_probs_true", "log_probs_right", "log_probs_wrong")
"""The fields of records that hold log-probabilities of tokens."""


def _read(name: str, value: Any) -> Any:
    """A field's value from JSON, where null stands for a number that was not finite."""
    if name in LOG_PROBS and value is not None:
        return tuple(math.nan if part is None else part for part in value)
    return math.nan if value is None and name in _FLOATS else value
