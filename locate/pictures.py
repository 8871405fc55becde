"""What all pictures of locators have in common: their kinds, and texts that matplotlib takes literally."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from corrigenda.text.display import printable

if TYPE_CHECKING:  # a third of a second to import, which the start of every command would take
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")


def checked(path: str | Path) -> Path:
    """The path of a picture, whose suffix says its kind. Raises ValueError: the suffix is not one of `SUFFIXES`."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        kind = path.suffix or "without a suffix"
        raise ValueError(f"{path}: a picture is written as {', '.join(SUFFIXES)}, not {kind}")
    return path


def save(figure: Figure, path: Path) -> None:
    """Writes a picture, and the folders it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


@contextmanager
def chart(path: str | Path, title: str, *, height: float = 4, legend: str | None = "small") -> Iterator[Axes]:
    """A picture of one panel, for the block to draw into; titled and written when the block ends.

    Its height is in inches, its width is 7; the legend is the size of its letters, where something has a label. Raises
    ValueError: the path's suffix is not one of `SUFFIXES`.
    """
    from matplotlib.figure import Figure

    path = checked(path)
    figure = Figure(figsize=(7, height), layout="constrained")
    axes = figure.subplots()
    yield axes
    axes.set_title(title, fontsize="medium", loc="left")
    if legend is not None and axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=legend)
    save(figure, path)


def ticks_at_layers(axes: Axes, layers: Sequence[int]) -> None:
    """Puts ticks on an axis of layers: at layers, for there are no halves, and at not many more than ten of them."""
    axes.set_xticks(list(layers)[:: max(1, len(layers) // 10)])


def plot_text(text: str, limit: int) -> str:
    """A text of at most so many characters, in which a dollar sign begins no formula, and a low line hides nothing."""
    shown = printable(text)
    shown = shown if len(shown) <= limit else f"{shown[: limit - 1]}…"
    # Matplotlib leaves what begins with a low line out of its legends.
    return f"{' ' * shown.startswith('_')}{shown}".replace("$", r"\$")


def token_label(token: str, limit: int = 24) -> str:
    """A token as a label, without the spaces around it; one of nothing but spaces as Python writes it."""
    return plot_text(token.strip() or repr(token)[1:-1], limit)
