"""Success and magnitude: is the new object more probable than the old one, and by how much (ROME, CounterFact).

log P of an object is the mean log-probability of its tokens, as in the authors' scorer: in success and magnitude alike.
The score S (ROME) is the harmonic mean of efficacy, paraphrase and neighbourhood success.
"""

from collections.abc import Mapping
from typing import Any

from corrigenda import Fact
from eval.measurement import Measurement
from eval.metrics.metric import Compute, CurveColumn, LeaderboardColumn, Metric, Needs, mean_of
from eval.records import PAIRED_KINDS
from eval.scoring.probabilities import TargetScore, probabilities
from eval.statistics.paired import harmonic_mean


def paired_probabilities(record: Mapping[str, Any]) -> tuple[float, float] | None:
    """P(new) and P(true), by the mean, from a prompt's log-probabilities; None where it has not both."""
    if "log_probs_new" not in record or "log_probs_true" not in record:
        return None
    new, true = (TargetScore(tuple(record[f"log_probs_{name}"]), ()) for name in ("new", "true"))
    return probabilities(new, true)


def _judge(_fact: Fact, measurement: Measurement) -> None:
    for record in measurement.scored(*PAIRED_KINDS):
        record.p_new, record.p_true = paired_probabilities(record) or (None, None)


def _gains(measurement: Measurement, kind: str) -> list[float]:
    """By prompt P(new) - P(true); where the old object should stay, P(true) - P(new)."""
    sign = 1 if kind in ("prompt", "paraphrases") else -1
    pairs = ((record.p_new, record.p_true) for record in measurement.scored(kind))
    return [(new - true) * sign for new, true in pairs if new is not None and true is not None]


def _success(kind: str) -> Compute:
    """The share of prompts where the object that should be more probable is. A tie is no success."""

    def compute(_before: Measurement | None, after: Measurement) -> float | None:
        return mean_of(gain > 0 for gain in _gains(after, kind))

    return compute


def _magnitude(kind: str) -> Compute:
    """The mean difference of the two probabilities."""

    def compute(_before: Measurement | None, after: Measurement) -> float | None:
        return mean_of(_gains(after, kind))

    return compute


def _of_one_fact(_before: Measurement | None, _after: Measurement) -> None:
    """A score is of the means over facts; one fact has none."""


def _metric(key: str, title: str, short: str, kind: str, compute: Compute, **more: Any) -> Metric:
    needs = (Needs("probabilities", (kind,)),)
    return Metric(key, title, "%", "high", needs, compute, short=short, judge=_judge, **more)


METRICS = (
    _metric(
        *("efficacy_success", "efficacy success (ES)", "ES", "prompt", _success("prompt")),
        edit_should="change",
        column=LeaderboardColumn(40, ranks=2, axis="across", axis_place=1),
        curve=(CurveColumn("right_after"),),
    ),
    _metric(*("efficacy_magnitude", "efficacy magnitude (EM)", "EM", "prompt", _magnitude("prompt")), signed=True),
    _metric(
        *("paraphrase_success", "paraphrase success (PS)", "PS", "paraphrases", _success("paraphrases")),
        edit_should="change",
        column=LeaderboardColumn(50),
    ),
    _metric(
        *("paraphrase_magnitude", "paraphrase magnitude (PM)", "PM", "paraphrases", _magnitude("paraphrases")),
        signed=True,
    ),
    _metric(
        *("neighbourhood_success", "neighbourhood success (NS)", "NS", "neighbourhood", _success("neighbourhood")),
        edit_should="keep",
        column=LeaderboardColumn(60, axis="up", axis_place=1),
        curve=(CurveColumn(heading="NS", place=80), CurveColumn("fixed", "fixed NS", 110)),
    ),
    _metric(
        *("neighbourhood_magnitude", "neighbourhood magnitude (NM)", "NM"),
        *("neighbourhood", _magnitude("neighbourhood")),
        signed=True,
        edit_should="keep",
        curve=(CurveColumn("fixed"),),
    ),
    Metric(  # over the facts that have all three parts
        *("score", "score (S)", "%", "high"),
        *((Needs("probabilities", ("prompt", "paraphrases", "neighbourhood")),), _of_one_fact),
        short="S",
        parts=("efficacy_success", "paraphrase_success", "neighbourhood_success"),
        combine=harmonic_mean,
        # It can reward a wrecked model, and is not shown without what would tell.
        shown_with=("preservation", "perplexity_drift"),
        column=LeaderboardColumn(10, ranks=1),
    ),
)
"""On the edited statement, its paraphrases and its neighbourhood. A failed edit keeps the magnitudes that were
measured: how far the model is from the new object is known also then."""

WITH_STATEMENT_BEFORE = _metric(
    *("neighbourhood_success_plus", "neighbourhood success + (statement before)", "NS+"),
    *("neighbourhood_plus", _success("neighbourhood_plus")),
    edit_should="keep",
)
"""NS with the edited statement put before each neighbourhood prompt (CounterFact+, Hoelscher-Obermaier et al. 2023)."""
