"""What edits hold, in bits, by the number of facts in them: `Capacity`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table

from corrigenda.intervals import LEVEL, RESAMPLES, interval
from corrigenda.system.progress import counted
from locate.pictures import chart, plot_text
from locate.saving import SavedResult

PRETRAINING = 2.0
"""Bits a parameter that a transformer holds after long pretraining (Allen-Zhu and Li 2025, result 1)."""
BOUNDS = ("low", "high")
TOLD = ("count", "edits", "refused", "parameters", "numbers", "seconds")


@dataclass(frozen=True)
class Point:
    """The edits of one number of facts.

    Attributes:
        count: facts in an edit.
        subjects: of the facts of all these edits.
        before: the bits of each fact that the unedited model knows (`eval.scoring.candidates.bits_known`).
        after: the same under the edit that has the fact.
        parameters: of an edit, in the mean over those that were not refused: the entries of the value matrices that it
            changes; the numbers that it adds, where it changes none. None where all were refused.
        numbers: of which the edit consists, likewise: of a low-rank one those of its factors.
        refused: edits that were refused.
        edits: how many there are.
        seconds: of an edit, in the mean.
    """

    count: int
    subjects: tuple[str, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    parameters: float | None
    numbers: float | None
    refused: int
    edits: int
    seconds: float

    @classmethod
    def of(cls, count: int, lines: Sequence[Mapping[str, Any]]) -> "Point":
        """Puts the lines of a run together (`jobs.capacity.measuring`)."""
        made = [line for line in lines if not line["error"]]
        whole = [tuple(one for line in lines for one in line[name]) for name in ("subjects", "before", "after")]
        subjects, before, after = whole
        sizes = [fmean(line[name] for line in made) if made else None for name in ("parameters", "numbers")]
        parameters, numbers = sizes
        seconds, refused = fmean(line["seconds"] for line in lines), len(lines) - len(made)
        return cls(count, subjects, before, after, parameters, numbers, refused, len(lines), seconds)

    @property
    def gains(self) -> NDArray[np.float64]:
        """Bits after less before, of each fact."""
        return np.array(self.after) - np.array(self.before)

    def bits_per_fact(self) -> tuple[float, float | None, float | None]:
        """The mean gain and its 95 % interval over subjects; None where there is one subject."""
        low, high = interval([self.gains.tolist()], self.subjects) or (None, None)
        return float(self.gains.mean()), low, high

    def drawn(self, draw: np.random.Generator) -> NDArray[np.float64]:
        """The bits of a fact over subjects drawn with replacement, (draw,)."""
        _, member = np.unique(self.subjects, return_inverse=True)
        counts = np.bincount(member)
        times = draw.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), RESAMPLES)
        return np.asarray((times @ np.bincount(member, self.gains)) / (times @ counts))


@dataclass(frozen=True, eq=False)
class Capacity(SavedResult, file="capacity"):
    """Bits that edits hold, for several ways to edit.

    Attributes:
        model: the model's name.
        d_ffn: of its first layer.
        candidates: by relation how many values it has: log2 of that is what a fact can hold.
        curves: by way its points, ascending in the number of facts.
    """

    model: str
    d_ffn: int
    candidates: Mapping[str, int]
    curves: Mapping[str, tuple[Point, ...]]

    def knee(self, way: str) -> tuple[float, float, float] | None:
        """The facts in one edit at which the bits of a fact fall below half of those at the smallest count, and bounds.

        Between two counts by a straight line over log2 of the count. The 95 % interval is the percentiles of bootstrap
        draws over subjects, of each count by itself. Bounds beyond the largest count are infinite. None where there is
        nothing to halve: the interval at the smallest count reaches down to 0, or there is none.
        """
        points = self.curves[way]
        low = points[0].bits_per_fact()[1]
        if low is None or low <= 0:
            return None
        counts, draw = [point.count for point in points], np.random.default_rng(0)
        drawn = [crossing(counts, bits) for bits in np.stack([point.drawn(draw) for point in points], 1).tolist()]
        tail = (1 - LEVEL) / 2
        bounds = np.quantile(drawn, [tail, 1 - tail], method="inverted_cdf")  # no mean of a number and infinity
        return crossing(counts, [float(point.gains.mean()) for point in points]), float(bounds[0]), float(bounds[1])

    def rows(self) -> Iterator[tuple[str, Point, dict[str, Any]]]:
        """For each point of each way its figures."""
        for way, points in self.curves.items():
            for point in points:
                mean, low, high = point.bits_per_fact()
                share = mean * point.count / point.parameters if point.parameters else None
                figures = {"bits_per_fact": mean, "low": low, "high": high, "bits_per_parameter": share}
                yield way, point, {**figures, "load": point.count / self.d_ffn}

    def summary(self) -> dict[str, Any]:
        """The figures in plain values; of a knee None stands for "beyond the largest count"."""
        found: dict[str, Any] = {way: {"points": [], "knee": None} for way in self.curves}
        for way, point, figures in self.rows():
            told = {name: getattr(point, name) for name in TOLD}
            found[way]["points"].append({**told, "facts": len(point.subjects), **figures})
        for way in self.curves:
            if (knee := self.knee(way)) is not None:
                found[way]["knee"] = dict(zip(("facts", "low", "high"), map(_finite, knee), strict=True))
        return {"model": self.model, "d_ffn": self.d_ffn, "candidates": dict(self.candidates), "ways": found}

    def table(self) -> Table:
        """A table for a terminal: a number of facts a row, and the knee of each way."""
        heads = ("way", "facts", "N / d_ffn", "bits a fact", "95 % interval", "bits a parameter", "refused edits")
        table = Table(*heads, title=f"{escape(self.model)}: what edits hold")
        for way, point, of in self.rows():
            inside = "" if of["low"] is None else f"{of['low']:.2f} to {of['high']:.2f}"
            each = of["bits_per_parameter"]
            cells = (str(point.count), f"{of['load']:.4f}", f"{of['bits_per_fact']:.2f}", inside)
            refused = f"{point.refused} of {point.edits}" if point.refused else ""
            table.add_row(escape(way), *cells, "" if each is None else f"{each:.2e}", refused)
        table.caption = "; ".join(f"{way}: {self.knee_in_words(way)}" for way in self.curves)
        return table

    def knee_in_words(self, way: str) -> str:
        """Where the knee is."""
        knee, most = self.knee(way), self.curves[way][-1].count
        if knee is None:
            return "nothing is held at the smallest count, so there is no knee"
        if math.isinf(knee[1]):
            return f"no knee up to {counted(most, 'fact')}"
        at, low, high = (f"{one:.0f}" if math.isfinite(one) else f"more than {most}" for one in knee)
        return f"knee at {at} facts ({low} to {high})"

    def plot(self, path: str | Path) -> None:
        """Draws the bits of a parameter by N / d_ffn, with those of pretraining, as PNG, PDF or SVG."""
        with chart(path, f"{plot_text(self.model, 40)}: bits that edits hold, by the number of facts in one") as axes:
            for number, way in enumerate(self.curves):
                drawn = [of for name, _, of in self.rows() if name == way and (of["bits_per_parameter"] or 0) > 0]
                where, each = ([of[name] for of in drawn] for name in ("load", "bits_per_parameter"))
                [line] = axes.plot(where, each, marker="osx+dv^"[number % 7], label=plot_text(way, 40))
                for of in drawn:
                    sides = [max(of[side] or 0, 0) * of["bits_per_parameter"] / of["bits_per_fact"] for side in BOUNDS]
                    axes.plot([of["load"]] * 2, sides, color=line.get_color(), linewidth=0.8)
            label = f"pretraining: {PRETRAINING:g} bits a parameter"
            axes.axhline(PRETRAINING, color="black", linewidth=0.8, linestyle="dashed", label=label)
            axes.set(xscale="log", yscale="log")
            loads = [of["load"] for _, _, of in self.rows()]
            axes.set_xlim(min(loads) / 2, max(loads) * 2)  # also where nothing is held
            axes.set_xlabel("facts in one edit / d_ffn")
            axes.set_ylabel("bits a parameter")


def crossing(counts: Sequence[int], bits: Sequence[float]) -> float:
    """The count at which bits fall below half of the first; infinite where they do not."""
    half = bits[0] / 2
    for (low, above), (high, below) in pairwise(zip(counts, bits, strict=True)):
        if below < half:
            return float(low * (high / low) ** ((above - half) / (above - below)))
    return math.inf


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
