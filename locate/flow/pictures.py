"""The pictures of flow; they are given figures and know no result, so that results can draw themselves."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from locate.pictures import chart, plot_text, ticks_at_layers


def knockout_curves(
    path: str | Path,
    curves: Mapping[str, tuple[Tensor, Tensor | None, Tensor | None]],
    reader: str,
    window: int,
    title: str,
) -> None:
    """The change of an answer's probability by the layer around which edges were knocked out.

    Args:
        path: where to; the suffix says in which format.
        curves: for each source the change, (layer,), and the interval's bounds or None.
        reader: the group of positions that could not read.
        window: in how many layers at once.
        title: what stands above.

    Raises:
        ValueError: the suffix is none of PNG, PDF and SVG.
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
    """The rank of a token by layer, further up is better; and a share on an axis of its own.

    Args:
        path: where to; the suffix says in which format.
        ranks: by label, (layer,), 0 for the top token.
        token: whose ranks they are.
        rates: the attributes rate, (layer,), or None.
        title: what stands above.

    Raises:
        ValueError: the suffix is none of PNG, PDF and SVG.
    """
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
