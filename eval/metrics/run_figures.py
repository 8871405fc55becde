"""Figures of a run that are no metrics of prompts: time, memory, the norm of the change."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from eval.metrics.metric import LeaderboardColumn
from eval.metrics.unit import Unit, unit_of


@dataclass(frozen=True)
class RunFigure:
    """One figure of a run or of a point of its curve.

    Attributes:
        key: its name in a run's summary and in the points of a curve.
        title: its name in full.
        short: its heading on the leaderboard.
        unit: a symbol of `eval.metrics.unit.UNITS`, or another.
        better: whether high or low values are better; None where neither is.
        heading: in tables of curves.
        column: its column of the leaderboard, if it has one.
        one_value: the modes of runs in which it has one value for all facts, and so no interval over facts.
    """

    key: str
    title: str
    short: str
    unit: str
    better: Literal["high", "low"] | None
    heading: str
    column: LeaderboardColumn | None = None
    one_value: frozenset[str] = frozenset()

    @property
    def written(self) -> Unit:
        """How it is written."""
        return unit_of(self.unit)


NORM = RunFigure("norm", "norm of the change", "norm", "norm", None, "norm")
SECONDS = RunFigure(
    *("seconds_per_edit", "seconds per edit", "s / edit", "s", "low", "s an edit"),
    column=LeaderboardColumn(140),
    one_value=frozenset({"batch"}),
)
MEMORY = RunFigure(
    *("peak_memory_mb", "peak memory of the process", "memory", "MB", "low", "MB"),
    column=LeaderboardColumn(150),
    one_value=frozenset({"single", "batch", "sequential"}),
)

RUN_FIGURES: Mapping[str, RunFigure] = {figure.key: figure for figure in (NORM, SECONDS, MEMORY)}
"""In the order of tables of curves."""
