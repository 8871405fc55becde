"""The pictures of flow; they are given figures and know no result, so that results can draw themselves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from locate.pictures import chart, plot_text, ticks_at_layers


def knockout_curves(
    path: str | Path,
    curves: Mapping[str, tuple[Tensor, Tensor | None, Tensor | None]],
    reader: str,
    window: int,
    title: str,
) -> None:
    """The change of an answer's probability by the layer around which edges were knocked out, in windows of layers.

    Curves are for each source the change, (layer,), and the interval's bounds or None; the reader could not read it.
    """
    with chart(path, plot_text(title, 70)) as axes:
        depth = 0
        for source, (change, low, high) in curves.items():
            depth = len(change)
            [line] = axes.plot(range(depth), (100 * change).tolist(), label=f"{reader} does not read {source}")
            if low is not None and high is not None:
                bounds = ((100 * low).tolist(), (100 * high).tolist())
                axes.fill_between(range(depth), *bounds, color=line.get_color(), alpha=0.15, linewidth=0)
        ticks_at_layers(axes, range(depth))
        axes.axhline(0, color="gray", linewidth=0.8)
        axes.set_xlabel("layer" if window == 1 else f"centre of the window of {window} layers")
        axes.set_ylabel("change of P(answer) (%)")


def ranks_by_layer(path: str | Path, ranks: Mapping[str, Tensor], token: str, rates: Tensor | None, title: str) -> None:
    """The rank of a token by layer and label, (layer,), 0 on top; and attributes rates, (layer,), if any."""
    with chart(path, plot_text(title, 70)) as axes:
        depth = max((len(row) for row in ranks.values()), default=0)
        for label, row in ranks.items():
            axes.plot(range(depth), (row + 1).tolist(), label=plot_text(label, 40))
        axes.set_yscale("log")
        axes.invert_yaxis()
        ticks_at_layers(axes, range(depth))
        axes.set_xlabel("layer")
        axes.set_ylabel(f"rank of {plot_text(token, 24)} (1: top)")
        if rates is not None:
            other = axes.twinx()
            other.plot(range(depth), (100 * rates).tolist(), color="gray", linestyle="dotted")
            other.set_ylabel("attributes rate of the subject (%, dotted)")


def relation_by_layer(
    path: str | Path,
    layers: Sequence[int],
    at_beta: Tensor,
    best: Tensor,
    chosen: int,
    figures: Mapping[str, tuple[float, float | None, float | None]],
    title: str,
) -> None:
    """The held-out faithfulness of a relation's map by layer, and beside it the figures on the tests.

    `at_beta` is the share with the beta that was chosen, (layer,), `best` that with the best of each layer, (layer,);
    `figures` by label a share, and the interval's bounds or None.
    """
    with chart(path, plot_text(title, 80), height=4.5) as axes:
        axes.plot(layers, (100 * best).tolist(), color="silver", label="training samples, held out: best beta")
        axes.plot(layers, (100 * at_beta).tolist(), color="black", label="at the beta chosen")
        axes.axvline(chosen, color="gray", linewidth=0.8)
        for number, (label, (share, low, high)) in enumerate(figures.items()):
            place = layers[-1] + 2 + number
            axes.scatter([place], [100 * share], color=f"C{number}", marker="osx+dv^"[number % 7], label=label)
            if low is not None and high is not None:
                axes.plot([place, place], [100 * low, 100 * high], color=f"C{number}", linewidth=0.8)
        ticks_at_layers(axes, layers)
        axes.set_ylim(-3, 103)
        axes.set_xlabel("layer that the subject's state enters")
        axes.set_ylabel("share (%)")


def relations_side_by_side(path: str | Path, figures: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> None:
    """Shares of relations, a relation a row and a mark a figure; that of faithfulness with its interval.

    `figures` are by relation, by figure, its ``share`` and the interval's ``low`` and ``high``.
    """
    with chart(path, "linear relations", height=1.6 + 0.28 * len(figures)) as axes:
        for number, name in enumerate(names):
            rows = [(place, each[name]) for place, each in enumerate(figures.values()) if name in each]
            where = [100 * each["share"] for _, each in rows]
            axes.scatter(where, [place for place, _ in rows], marker="osx+dv^"[number % 7], label=name, s=24)
            if name == "faithfulness":
                for place, each in rows:
                    if each["low"] is not None:
                        axes.plot([100 * each["low"], 100 * each["high"]], [place, place], color=f"C{number}")
        axes.set_yticks(range(len(figures)), [plot_text(name, 40) for name in figures])
        axes.invert_yaxis()
        axes.set_xlabel("share (%)")
