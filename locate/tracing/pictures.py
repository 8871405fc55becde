"""The pictures of tracing: the heat map of one fact, and the average effects of many by role and layer.

They are given figures and know no result, so that results can draw themselves.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from locate.pictures import chart, checked, plot_text, save, ticks_at_layers, token_label

COLOURS = {"block": "Purples", "ffn": "Greens", "attention": "Reds"}
NAMES = {"block": "single restored layer", "ffn": "restored FFN window", "attention": "restored attention window"}
OUTPUTS = {"block": "states", "ffn": "FFN outputs", "attention": "attention outputs"}


def heat_map(
    path: str | Path,
    scores: Tensor,
    tokens: Sequence[str],
    subject: tuple[int, int],
    *,
    site: str,
    window: int,
    answer: str,
    p_clean: float,
    p_corrupted: float,
    hidden: str = "subject",
    remarks: str = "",
) -> None:
    """The heat map that readers of Meng et al. 2022 know: tokens down (the subject's starred), layers across.

    Scores are P(answer) with each state restored, (layer, position), beside those of the clean and the corrupted runs;
    the subject's tokens are [first, last + 1); the site, "block", "ffn" or "attention", is what was restored, in
    windows of layers.
    """
    path = checked(path)
    n_layers, n_tokens = scores.shape
    figure = Figure(figsize=(7, 1.1 + 0.26 * n_tokens), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(
        scores.T.numpy(),
        aspect="auto",
        cmap=COLOURS[site],
        interpolation="nearest",
        vmin=min(p_corrupted, float(scores.min())),
        vmax=max(p_clean, float(scores.max())),
    )
    begin, end = subject
    labels = [f"{token_label(token)}{'*' if begin <= i < end else ''}" for i, token in enumerate(tokens)]
    axes.set_yticks(range(n_tokens), labels)
    ticks_at_layers(axes, range(n_layers))
    what = NAMES[site] + (f" of {window} layers" if window > 1 else "")
    axes.set_xlabel(f"{what}{' (its centre)' if window > 1 else ''}")
    axes.set_title(f"Restoring {OUTPUTS[site]} after the {hidden} was hidden{remarks}", fontsize="medium", loc="left")
    bar = figure.colorbar(image, ax=axes)
    bar.ax.set_title(f"P({plot_text(answer, 24)})", fontsize="small", loc="left")
    # Where the clean and the corrupted run lie on the scale.
    bar.ax.axhline(p_clean, color="black", linewidth=1)
    bar.ax.axhline(p_corrupted, color="black", linewidth=1, linestyle="dotted")
    save(figure, path)


def curves(
    path: str | Path,
    effects: Mapping[str, tuple[Tensor, Tensor, Tensor]],
    emphasised: Sequence[str],
    *,
    window: int,
    title: str,
) -> None:
    """The average indirect effect by layer, one curve a role, with its 95 % interval: each (layer,); some are bold."""
    with chart(path, title) as axes:
        for role, figures in effects.items():
            effect, low, high = ((100 * part).tolist() for part in figures)
            layers = range(len(effect))
            [line] = axes.plot(layers, effect, label=role, linewidth=2.2 if role in emphasised else 1.1)
            axes.fill_between(layers, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
        ticks_at_layers(axes, range(max((len(effect) for effect, _, _ in effects.values()), default=0)))
        axes.axhline(0, color="gray", linewidth=0.8)
        axes.set_xlabel("layer" if window == 1 else f"centre of the window of {window} layers")
        axes.set_ylabel("average indirect effect (%)")
