from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

from eval.protocols import curves


def test_no_two_methods_have_the_same_colour_and_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[tuple[Any, Any]] = []
    plot = Axes.plot

    def noted(axes: Axes, *given: Any, **style: Any) -> Any:
        looks.append((style["color"], style["marker"]))
        return plot(axes, *given, **style)

    monkeypatch.setattr(Axes, "plot", noted)
    value = {"before": 0.0, "after": 0.5, "low": 0.4, "high": 0.6, "n": 3}
    points = [{"t": t, "metrics": {"token_accuracy": value}} for t in (1, 10)]
    curves.draw_curves({f"method {n}": points for n in range(30)}, ["token_accuracy"], tmp_path / "x.png")
    assert len(looks) == 30
    assert len(set(looks)) == 30
