"""What settings are tuned for: one figure of a trial, out of the metrics that the evaluation declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corrigenda.data.schemas import SCHEMAS
from corrigenda.settings import SettingsError
from eval.leaderboard.columns import ranking
from eval.metrics import METRICS
from eval.statistics.paired import harmonic_mean

DRIFT = "perplexity_drift"
KEPT = "preservation"


@dataclass(frozen=True)
class Objective:
    """The harmonic mean of shares, where the perplexity drift keeps within a bound.

    Where it does not, the value is what the drift is too high, negative: any settings within the bound are better, and
    among others those that do less harm.

    Attributes:
        metrics: the keys of the shares, of which high values are better.
        most_drift: the bound in nats; None for none.
    """

    metrics: tuple[str, ...]
    most_drift: float | None

    def __post_init__(self) -> None:
        for key in self.metrics:
            metric = METRICS.named(key)
            if not metric.written.is_share or metric.better != "high":
                raise SettingsError(f"job.metrics: {key} is no share of which high values are better")

    def value(self, figures: Mapping[str, float]) -> float | None:
        """The value of a trial; None where one of its figures is missing.

        Args:
            figures: by metric the mean after the edits.
        """
        drift = figures.get(DRIFT, 0.0 if self.most_drift is None else None)
        if drift is None or not set(self.metrics) <= figures.keys():
            return None
        if self.most_drift is not None and drift > self.most_drift:
            return self.most_drift - drift
        return float(harmonic_mean(*(np.asarray(max(figures[key], 0.0)) for key in self.metrics)))

    @property
    def in_words(self) -> str:
        """What it is, for a page."""
        titles = [METRICS.named(key).title for key in self.metrics]
        what = titles[0] if len(titles) == 1 else f"harmonic mean of {' and '.join(titles)}"
        return what if self.most_drift is None else f"{what}, with a perplexity drift of at most {self.most_drift:g}"


def objective_for(
    schema: str | None, metrics: Sequence[str], most_drift: float | None, figures: Mapping[str, Any]
) -> Objective:
    """What to tune for: what the command line names, else what the data set declares.

    That is the first of the metrics by which its tables are ranked that was measured, together with preservation, where
    that was measured: for CounterFact the score S and preservation.

    Args:
        schema: of the data, as ``data.schema`` names it.
        metrics: what the command line names; empty for what the data set declares.
        most_drift: see `Objective`.
        figures: those that the first trial has.

    Raises:
        SettingsError: what is named, or the drift that is bounded, was not measured.
        ValueError: there is no such metric.
    """
    declared = SCHEMAS[schema].ranked_by if schema in SCHEMAS else ()
    if not metrics:
        ranks = next((key for key in declared or ranking() if key in figures), None)
        if ranks is None:
            raise SettingsError(
                f"job.metrics has no value, and nothing that ranks such facts was measured; name some of the shares "
                f"among {', '.join(figures)}"
            )
        metrics = [ranks, *([KEPT] if KEPT in figures and ranks != KEPT else [])]
    found = Objective(tuple(metrics), most_drift)
    if missing := [key for key in found.metrics if key not in figures]:
        raise SettingsError(f"job.metrics: {missing[0]} was not measured; these were: {', '.join(figures)}")
    if most_drift is not None and DRIFT not in figures:
        raise SettingsError(
            f"job.most_drift={most_drift:g}: the perplexity drift was not measured; give job.most_drift=null, or "
            "eval.perplexity_windows"
        )
    return found
