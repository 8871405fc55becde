"""Typed records of what a model did with prompts; `eval.measurement` holds those of one fact.

A record is written to a run's files as a JSON object with the fields that are known, in the order in which they are
declared here. Reading gives back what was written: a number that was not finite is written as null and read as NaN.

What the records of a run mean is numbered (`DEFINITIONS`), so that figures of different meanings are not compared.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, TypeVar

PAIRED_KINDS = ("prompt", "paraphrases", "neighbourhood", "neighbourhood_plus", "negations")
"""The kinds of prompts that are scored with the new and the true object."""

PROBE_KINDS = ("locality", "portability", "reversals")
"""The kinds of prompts that are scored with an expected answer of their own."""

CHECK_KIND = "fact_checks"
"""The kind of questions to be answered with "Yes" or "No"."""

SUBJECT_KIND = "same_subject"
"""The kind of prompts about other things of the edited subject; nothing is scored, what the model gives is compared."""

RUNNING_KIND = "running_text"
"""The kind of texts that name the edited subject and go on about something else, likewise."""

UNSCORED_KINDS = (SUBJECT_KIND, RUNNING_KIND)
"""The kinds of prompts of which only continuations and distributions are compared."""

SIDE_KINDS = frozenset({"negations", "reversals", CHECK_KIND, *UNSCORED_KINDS})
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
    """A prompt that is scored with the fact's objects; one of `PAIRED_KINDS`, or with nothing (`UNSCORED_KINDS`).

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
        tied: of the unedited model, True where its own forward does not give the continuation that it decoded: two
            tokens are equally likely to within rounding, and the prompt is not compared (half precision).
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
    tied: bool | None = None


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
        tied: as of a `ScoredPrompt` (locality).
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
    tied: bool | None = None


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
    """A text that was sampled after a prompt, without that, and its n-gram entropy in bits, from the text."""

    text: str = ""
    entropy: float | None = None


@dataclass
class AskedQuestion(Record):
    """A question about a fact as a person asks it, and the answer (`eval.real_use`).

    Attributes:
        kind: of which of the fact's prompts: "prompt" or "paraphrases".
        setting: how it was asked, one of `eval.real_use.settings.SETTINGS`: "plain_bare", "chat_context", ...
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
    **dict.fromkeys(UNSCORED_KINDS, ScoredPrompt),
    CHECK_KIND: ScoredCheck,
    TEXT_KIND: SampledText,
    QUESTION_KIND: AskedQuestion,
}
"""By kind of prompt, what its records are."""


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
