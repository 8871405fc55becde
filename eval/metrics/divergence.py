"""Divergence: how far the next-token distributions moved where they should not have (Specificity+)."""

from __future__ import annotations

from statistics import fmean

from torch import Tensor

from eval.metrics.metric import CurveColumn, LeaderboardColumn, Metric, Needs
from eval.records import Measurement


def kl_divergence(before: Tensor, after: Tensor) -> float:
    """KL(before, after) in nats, from log-probabilities, (vocabulary,), in float64."""
    return float((before.double().exp() * (before.double() - after.double())).sum())


def _mean(_before: Measurement | None, after: Measurement) -> float | None:
    kls = [record.kl for record in after.scored("neighbourhood") if record.kl is not None]
    return fmean(kls) if kls else None


METRICS = (
    Metric(
        "neighbourhood_kl",
        "neighbourhood KL",
        "nats",
        "low",
        (Needs("distributions", ("neighbourhood",)),),
        _mean,
        short="nbh. KL",
        edit_should="keep",
        column=LeaderboardColumn(100, axis="up", axis_place=3),
        curve=(CurveColumn("fixed"),),
    ),
)
