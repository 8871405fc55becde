import io
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from corrigenda.text.display import printable
from locate.neurons.plots import plot_layers
from locate.pictures import plot_text
from locate.tracing.pictures import curves, heat_map


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that were to be written."""
    figures: list[Figure] = []
    for place in ("locate.pictures.save", "locate.neurons.plots.save", "locate.tracing.pictures.save"):
        monkeypatch.setattr(place, lambda figure, path: figures.append(figure))
    return figures


def draw_curves(n_layers: int) -> None:
    effect = torch.linspace(0, 1, n_layers)
    curves("x.png", {"subject": (effect, effect, effect)}, [], window=1, title="")


def draw_map(n_layers: int) -> None:
    about: dict[str, Any] = {"site": "ffn", "window": 1, "answer": "x", "p_clean": 1.0, "p_corrupted": 0.0}
    heat_map("x.png", torch.rand(n_layers, 2), ["a", "b"], (0, 1), **about)


def draw_counts(n_layers: int) -> None:
    plot_layers("x.png", range(n_layers), [1.0] * n_layers, [0.5] * n_layers, title="", sums_label="")


@pytest.mark.parametrize("n_layers", [1, 2, 4, 12, 30, 97])
@pytest.mark.parametrize("draw", [draw_curves, draw_map, draw_counts])
def test_ticks_are_at_layers(draw: Any, n_layers: int, drawn: list[Figure]) -> None:
    draw(n_layers)
    [figure] = drawn
    axes = figure.axes[1] if draw is draw_counts else figure.axes[0]
    ticks = [float(at) for at in axes.get_xticks()]
    assert set(ticks) <= set(map(float, range(n_layers)))
    assert ticks[0] == 0
    assert min(n_layers, 2) <= len(ticks) <= 20


@pytest.mark.parametrize(
    "text", ["$x$", "costs $5", "$", r"\$", r"$\frac{$", r"C:\new", "_low", "a_b^c", "{}%&#", "\x1b[31m\r"]
)
def test_texts_are_drawn_as_they_are(text: str) -> None:
    """Neither taken for a formula, which may be a broken one, nor left out of the legend, nor a control character."""
    figure = Figure()
    axes = figure.subplots()
    axes.plot([0, 1], label=plot_text(text, 40))
    axes.set_title(plot_text(text, 40))
    [shown] = axes.legend().get_texts()
    figure.savefig(io.BytesIO())
    for drawn in (shown, axes.title):
        literal, formula = drawn._preprocess_math(drawn.get_text())
        assert not formula
        assert literal.strip() == printable(text)
