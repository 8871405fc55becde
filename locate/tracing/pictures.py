"""The pictures of tracing: the heat map of one fact, and the average effects of many by role and layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from locate.tracing.trace import ROLES

if TYPE_CHECKING:
    from locate.tracing.average import AverageTrace
    from locate.tracing.trace import Trace

COLOURS = {"block": "Purples", "ffn": "Greens", "attention": "Reds"}
NAMES = {"block": "single restored layer", "ffn": "restored FFN window", "attention": "restored attention window"}
SUFFIXES = (".png", ".pdf", ".svg")


def draw_trace(trace: Trace, path: str | Path) -> None:
    """The heat map that readers of Meng et al. 2022 know: tokens down (the subject's starred), layers across."""
    path = checked(path)
    n_layers, n_tokens = trace.scores.shape
    figure = Figure(figsize=(7, 1.1 + 0.26 * n_tokens), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(
        trace.scores.T.numpy(),
        aspect="auto",
        cmap=COLOURS[trace.site],
        interpolation="nearest",
        vmin=min(trace.p_corrupted, float(trace.scores.min())),
        vmax=max(trace.p_clean, float(trace.scores.max())),
    )
    begin, end = trace.subject
    labels = [f"{_shown(token)}{'*' if begin <= i < end else ''}" for i, token in enumerate(trace.tokens)]
    axes.set_yticks(range(n_tokens), labels)
    axes.set_xticks(range(0, n_layers, max(1, n_layers // 10)))
    what = NAMES[trace.site] + (f" of {trace.window} layers" if trace.window > 1 else "")
    axes.set_xlabel(f"{what}{' (its centre)' if trace.window > 1 else ''}")
    title = {"block": "states", "ffn": "FFN outputs", "attention": "attention outputs"}[trace.site]
    title = f"Restoring {title} after the subject was hidden"
    if trace.severed:
        title += f", {'FFN' if trace.severed == 'ffn' else 'attention'} severed"
    if trace.method == "attribution":
        title += " (first-order estimate)"
    axes.set_title(title, fontsize="medium", loc="left")
    bar = figure.colorbar(image, ax=axes)
    bar.ax.set_title(f"P({_short(trace.answer)})", fontsize="small", loc="left")
    # Where the clean and the corrupted run lie on the scale.
    bar.ax.axhline(trace.p_clean, color="black", linewidth=1)
    bar.ax.axhline(trace.p_corrupted, color="black", linewidth=1, linestyle="dotted")
    save(figure, path)


def draw_average(result: AverageTrace, path: str | Path) -> None:
    """The average indirect effect by layer, one curve a role, with its 95 % interval."""
    path = checked(path)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    layers = range(result.effects.shape[1])
    for number, role in enumerate(ROLES):
        if not result.counts[number]:
            continue
        emphasised = role in ("last subject token", "last token")
        [line] = axes.plot(
            layers, (100 * result.effects[number]).tolist(), label=role, linewidth=2.2 if emphasised else 1.1
        )
        low, high = ((100 * part[number]).tolist() for part in (result.low, result.high))
        axes.fill_between(layers, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.axhline(0, color="gray", linewidth=0.8)
    axes.set_xlabel("layer" if result.window == 1 else f"centre of the window of {result.window} layers")
    axes.set_ylabel("average indirect effect (%)")
    effect, low_total, high_total = result.total_effect
    bounds = "" if low_total is None or high_total is None else f" [{100 * low_total:.1f}, {100 * high_total:.1f}]"
    axes.set_title(
        f"{NAMES[result.site]}, {result.n_facts} facts; total effect {100 * effect:.1f} %{bounds}",
        fontsize="medium",
        loc="left",
    )
    axes.legend(fontsize="small")
    save(figure, path)


def checked(path: str | Path) -> Path:
    """The path of a picture, whose suffix says its kind.

    Raises:
        ValueError: the suffix is not one of `SUFFIXES`.
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        kind = path.suffix or "without a suffix"
        raise ValueError(f"{path}: a picture is written as {', '.join(SUFFIXES)}, not {kind}")
    return path


def save(figure: Figure, path: Path) -> None:
    """Writes a picture, and the folders it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


def _shown(token: str) -> str:
    """A token as a label; what matplotlib would read as mathematics is taken literally."""
    text = token.strip() or repr(token)[1:-1]
    return _short(text)


def _short(text: str) -> str:
    text = text if len(text) <= 24 else f"{text[:23]}…"
    return text.replace("$", r"\$")
