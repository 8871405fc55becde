"""Divergence: how far the next-token distributions moved where they should not have (Specificity+)."""

import torch
from torch import Tensor

from eval.metrics.metric import CurveColumn, LeaderboardColumn, Metric, Needs, mean_over


def kl_divergence(before: Tensor, after: Tensor) -> float:
    """KL(before, after) in nats, from log-probabilities, (vocabulary,), in float64.

    A token without probability before adds nothing, also where it has none after.
    """
    p = before.double().exp()
    return float(torch.where(p > 0, p * (before.double() - after.double()), 0).sum())


METRICS = (
    Metric(
        "neighbourhood_kl",
        "neighbourhood KL",
        "nats",
        "low",
        (Needs("distributions", ("neighbourhood",)),),
        mean_over("kl", "neighbourhood"),
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
        mean_over("kl", "locality"),
        short="loc. KL",
        edit_should="keep",
        column=LeaderboardColumn(105, axis="up", axis_place=4),
        curve=(CurveColumn(heading="KL", place=75), CurveColumn("fixed", "fixed KL", 105)),
    ),
)
