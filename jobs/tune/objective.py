"""What settings are tuned for: one figure of a trial, out of the metrics that the evaluation declares."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from corrigenda.data.schemas import SCHEMAS
from corrigenda.errors import SettingsError
from eval.leaderboard.columns import ranking
from eval.metrics import METRICS
from eval.statistics.paired import harmonic_mean

DRIFT = "perplexity_drift"
KEPT = "preservation"
HELD = ("free_generation_strict", "paraphrase_free_generation_strict")
"""Whether an edit holds in what the model says by itself. Without an edit that is 0, whatever else is kept."""

LEAST = 0.01
"""A share that is less counts as this, so that the others count where one is 0 with all settings."""


@dataclass(frozen=True)
class Objective:
    """The harmonic mean of shares, where the perplexity drift and what is lost keep within bounds.

    Where they do not, the value is what is too much, negative: any settings within the bounds are better, and among
    others those that miss them by less.

    Attributes:
        metrics: the keys of the shares, of which high values are better.
        most_drift: the bound in nats; None for none.
        floors: by metric the least share.
    """

    metrics: tuple[str, ...]
    most_drift: float | None
    floors: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in self.metrics:
            metric = METRICS.named(key)
            if not metric.written.is_share or metric.better != "high":
                raise SettingsError(f"job.metrics: {key} is no share of which high values are better")

    def value(self, figures: Mapping[str, float]) -> float | None:
        """The value of a trial by its metrics' means after the edits; None where one of them is missing."""
        drift = figures.get(DRIFT, 0.0 if self.most_drift is None else None)
        if drift is None or not {*self.metrics, *self.floors} <= figures.keys():
            return None
        too_much = 0.0 if self.most_drift is None else max(drift - self.most_drift, 0.0)
        too_much += sum(max(least - figures[key], 0.0) for key, least in self.floors.items())
        if too_much > 0:
            return -too_much
        return float(harmonic_mean(*(np.asarray(max(figures[key], LEAST)) for key in self.metrics)))

    @property
    def in_words(self) -> str:
        """What it is, for a page."""
        titles = [METRICS.named(key).title for key in self.metrics]
        what = titles[0] if len(titles) == 1 else f"harmonic mean of {', '.join(titles[:-1])} and {titles[-1]}"
        if self.most_drift is not None:
            what += f", with a perplexity drift of at most {self.most_drift:g}"
        least = [
            f"{METRICS.named(key).title} {METRICS.named(key).written.text(low)}" for key, low in self.floors.items()
        ]
        return f"{what}, and at least: {', '.join(least)}" if least else what


def objective_for(
    schema: str | None,
    metrics: Sequence[str],
    most_drift: float | None,
    most_lost: float | None,
    figures: Mapping[str, Mapping[str, Any]],
) -> Objective:
    """What to tune for: what the command line names, else what the data set declares.

    That is the first of the metrics by which its tables are ranked that was measured, together with strict free
    generation and preservation, where they were measured. Free generation, because to do nothing keeps everything: of
    the unedited model S is 0.35 in CounterFact, and preservation 1. Shares but preservation may be `most_lost` less
    than among `figures`, those of the first trial. Raises SettingsError: what is named, or the drift that is bounded,
    was not measured; ValueError: there is no such metric.
    """
    declared = SCHEMAS[schema].ranked_by if schema in SCHEMAS else ()
    if not metrics:
        ranks = next((key for key in declared or ranking() if key in figures), None)
        if ranks is None:
            raise SettingsError(
                f"job.metrics has no value, and nothing that ranks such facts was measured; name some of the shares "
                f"among {', '.join(figures)}"
            )
        metrics = list(dict.fromkeys([ranks, *(key for key in (HELD[0], KEPT) if key in figures)]))
        held = [ranks, *(key for key in HELD if key in figures)]
    else:
        held = [*metrics]
    found = Objective(tuple(metrics), most_drift)
    if missing := [key for key in found.metrics if key not in figures]:
        raise SettingsError(f"job.metrics: {missing[0]} was not measured; these were: {', '.join(figures)}")
    if most_drift is not None and DRIFT not in figures:
        raise SettingsError(
            f"job.most_drift={most_drift:g}: the perplexity drift was not measured; give job.most_drift=null, or "
            "eval.perplexity_windows"
        )
    if most_lost is None:
        return found
    floors = {key: max(float(figures[key]["after"]) - most_lost, 0.0) for key in held if key != KEPT}
    return replace(found, floors=floors)
