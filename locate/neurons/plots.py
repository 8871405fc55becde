"""Pictures of neurons: where in the depth of a model they lie."""

from collections.abc import Sequence
from pathlib import Path

from locate.pictures import checked, plot_text, save, ticks_at_layers

BLUE, RED = "#4878a8", "#b0413e"


def plot_layers(
    path: str | Path,
    layers: Sequence[int],
    counts: Sequence[float],
    sums: Sequence[float],
    *,
    title: str,
    counts_label: str = "knowledge neurons",
    sums_label: str,
) -> None:
    """Draws bars of neuron counts over the layers and, below, of a second figure of each."""
    from matplotlib.figure import Figure

    path = checked(path)
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.bar(layers, counts, color=BLUE)
    above.set_ylabel(counts_label)
    above.set_ylim(bottom=0)
    above.set_title(plot_text(title, 90), fontsize=10)
    below.bar(layers, sums, color=RED)
    below.axhline(0, color="black", linewidth=0.6)
    below.set_ylabel(sums_label)
    below.set_xlabel("layer")
    ticks_at_layers(below, layers)
    for panel in (above, below):
        panel.spines[["top", "right"]].set_visible(False)
    save(figure, path)
