"""The pictures of gradients and edits in words; they are given figures and know no result."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from locate.pictures import chart, checked, plot_text, save, ticks_at_layers, token_label

MOST_CELLS = 600
"""With more cells than these no words are written into them."""


def gradient_grid(
    path: str | Path,
    norms: Tensor,
    tokens: Sequence[str],
    layers: Sequence[int],
    words: Sequence[Sequence[Sequence[str]]],
    target: str,
) -> None:
    """The norms of a gradient's outer products, (layer, position), with each shift's words, the best first."""
    path = checked(path)
    n_layers, n_tokens = norms.shape
    written = n_layers * n_tokens <= MOST_CELLS
    width = max(7.0, 0.65 * n_layers if written else 0.0)
    figure = Figure(figsize=(width, 1.4 + 0.26 * n_tokens), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(norms.T.float().numpy(), aspect="auto", cmap="Blues", interpolation="nearest", vmin=0)
    axes.set_yticks(range(n_tokens), [token_label(token, 24) for token in tokens])
    axes.set_xticks(range(n_layers), [str(layer) for layer in layers], fontsize="x-small")
    axes.set_xlabel("layer")
    if written:
        middle = float(norms.max()) / 2
        for number, row in enumerate(words):
            for position, texts in enumerate(row):
                shade = "white" if float(norms[number, position]) > middle else "black"
                axes.text(number, position, token_label(texts[0], 9), ha="center", va="center", fontsize=5, color=shade)
    figure.colorbar(image, ax=axes, label="norm of the outer product")
    axes.set_title(f"What the gradient of -log P({plot_text(target, 24)}) writes where", fontsize="medium", loc="left")
    save(figure, path)


def object_ranks(
    path: str | Path, layers: Sequence[int], ranks: Mapping[str, Sequence[int]], vocabulary: int, title: str
) -> None:
    """The rank of each fact's object in what an edit writes at its prompt, by layer; further up is better, 0 on top."""
    with chart(path, plot_text(title, 80), legend="x-small" if len(ranks) <= 12 else None) as axes:
        for label, by_layer in ranks.items():
            axes.plot(list(layers), [rank + 1 for rank in by_layer], marker="o", label=plot_text(label, 50))
        axes.set_yscale("log")
        axes.set_ylim(1.5 * vocabulary, 0.7)
        ticks_at_layers(axes, list(layers))
        axes.set_xlabel("layer")
        axes.set_ylabel("rank of the object's first token (1: top)")
