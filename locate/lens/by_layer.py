"""Figures by layer: a mean with its interval over cases, tables of them, and their picture."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from corrigenda.intervals import interval
from locate.pictures import chart, plot_text, ticks_at_layers


@dataclass(frozen=True)
class Mean:
    """A mean over n cases, and the bounds of its 95 % interval; None where there is none (fewer than two cases)."""

    mean: float
    low: float | None
    high: float | None
    n: int

    def summary(self) -> dict[str, Any]:
        """In plain values."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "n": self.n}

    def text(self, percent: bool = False, digits: int = 1) -> str:
        """For a table."""
        by = 100 if percent else 1
        bounds = "" if self.low is None or self.high is None else f" [{by * self.low:.{digits}f}, "
        return f"{by * self.mean:.{digits}f}" + (bounds and f"{bounds}{by * (self.high or 0):.{digits}f}]")


def mean_of(values: Sequence[float], shares: bool = False) -> Mean | None:
    """The mean of independent cases but for those that are NaN; None where no case was measured.

    With `shares` they are yes-or-no outcomes, or shares from 0 to 1 (`corrigenda.intervals.interval`).
    """
    measured = [value for value in values if not math.isnan(value)]
    if not measured:
        return None
    low, high = interval([measured], range(len(measured)), shares=shares) or (None, None)
    return Mean(fmean(measured), low, high, len(measured))


Curves = Mapping[str, Sequence[Mean | float | None]]
"""By name a figure for each layer; one without an interval is a number, None was not measured."""


def table_of(
    title: str, layers: Sequence[int], columns: Mapping[str, Sequence[Mean | float | str | None]], percent: bool = False
) -> Table:
    """A table for a terminal: a row for each layer; texts stand as they are, and what was not measured is blank."""
    table = Table("layer", *columns, title=title)
    for place, layer in enumerate(layers):
        table.add_row(str(layer), *(_cell(figures[place], percent) for figures in columns.values()))
    return table


def _cell(figure: Mean | float | str | None, percent: bool) -> str:
    if figure is None or isinstance(figure, str):
        return figure or ""
    return (figure if isinstance(figure, Mean) else Mean(figure, None, None, 1)).text(percent)


def plot_curves(
    path: str | Path, layers: Sequence[int], curves: Curves, *, label: str, title: str, percent: bool = False
) -> None:
    """Draws a curve for each name over the layers, with its interval; of shares in percent."""
    by = 100 if percent else 1
    with chart(path, plot_text(title, 90), legend="small" if len(curves) > 1 else None) as axes:
        for name, figures in curves.items():
            means = [_part(each, "mean") * by for each in figures]
            [line] = axes.plot(list(layers), means, label=name)
            low, high = ([_part(each, side) * by for each in figures] for side in ("low", "high"))
            axes.fill_between(list(layers), low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        ticks_at_layers(axes, layers)
        axes.set_xlabel("layer")
        axes.set_ylabel(f"{label} (%)" if percent else label)


def _part(figure: Mean | float | None, part: str) -> float:
    """One of a figure's numbers, NaN where there is none."""
    found = getattr(figure, part) if isinstance(figure, Mean) else figure
    return math.nan if found is None else float(found)
