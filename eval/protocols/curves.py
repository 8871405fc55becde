"""Curves over the number of edits: as a table for a terminal, as Markdown, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from eval.metrics import METRICS, RUN_FIGURES, Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Point = Mapping[str, Any]
"""A point of the curve as `SequentialRun.curve` gives it."""

_MARKERS = "osD^vPX*<>ph"


def curve_columns() -> dict[str, str]:
    """The headings of the metrics in tables of curves, in order.

    Keys begin with ``fixed.`` for the fixed locality set (``fixed.NAME.`` for a part of it, see `value_at`), with
    ``right_after.`` for the figure right after each fact's own edit, and with ``first.`` and ``latest.`` for the first
    and the latest edits apart. Reliability is the token accuracy, "free" the strict free-generation accuracy, locality
    the preservation, KL the locality KL.
    """
    declared = [(one, metric.key) for metric in METRICS.values() for one in metric.curve if one.heading]
    declared.sort(key=lambda pair: pair[0].place)
    found = {key if one.group == "metrics" else f"{one.group}.{key}": one.heading for one, key in declared}
    own = {key: heading for key, heading in found.items() if "." not in key and METRICS[key].edit_should == "change"}
    return found | {
        f"{part}.{key}": f"{part}: {heading}" for part in ("first", "latest") for key, heading in own.items()
    }


def value_at(point: Point, key: str) -> Mapping[str, float | None] | None:
    """A metric of a point, ``{"before", "after", "low", "high", "n"}``; None where it was not measured.

    The key is as in `curve_columns`; ``fixed.NAME.KEY`` is of the part NAME of the fixed locality set.
    """
    group, _, name = key.rpartition(".")
    whole, _, part = group.partition(".")
    values = point.get(f"{whole}_parts", {}).get(part, {}) if part else point.get(whole or "metrics", {})
    found: Mapping[str, float | None] | None = values.get(name)
    return found


def curve_table(points: Sequence[Point], title: str = "") -> Table:
    """How all edits so far stand after each T, without the intervals (the picture and summary.json have them)."""
    table = Table(title=title, title_justify="left", caption=_fixed_set(points), caption_justify="left")
    headings = curve_columns()
    keys = [key for key in headings if any(value_at(point, key) for point in points)]
    figures = [key for key in RUN_FIGURES if any(point.get(key) is not None for point in points)]
    for name in ("T", *(headings[key] for key in keys), *(RUN_FIGURES[key].heading for key in figures), "failed"):
        table.add_column(name, justify="right")
    for point in points:
        cells = [cell(value_at(point, key), key, intervals=False) for key in keys]
        table.add_row(str(point["t"]), *cells, *(_figure(point, key) for key in figures), str(point["n_failed"]))
    return table


COLUMNS = 3
"""Panels in a row of a picture."""


def draw_curves(
    curves: Mapping[str, Sequence[Point]],
    keys: Sequence[str],
    path: Path,
    names: Sequence[str] = (),
    d_ffn: int | None = None,
) -> None:
    """A picture: a panel for each metric, over T (logarithmic), one line for each method with its 95 % intervals.

    Panels are named by the metrics, or `names`. With `d_ffn`, the coefficients of a layer, the edits for each stand
    below the number of edits.
    """
    from matplotlib.figure import Figure  # see `locate.pictures`

    if not keys:
        raise ValueError("a picture of curves needs a metric")
    rows = -(-len(keys) // COLUMNS)
    figure = Figure(figsize=(4 * COLUMNS, 3 * rows + 0.6), layout="constrained")
    panels = iter(figure.subplots(rows, COLUMNS, squeeze=False).flat)
    ticks = sorted({point["t"] for points in curves.values() for point in points})
    titles = list(names) or [key.replace(".", ": ").replace("_", " ") for key in keys]
    for key, title, panel in zip(keys, titles, panels, strict=False):  # panels last: it keeps what is left
        for number, (method, points) in enumerate(curves.items()):
            _draw_line(panel, key, method, points, number)
        panel.set_title(title, fontsize=10)
        panel.set_xscale("log")
        panel.set_xticks(ticks, [str(t) if d_ffn is None else f"{t}\n{t / d_ffn:.2f}" for t in ticks])
        panel.minorticks_off()
        panel.set_xlabel("edits" if d_ffn is None else "edits, and edits / d_ffn")
        panel.grid(alpha=0.3)
        unit = _metric(key).written
        panel.set_ylabel(unit.symbol)
        if unit.is_share:
            panel.set_ylim(-3, 103)
        elif panel.get_ylim()[1] > 2:  # a collapse would hide everything else
            panel.set_yscale("symlog", linthresh=0.1)
    for panel in panels:
        panel.set_axis_off()
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def draw_curve(points: Sequence[Point], path: Path, method: str) -> None:
    """A picture of one run: its metrics that `curve_columns` names."""
    keys = [key for key in curve_columns() if any(value_at(point, key) for point in points)]
    if keys:
        draw_curves({method: points}, keys, path)


def _draw_line(panel: Axes, key: str, method: str, points: Sequence[Point], number: int) -> None:
    known = [(point["t"], value) for point in points if (value := value_at(point, key)) and value["after"] is not None]
    factor = _metric(key).written.factor
    # Moved apart a little, so that intervals do not hide one another.
    places = [t * 1.02 ** (number - 4) for t, _ in known]
    after = [factor * float(value["after"] or 0) for _, value in known]
    style = {"label": method, "marker": _MARKERS[number % len(_MARKERS)], "markersize": 4, "linewidth": 1.3}
    color = f"C{number % 10}"
    panel.plot(places, after, color=color, linestyle="--" if number >= 10 else "-", **style)  # type: ignore[arg-type]
    for place, (_, value) in zip(places, known, strict=True):
        if value["low"] is not None and value["high"] is not None:
            panel.vlines(place, factor * value["low"], factor * value["high"], color=color, alpha=0.4, linewidth=1)


def _fixed_set(points: Sequence[Point]) -> str | None:
    """How many prompts the fixed locality set holds, where the points say it."""
    sizes = {point["n_fixed_prompts"] for point in points if "n_fixed_prompts" in point}
    if not sizes:
        return None
    return (
        f"fixed locality set: {max(sizes)} prompts that name no edited subject"
        if max(sizes)
        else "no fixed locality set"
    )


def _metric(key: str) -> Metric:
    return METRICS.named(key.rpartition(".")[2])


def cell(value: Mapping[str, float | None] | None, key: str, intervals: bool = True) -> str:
    """A figure of `value_at`, as tables write it, by default with its interval; empty where there is none."""
    if value is None or value["after"] is None:
        return ""
    metric = _metric(key)
    text = metric.written.text(value["after"])
    # What has one value for all facts has no interval over facts; where windows were not kept it is of no width.
    of_facts = metric.one_value and value["low"] == value["high"]
    if intervals and not of_facts and value["low"] is not None and value["high"] is not None:
        text += f" [{metric.written.text(value['low'])}, {metric.written.text(value['high'])}]"
    return text


def _figure(point: Point, key: str) -> str:
    value = point.get(key)
    return "" if value is None else RUN_FIGURES[key].written.text(value)
