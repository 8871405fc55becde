"""Perplexity of held-out text, and its drift: what an edit did to the model as a whole."""

from __future__ import annotations

from eval.metrics.metric import CurveColumn, LeaderboardColumn, Metric, Needs
from eval.records import Measurement


def _level(_before: Measurement | None, after: Measurement) -> float | None:
    return after.log_perplexity


def _drift(before: Measurement | None, after: Measurement) -> float | None:
    """The difference of the logarithms: ln ppl(after) - ln ppl(before)."""
    if before is None or before.log_perplexity is None or after.log_perplexity is None:
        return None
    return after.log_perplexity - before.log_perplexity


METRICS = (
    Metric(
        "perplexity_drift",
        "perplexity drift",
        "nats",
        "low",
        (Needs("held_out_text"),),
        _drift,
        short="ppl drift",
        edit_should="keep",
        one_value=True,
        column=LeaderboardColumn(30),
        curve=(CurveColumn(heading="drift", place=120),),
    ),
    Metric(
        "log_perplexity",
        "log perplexity of the held-out text",
        "nats",
        "low",
        (Needs("held_out_text"),),
        _level,
        short="log ppl",
        line="  log perplexity of the held-out text",
        edit_should="keep",
        one_value=True,
    ),
)
