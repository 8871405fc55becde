"""Pictures of circuits: their first edges between the layers' parts, and faithfulness by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from locate.circuits.faithfulness import Bounded
from locate.circuits.graph import Graph
from locate.pictures import chart, checked, plot_text, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

STYLES = {"score": "C0-", "random": "C7:", "activation": "C1--", "before": "C3-."}
LABELS = {"score": "the scores", "random": "chance", "activation": "activation", "before": "the scores before the edit"}


def circuit_picture(
    path: str | Path,
    graph: Graph,
    panels: Sequence[tuple[str, Sequence[int], Tensor]],
    shares: Sequence[float],
    curves: Mapping[str, Sequence[Bounded]],
) -> None:
    """Circuits side by side, and faithfulness by the share of all edges that is kept, a curve for what ranked them.

    `panels` have of each circuit its title, its edges, and the scores of all edges, (edge,).
    """
    from matplotlib.figure import Figure

    path = checked(path)
    figure = Figure(figsize=(4 + 7 * len(panels), 4.5), layout="constrained")
    *left, right = figure.subplots(1, len(panels) + 1, width_ratios=[*(1.7 for _ in panels), 1])
    for axes, (title, edges, scores) in zip(left, panels, strict=True):
        _edges(axes, graph, edges, scores)
        axes.set_title(plot_text(title, 80), fontsize="medium", loc="left")
    _curves(right, shares, curves)
    save(figure, path)


def faithfulness_picture(
    path: str | Path, title: str, shares: Sequence[float], curves: Mapping[str, Sequence[Bounded]]
) -> None:
    """Faithfulness over facts."""
    with chart(path, title, legend=None) as axes:
        _curves(axes, shares, curves)


def _curves(axes: Axes, shares: Sequence[float], curves: Mapping[str, Sequence[Bounded]]) -> None:
    percent = [100 * share for share in shares]
    for name, curve in curves.items():
        [line] = axes.plot(percent, [mean for mean, _, _ in curve], STYLES.get(name, "-"), label=LABELS.get(name, name))
        if all(low is not None for _, low, _ in curve):
            lows, highs = ([each[side] or 0.0 for each in curve] for side in (1, 2))
            axes.fill_between(percent, lows, highs, color=line.get_color(), alpha=0.15)
    axes.axhline(1, color="grey", linewidth=0.5)
    axes.axhline(0, color="grey", linewidth=0.5)
    axes.set_xscale("log")
    axes.set_xlabel("edges kept (%)")
    axes.set_ylabel("faithfulness")
    axes.legend(title="edges ranked by", fontsize="small", title_fontsize="small")


def _edges(axes: Axes, graph: Graph, edges: Sequence[int], scores: Tensor) -> None:
    """Edges as lines from their sources to their readers: a layer a column, a head or FFN a row."""
    most = float(scores[list(edges)].abs().max()) or 1.0
    for edge in reversed(edges):
        reader, source = graph.edges[edge].tolist()
        (x0, y0), (x1, y1) = _source_place(graph, source), _reader_place(graph, reader)
        score = float(scores[edge])
        weight = abs(score) / most
        color = "C0" if score > 0 else "C3"
        axes.plot([x0, x1], [y0, y1], color=color, alpha=0.15 + 0.85 * weight, linewidth=0.4 + 2 * weight)
        axes.plot([x0, x1], [y0, y1], "o", color="black", markersize=2.5)
    rows = [*(f"head {head}" for head in range(graph.n_heads)), "FFN", "embedding, logits"]
    axes.set_yticks(range(len(rows)), rows, fontsize="small")
    axes.set_xlim(-1.5, graph.n_layers + 0.5)
    axes.set_xlabel("layer")


def _source_place(graph: Graph, source: int) -> tuple[int, int]:
    layer, part = divmod(source - 1, graph.n_heads + 1)  # the embedding stands before layer 0
    return layer, part if source else graph.n_heads + 1


def _reader_place(graph: Graph, reader: int) -> tuple[int, int]:
    layer, part = divmod(reader, 3 * graph.n_heads + 1)
    if layer == graph.n_layers:
        return layer, graph.n_heads + 1
    return layer, graph.n_heads if part == 3 * graph.n_heads else part % graph.n_heads
