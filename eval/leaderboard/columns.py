"""The columns of the leaderboard, and the controls that are always rows of it."""

from dataclasses import dataclass
from typing import Literal

from eval.metrics import METRICS, RUN_FIGURES, Metric, RunFigure
from eval.metrics.unit import Unit, unit_of


@dataclass(frozen=True)
class Column:
    """One column: a metric's key, as in a run's summary, its heading and its name in full, and which values are better.

    The unit is "%" (shares are shown in hundredths), or what is written after the name.
    """

    key: str
    short: str
    better: Literal["high", "low"]
    unit: str
    title: str

    @property
    def written(self) -> Unit:
        """How its figures are written."""
        return unit_of(self.unit)


def columns() -> dict[str, Column]:
    """All columns by key, in order: the metrics and the figures of runs that ask for one."""
    declared: list[Metric | RunFigure] = [*METRICS.values(), *RUN_FIGURES.values()]
    # S is never without preservation and perplexity drift beside it: alone it can reward a wrecked model.
    placed = [(one.column.place, one) for one in declared if one.column is not None]
    placed.sort(key=lambda pair: pair[0])
    return {one.key: Column(one.key, one.short, one.better or "high", one.unit, one.title) for _, one in placed}


def ranking() -> list[str]:
    """The keys of the metrics that tables can be ordered by; the first that the rows have is taken."""
    ranks = {one.key: one.column.ranks for one in METRICS.values() if one.column is not None}
    known = {key: rank for key, rank in ranks.items() if rank is not None}
    return sorted(known, key=lambda key: known[key])


def axes() -> dict[str, list[str]]:
    """By axis of the page's picture the keys of the metrics that it shows at first; the first that the rows have."""
    found: dict[str, list[tuple[int, str]]] = {"across": [], "up": []}
    for one in METRICS.values():
        if one.column is not None and one.column.axis is not None:
            found[one.column.axis].append((one.column.axis_place, one.key))
    return {axis: [key for _, key in sorted(places)] for axis, places in found.items()}


def one_value(mode: str) -> frozenset[str]:
    """The columns that in this mode have one value for all facts, and so no interval over facts and no test."""
    shared = {figure.key for figure in RUN_FIGURES.values() if mode in figure.one_value}
    if mode != "single":  # there every fact has an edited model of its own
        shared |= {metric.key for metric in METRICS.values() if metric.one_value}
    return frozenset(shared)


CONTROLS: dict[str, str] = {
    "none": "unedited model",
    "in_context": "fact in the context",
    "random": "random update",
    "finetune": "fine-tuning",
}
"""The editors that every comparison has, by name."""

NOT_EDITING = frozenset({"none", "random"})
"""Controls that do not try to make the edit: never marked as best, though the unedited model preserves most."""
