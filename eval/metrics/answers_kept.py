"""What stayed of the answers elsewhere, and whether the new object is said there; `preservation` compares words.

A continuation of ten tokens changes its wording at the least push: the same weights in bfloat16 leave three of four
word for word. What it *says* is the old object, where the unedited model says that, and else its first content word.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from corrigenda import Fact
from corrigenda.text.words import words
from eval.measurement import Measurement
from eval.metrics.free_generation import matches_leniently
from eval.metrics.metric import Compute, Groups, LeaderboardColumn, Metric, Needs, mean_of
from eval.records import RUNNING_KIND, SUBJECT_KIND, ScoredProbe, ScoredPrompt

Elsewhere: TypeAlias = ScoredPrompt | ScoredProbe

FUNCTION_WORDS = frozenset(
    "a about after all also an and any are as at be been before but by can could did do does during each for from had "
    "has have he her his how i if in into is it its may more most no not of on one or other our out over she so some "
    "such than that the their them then there these they this those to under up was we were what when where which "
    "while who whom whose why will with would you your".split()
)
"""English words that say nothing of a thing; in other languages the first word is a content word."""


def content_word(text: str) -> str:
    """The first word that is none of `FUNCTION_WORDS` and no sign, in normal form; "" where there is none."""
    spelt = (word for word in words(text) if any(map(str.isalnum, word)))  # "1.5" and "हिन्दी" are no isalnum()
    return next((word for word in spelt if word not in FUNCTION_WORDS), "")


def _judge(fact: Fact, measurement: Measurement) -> None:
    expected: dict[str, list[str]] = {}  # a prompt may stand twice, with other answers
    if fact.target_true is not None:
        expected |= {prompt: [fact.target_true] for prompt in fact.neighbourhood}
    for probe in fact.locality:
        expected.setdefault(probe.prompt, []).extend(probe.answers)
    for record in measurement.keeping():
        _note(record, fact, expected.get(record.prompt, ()))


def _note(record: Elsewhere, fact: Fact, expected: Sequence[str]) -> None:
    """Notes in a record what its answer says; nothing where there is no answer."""
    record.content_word = record.says_true = record.says_new = None
    if (answer := record.answer) is None:
        return
    record.content_word = content_word(answer)
    if expected:
        others = fact.answers or (None,)  # the new object may have the old one in it
        record.says_true = all(matches_leniently(answer, expected, other) for other in others)
    if fact.answers and not any(matches_leniently(one, fact.answers, fact.target_true) for one in expected):
        record.says_new = matches_leniently(answer, fact.answers, fact.target_true)


def _elsewhere(measurement: Measurement, kind: str) -> Sequence[Elsewhere]:
    """The records of one of the kinds that are not scored; for "": of neighbourhood and locality prompts."""
    return measurement.scored(kind) if kind else measurement.elsewhere()


def _pairs(before: Measurement | None, after: Measurement, kind: str) -> dict[str, tuple[Elsewhere, Elsewhere]]:
    """By prompt, each counted once, its records before and after, where both know the answer."""
    if before is None:
        return {}
    old, new = (
        {record.prompt: record for record in _elsewhere(one, kind) if record.content_word is not None}
        for one in (before, after)
    )
    return {prompt: (old[prompt], new[prompt]) for prompt in new if prompt in old}


def _kept(rule: Literal["object", "word"], old: Elsewhere, new: Elsewhere) -> bool | None:
    """Whether an answer is what it was; None where this rule does not say so: there was no old object, or no word."""
    if rule == "object":
        return new.says_true if old.says_true else None
    return None if old.says_true or not old.content_word else old.content_word == new.content_word


def _share(*rules: Literal["object", "word"], kind: str = "") -> Compute:
    def compute(before: Measurement | None, after: Measurement) -> float | None:
        return mean_of(_kept(rule, *pair) for pair in _pairs(before, after, kind).values() for rule in rules)

    return compute


def _first_token(_before: Measurement | None, after: Measurement) -> float | None:
    found = {record.prompt: record.same_tokens for record in after.elsewhere() if record.same_tokens is not None}
    return mean_of(count > 0 for count in found.values())


def _bleed(kind: str = "") -> Compute:
    def compute(_before: Measurement | None, after: Measurement) -> float | None:
        records = _elsewhere(after, kind)
        unasked = {record.prompt for record in records if record.says_new is None or record.tied}
        found = {record.prompt: bool(record.says_new) for record in records if record.prompt not in unasked}
        return mean_of(found.values())

    return compute


def _metric(
    key: str,
    title: str,
    compute: Compute,
    better: Literal["high", "low"],
    column: LeaderboardColumn | None,
    line: str = "",
    kinds: tuple[str, ...] = ("neighbourhood", "locality"),
    short: str = "",
) -> Metric:
    needs = (Needs("kept_answers", kinds),)
    groups = Groups("locality", f"{key}_", "", title.partition(":")[0]) if key in ("answer_kept", "bleed") else None
    return Metric(
        *(key, title, "%", better, needs, compute),
        line=line,
        edit_should="keep",
        judge=_judge,
        column=column,
        groups=groups,
        short=short,
    )


def _about_the_subject(kind: str, where: str, kept: LeaderboardColumn, bleed: LeaderboardColumn) -> tuple[Metric, ...]:
    """Answers kept and bleed on prompts that name the edited subject and are not about the fact."""
    share = _share("object", "word", kind=kind)
    return (
        _metric(f"answer_kept_{kind}", f"answers kept: {where}", share, "high", kept, kinds=(kind,)),
        _metric(f"bleed_{kind}", f"bleed: {where}", _bleed(kind), "low", bleed, kinds=(kind,)),
    )


METRICS = (
    _metric("answer_kept", "answers kept", _share("object", "word"), "high", LeaderboardColumn(22)),
    _metric(
        *("answer_kept_object", "answers kept: old object still said", _share("object"), "high", None),
        line="  old object still said",
    ),
    _metric(
        *("answer_kept_word", "answers kept: first content word", _share("word"), "high", None),
        line="  elsewhere: first content word",
    ),
    _metric("first_token_kept", "first token kept", _first_token, "high", LeaderboardColumn(24), short="first token"),
    _metric("bleed", "bleed: new object said elsewhere", _bleed(), "low", LeaderboardColumn(26), short="bleed"),
    *_about_the_subject(SUBJECT_KIND, "same subject", LeaderboardColumn(136), LeaderboardColumn(137)),
    *_about_the_subject(RUNNING_KIND, "subject in running text", LeaderboardColumn(138), LeaderboardColumn(139)),
)
