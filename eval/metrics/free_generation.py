"""Free-generation accuracy: does the greedy answer give the target?

No teacher forcing and no hint of the answer's length (Yang et al. 2025, "The Mirage of Model Editing"). The normalised
answer begins with a target (strict) or contains one (lenient), as whole words (`corrigenda.text.words` defines them);
the true object with a target in it ("Rome, Georgia") is none.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

from corrigenda import Fact
from corrigenda.text.words import places
from eval.measurement import Measurement
from eval.metrics.groups import note_groups
from eval.metrics.metric import CurveColumn, Groups, LeaderboardColumn, Metric, Needs, mean_over
from eval.records import ScoredProbe, ScoredPrompt

Verdict: TypeAlias = Literal["strict", "lenient"]


def matches_strictly(answer: str, targets: Sequence[str], other: str | None = None) -> bool:
    """Whether the answer starts with one of the targets, as whole words, and not with `other`.

    That is no target, though it may have one in it: "Rome, Georgia" is not "Rome".
    """
    return any(
        0 in places(answer, target) and not (0 in _within(target, other) and 0 in places(answer, other or ""))
        for target in targets
    )


def matches_leniently(answer: str, targets: Sequence[str], other: str | None = None) -> bool:
    """Whether the answer contains one of the targets, as whole words in a row; arguments as of `matches_strictly`."""
    return any(
        len(places(answer, target)) > len(_within(target, other)) * len(places(answer, other or ""))
        for target in targets
    )


def _within(target: str, other: str | None) -> list[int]:
    """Where a target stands in a longer text."""
    return [] if other is None or places(target, other) else places(other, target)


def _judge(fact: Fact, measurement: Measurement) -> None:
    for prompt in measurement.scored("prompt", "paraphrases"):
        _give_verdict(prompt, fact.answers if prompt.answer is not None else (), fact.target_true)
    for record, probe in zip(measurement.probes("portability"), fact.portability, strict=False):
        _give_verdict(record, probe.answers)
    note_groups(fact, measurement)


def _give_verdict(record: ScoredPrompt | ScoredProbe, targets: Sequence[str], other: str | None = None) -> None:
    answer = record.answer
    record.strict = None if answer is None else matches_strictly(answer, targets, other)
    record.lenient = None if answer is None else matches_leniently(answer, targets, other)


def _metric(
    kind: str,
    verdict: Verdict,
    title: str,
    short: str,
    line: str = "",
    column: LeaderboardColumn | None = None,
    curve: tuple[CurveColumn, ...] = (),
) -> Metric:
    """Strict or lenient accuracy on one kind of prompts."""
    prefix = {"prompt": "", "paraphrases": "paraphrase_", "portability": "portability_"}[kind]
    after = f"_free_generation_{verdict}"
    groups = Groups("portability", "portability_", after, f"free generation {verdict}")
    return Metric(
        f"{prefix}free_generation_{verdict}",
        title,
        "%",
        "high",
        (Needs("free_answers", (kind,)),),
        mean_over(verdict, kind),
        short=short,
        line=line,
        edit_should="change",
        judge=_judge,
        column=column,
        curve=curve,
        groups=groups if kind == "portability" else None,
    )


METRICS = (
    _metric(
        *("prompt", "strict", "free generation, strict", "free strict"),
        column=LeaderboardColumn(80),
        curve=(CurveColumn("right_after"), CurveColumn(heading="free", place=30)),
    ),
    _metric(
        *("prompt", "lenient", "free generation, lenient", "free lenient"),
        column=LeaderboardColumn(90, axis="across", axis_place=2),
    ),
    _metric(
        *("paraphrases", "strict", "free generation on paraphrases, strict", "par. free strict"),
        line="  on paraphrases, strict",
        column=LeaderboardColumn(85),
        curve=(CurveColumn(heading="free", place=50),),
    ),
    _metric(
        *("paraphrases", "lenient", "free generation on paraphrases, lenient", "par. free lenient"),
        line="  on paraphrases, lenient",
    ),
    _metric(
        *("portability", "strict", "portability: free generation on consequences, strict", "port. free strict"),
        line="  on consequences, strict",
    ),
    _metric(
        *("portability", "lenient", "portability: free generation on consequences, lenient", "port. free"),
        line="  on consequences, lenient",
        column=LeaderboardColumn(120),
    ),
)
"""On the edited statement, its paraphrases, and its consequences."""
