"""Pictures of neurons: where in the depth of a model they lie, and what scaling them does."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from locate.pictures import checked, plot_text, save, ticks_at_layers

BLUE, RED = "#4878a8", "#b0413e"


def plot_layers(
    path: str | Path,
    layers: Sequence[int],
    counts: Sequence[float],
    sums: Sequence[float] | None = None,
    *,
    title: str = "",
    counts_label: str = "knowledge neurons",
    sums_label: str = "",
    intervals: Sequence[tuple[float, float]] | None = None,
) -> None:
    """Draws bars of neuron counts over the layers, with intervals, and below a second figure of each, if any."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = checked(path)
    # Not through pyplot, which keeps every figure and picks a display.
    figure = Figure(figsize=(7.0, 2.6 if sums is None else 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1 if sums is None else 2, 1, sharex=True, squeeze=False)[:, 0]
    above = axes[0]
    error = None
    if intervals is not None:
        error = [
            [max(count - low, 0.0) for count, (low, _) in zip(counts, intervals, strict=True)],
            [max(high - count, 0.0) for count, (_, high) in zip(counts, intervals, strict=True)],
        ]
    above.bar(layers, counts, color=BLUE, yerr=error, error_kw={"elinewidth": 1, "capsize": 2})
    above.set_ylabel(counts_label)
    above.set_ylim(bottom=0)
    if title:
        above.set_title(plot_text(title, 90), fontsize=10)
    if sums is not None:
        axes[1].bar(layers, sums, color=RED)
        axes[1].axhline(0, color="black", linewidth=0.6)
        axes[1].set_ylabel(sums_label)
    axes[-1].set_xlabel("layer")
    ticks_at_layers(axes[-1], layers)
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def plot_bars(path: str | Path, values: Mapping[str, float], *, title: str, label: str) -> None:
    """Draws a bar for each of some named figures."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = checked(path)
    figure = Figure(figsize=(4.5, 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.bar(list(values), list(values.values()), color=BLUE)
    axes.set_ylabel(label)
    axes.set_title(plot_text(title, 90), fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)
