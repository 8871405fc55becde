"""What pictures of reports share."""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from options import Data


def band(axes: Axes, xs: Sequence[float], means: Sequence[Data | None], label: str, by: float = 1, **line: Any) -> None:
    """A line of means over their intervals, `by` times each; with a gap where there is none."""
    middle, low, high = (
        [math.nan if one is None or one[part] is None else by * one[part] for one in means]
        for part in ("mean", "low", "high")
    )
    [drawn] = axes.plot(xs, middle, label=label, **line)
    axes.fill_between(xs, low, high, color=drawn.get_color(), alpha=0.15, linewidth=0)
