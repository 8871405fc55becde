"""Token accuracy: the share of the target's tokens that are the most likely ones under teacher forcing (zsRE, MEND)."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from eval.measurement import Measurement
from eval.metrics.groups import note_groups
from eval.metrics.metric import Compute, CurveColumn, Groups, LeaderboardColumn, Metric, Needs
from eval.records import ScoredProbe, ScoredPrompt


def _mean(records: Iterable[ScoredPrompt | ScoredProbe]) -> float | None:
    shares = [record.token_accuracy for record in records if record.token_accuracy is not None]
    return fmean(shares) if shares else None


def _of_prompts(kind: str) -> Compute:
    return lambda _before, after: _mean(after.scored(kind))


def _of_portability(_before: Measurement | None, after: Measurement) -> float | None:
    return _mean(after.probes("portability"))


METRICS = (
    Metric(
        "token_accuracy",
        "token accuracy, teacher-forced",
        "%",
        "high",
        (Needs("probabilities", ("prompt",)),),
        _of_prompts("prompt"),
        short="token acc.",
        edit_should="change",
        column=LeaderboardColumn(70, ranks=3, axis="across", axis_place=3),
        curve=(CurveColumn("right_after", "right after", 10), CurveColumn(heading="reliability", place=20)),
    ),
    Metric(
        "paraphrase_token_accuracy",
        "token accuracy on paraphrases, teacher-forced",
        "%",
        "high",
        (Needs("probabilities", ("paraphrases",)),),
        _of_prompts("paraphrases"),
        short="par. token",
        line="  on paraphrases",
        edit_should="change",
        curve=(CurveColumn("right_after"), CurveColumn(heading="generalization", place=40)),
    ),
    Metric(
        "portability_token_accuracy",
        "portability: token accuracy on consequences",
        "%",
        "high",
        (Needs("probabilities", ("portability",)),),
        _of_portability,
        short="port. token",
        line="  on consequences (portability)",
        edit_should="change",
        judge=note_groups,
        column=LeaderboardColumn(110),
        groups=Groups("portability", "portability_", "_token_accuracy", "token accuracy"),
    ),
)
"""On the edited statement, its paraphrases, and its consequences (RippleEdits, KnowEdit)."""
