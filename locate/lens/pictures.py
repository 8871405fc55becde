"""The pictures of the lens. They are given figures and know no result, so that results can draw themselves."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from locate.pictures import chart, checked, plot_text, save, ticks_at_layers, token_label


def attribution(path: str | Path, attention: Tensor, ffn: Tensor, heads: Tensor, *, title: str) -> None:
    """What attention and FFN of each layer give, (layer,), as bars, and every head, (layer, head), if any, as a map."""
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
    bars.set_title(plot_text(title, 90), fontsize="medium", loc="left")
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
    """A prompt across, layers down, a word in each cell, (row, position), coloured by its probability.

    Shades are from 0 to 1, (row, position); `rows` names each, the first at the top, `bar` says what colours say.
    """
    path = checked(path)
    height, width = shades.shape
    figure = Figure(figsize=(2 + 0.8 * width, 1.2 + 0.26 * height), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(shades.numpy(), aspect="auto", cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    for row in range(height):
        for column in range(width):
            colour = "white" if float(shades[row, column]) > 0.6 else "black"
            text = token_label(words[row][column], 10)
            axes.text(column, row, text, ha="center", va="center", fontsize=6.5, color=colour)
    axes.set_xticks(range(width), [token_label(token, 14) for token in tokens], rotation=45, ha="right")
    axes.set_yticks(range(height), list(rows), fontsize=7)
    axes.set_title(plot_text(title, 20 + 8 * width), fontsize="medium", loc="left")
    figure.colorbar(image, ax=axes, label=bar)
    save(figure, path)


def quantiles(path: str | Path, layers: Sequence[int], figures: Tensor, *, label: str, title: str) -> None:
    """Median, 90th and 99th percentile and maximum of some figures, (layer, n), NaN for none, by layer."""
    with chart(path, plot_text(title, 90), height=3.6) as axes:
        for share, name in ((0.5, "median"), (0.9, "90th percentile"), (0.99, "99th percentile"), (1.0, "highest")):
            axes.plot(list(layers), figures.float().nanquantile(share, dim=1).tolist(), label=name, marker=".")
        axes.set_yscale("log")
        axes.set_xlabel("layer")
        axes.set_ylabel(label)
        ticks_at_layers(axes, layers)


def promotion(path: str | Path, promoted: Tensor, eliminated: Tensor, event: int, *, title: str) -> None:
    """What the sub-updates of each layer do for a token: promotion above, elimination below, and their sum.

    Both are (layer,), what is promoted not negative, what is eliminated not positive; the saturation event is marked.
    """
    layers = range(len(promoted))
    with chart(path, plot_text(title, 90), height=3.6) as axes:
        axes.bar(layers, promoted.tolist(), color="tab:green", label="promotion")
        axes.bar(layers, eliminated.tolist(), color="tab:red", label="elimination")
        axes.plot(layers, (promoted + eliminated).tolist(), color="black", marker=".", label="both")
        axes.axvline(event, color="gray", linestyle="dotted", label="saturation")
        axes.axhline(0, color="gray", linewidth=0.8)
        axes.set_xlabel("layer")
        axes.set_ylabel("static score")
        ticks_at_layers(axes, layers)


def exits(
    path: str | Path, rules: Sequence[str], accuracy: Tensor, saved: Tensor, *, target: float, title: str
) -> None:
    """Accuracy against layers saved, a curve a rule, both (rule, point), NaN for none; a target is marked."""
    with chart(path, plot_text(title, 90)) as axes:
        for number, rule in enumerate(rules):
            known = accuracy[number].isfinite()
            axes.plot(
                saved[number][known].tolist(),
                (100 * accuracy[number][known]).tolist(),
                marker=".",
                label=rule.replace("_", " "),
            )
        axes.axhline(100 * target, color="gray", linestyle="dotted")
        axes.set_xlabel("layers saved (mean)")
        axes.set_ylabel("the same token as after the last layer (%)")
