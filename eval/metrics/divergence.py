"""Divergence: how far the next-token distributions moved where they should not have (Specificity+)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from torch import Tensor

from eval.measurement import Measurement
from eval.metrics.metric import CurveColumn, LeaderboardColumn, Metric, Needs
from eval.records import ScoredProbe, ScoredPrompt


def kl_divergence(before: Tensor, after: Tensor) -> float:
    """KL(before, after) in nats, from log-probabilities, (vocabulary,), in float64."""
    return float((before.double().exp() * (before.double() - after.double())).sum())


def _mean(records: Sequence[ScoredPrompt | ScoredProbe]) -> float | None:
    kls = [record.kl for record in records if record.kl is not None]
    return fmean(kls) if kls else None


def _of_neighbourhood(_before: Measurement | None, after: Measurement) -> float | None:
    return _mean(after.scored("neighbourhood"))


def _of_locality(_before: Measurement | None, after: Measurement) -> float | None:
    return _mean(after.probes("locality"))


METRICS = (
    Metric(
        "neighbourhood_kl",
        "neighbourhood KL",
        "nats",
        "low",
        (Needs("distributions", ("neighbourhood",)),),
        _of_neighbourhood,
        short="nbh. KL",
        edit_should="keep",
        column=LeaderboardColumn(100, axis="up", axis_place=3),
        curve=(CurveColumn("fixed"),),
    ),
    Metric(
        "locality_kl",
        "locality KL",
        "nats",
        "low",
        (Needs("distributions", ("locality",)),),
        _of_locality,
        short="loc. KL",
        edit_should="keep",
        column=LeaderboardColumn(105, axis="up", axis_place=4),
        curve=(CurveColumn(heading="KL", place=75), CurveColumn("fixed", "fixed KL", 105)),
    ),
)
