"""Real use: are questions answered with the new object, as a match of words says it, and as a judge does?

Yang et al. 2025, "The Mirage of Model Editing": no teacher forcing, no length hint, natural stop. The match asks
whether the normalised answer has the target or an alias in it as whole words; the judge is another model.
"""

from collections.abc import Callable, Iterator
from typing import Literal

from corrigenda import Fact
from eval.judge.agreement import kappa
from eval.judge.verdicts import verdict_of
from eval.measurement import Measurement
from eval.metrics.free_generation import matches_leniently
from eval.metrics.metric import Metric, Needs, mean_of
from eval.real_use.settings import SETTINGS
from eval.records import AskedQuestion

Way = Literal["match", "judged"]

_KINDS = ("prompt", "paraphrases")
_SAYS: dict[Way, str] = {"match": "match", "judged": "judge"}


def _note(fact: Fact, measurement: Measurement) -> None:
    for record in measurement.questions():
        record.match = matches_leniently(record.answer, fact.answers, fact.target_true)
        record.verdict = None if record.reply is None else verdict_of(record.reply, record.answer)


def _right(record: AskedQuestion, way: Way) -> bool | None:
    """Whether an answer is right; None where that is not known."""
    if way == "match":
        return record.match
    return None if record.verdict in (None, "unread") else record.verdict == "right"


def _success(kind: str, way: Way, setting: str | None) -> Metric:
    """The share of questions answered rightly: those about one kind of prompts, in one setting or in all."""

    def compute(_before: Measurement | None, after: Measurement) -> float | None:
        asked = [one for one in after.questions() if one.kind == kind and setting in (None, one.setting)]
        return mean_of(_right(one, way) for one in asked)

    prefix, about = {"prompt": ("", ""), "paraphrases": ("paraphrase_", ", paraphrases")}[kind]
    key, title, line = f"{prefix}real_use_{way}", f"in real use{about}, by {_SAYS[way]}", ""
    if setting is not None:
        key, line = f"{prefix}real_use_{setting}_{way}", f"  {setting.replace('_', ', ')}"
        title = f"in real use{about},{line[1:]}, by {_SAYS[way]}"
    return Metric(
        key, title, "%", "high", (Needs("questions", (kind,)),), compute, line=line, edit_should="change", judge=_note
    )


def _compared(measurement: Measurement) -> list[AskedQuestion]:
    """The answers that have both marks. An answer without a word has none of the judge's: it was not asked."""
    return [one for one in measurement.questions() if one.answer.strip() and one.verdict in ("right", "wrong")]


def _of_compared(marked: Callable[[AskedQuestion], bool]) -> Callable[[Measurement | None, Measurement], float | None]:
    return lambda _before, after: mean_of(marked(one) for one in _compared(after))


def _n_compared(_before: Measurement | None, after: Measurement) -> float | None:
    return float(len(_compared(after))) if any(one.verdict is not None for one in after.questions()) else None


def _unread(_before: Measurement | None, after: Measurement) -> float | None:
    asked = [one for one in after.questions() if one.answer.strip() and one.verdict is not None]
    return mean_of(one.verdict == "unread" for one in asked)


def _of_one_fact(_before: Measurement | None, _after: Measurement) -> None:
    """Kappa is of the shares over facts; one fact has none."""


_ALL = (Needs("questions", _KINDS),)


def _all() -> Iterator[Metric]:
    for way in ("match", "judged"):
        for kind in _KINDS:
            for setting in (None, *SETTINGS):
                yield _success(kind, way, setting)
    yield Metric(
        "judge_agreement",
        "judge and match agree",
        "%",
        None,
        _ALL,
        _of_compared(lambda one: one.match is (one.verdict == "right")),
        judge=_note,
    )
    yield Metric(
        "judge_match_right", "  right by the match", "%", None, _ALL, _of_compared(lambda one: bool(one.match))
    )
    yield Metric(
        "judge_says_right", "  right by the judge", "%", None, _ALL, _of_compared(lambda one: one.verdict == "right")
    )
    yield Metric(
        "judge_kappa",
        "judge and match: Cohen's kappa",
        "",
        None,
        _ALL,
        _of_one_fact,
        line="  Cohen's kappa",
        parts=("judge_agreement", "judge_match_right", "judge_says_right"),
        combine=kappa,
    )
    yield Metric("judge_compared", "  answers compared, a fact", "", None, _ALL, _n_compared)
    yield Metric("judge_unread", "verdicts that cannot be read", "%", "low", _ALL, _unread, line="  verdicts unread")


METRICS = tuple(_all())
"""By each way of marking, on the edited statement and on its paraphrases, over all settings and in each; and how far
the two ways agree on the answers that both mark."""
