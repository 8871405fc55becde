"""The pictures of the lens. They are given figures and know no result, so that results can draw themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from locate.pictures import checked, save, shortened, ticks_at_layers


def attribution(path: str | Path, attention: Tensor, ffn: Tensor, heads: Tensor, *, title: str) -> None:
    """What attention and FFN of each layer give, as bars, and every head, as a map.

    Args:
        path: where to; the suffix says in which format.
        attention: (layer,).
        ffn: (layer,).
        heads: (layer, head); without heads there are only bars.
        title: what stands above.

    Raises:
        ValueError: the suffix is none of PNG, PDF and SVG.
    """
    path = checked(path)
    layers = range(len(ffn))
    figure = Figure(figsize=(7, 6 if heads.shape[1] else 3.4), layout="constrained")
    grid = figure.subplots(2 if heads.shape[1] else 1, 1, squeeze=False)[:, 0]
    bars = grid[0]
    bars.bar([layer - 0.2 for layer in layers], attention.tolist(), 0.4, label="attention", color="tab:red")
    bars.bar([layer + 0.2 for layer in layers], ffn.tolist(), 0.4, label="FFN", color="tab:green")
    bars.axhline(0, color="gray", linewidth=0.8)
    bars.set_ylabel("adds to the logit")
    bars.set_xlabel("layer")
    bars.legend(fontsize="small")
    bars.set_title(shortened(title, 90), fontsize="medium", loc="left")
    ticks_at_layers(bars, layers)
    if heads.shape[1]:
        size = float(heads.abs().max())
        image = grid[1].imshow(heads.T.numpy(), aspect="auto", cmap="RdBu_r", vmin=-size, vmax=size)
        grid[1].set_xlabel("layer")
        grid[1].set_ylabel("head")
        ticks_at_layers(grid[1], layers)
        figure.colorbar(image, ax=grid[1])
    save(figure, path)


def grid_of_words(
    path: str | Path,
    words: Sequence[Sequence[str]],
    shades: Tensor,
    tokens: Sequence[str],
    *,
    rows: Sequence[str],
    bar: str,
    title: str,
) -> None:
    """A prompt across, layers down, a word in each cell, coloured by its probability.

    Args:
        path: where to; the suffix says in which format.
        words: (row, position).
        shades: from 0 to 1, (row, position).
        tokens: the prompt's tokens as texts.
        rows: what each row is, the first at the top.
        bar: what the colours say.
        title: what stands above.

    Raises:
        ValueError: the suffix is none of PNG, PDF and SVG.
    """
    path = checked(path)
    height, width = shades.shape
    figure = Figure(figsize=(2 + 0.8 * width, 1.2 + 0.26 * height), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shades.numpy(), aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    for row in range(height):
        for column in range(width):
            colour = "white" if float(shades[row, column]) > 0.6 else "black"
            text = _word(words[row][column], 10)
            axes.text(column, row, text, ha="center", va="center", fontsize=6.5, color=colour)
    axes.set_xticks(range(width), [_word(token, 14) for token in tokens], rotation=45, ha="right")
    axes.set_yticks(range(height), list(rows), fontsize=7)
    axes.set_title(shortened(title, 20 + 8 * width), fontsize="medium", loc="left")
    figure.colorbar(image, ax=axes, label=bar)
    save(figure, path)


def _word(token: str, limit: int) -> str:
    return shortened(token.strip() or repr(token)[1:-1], limit)
