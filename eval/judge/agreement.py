"""How far two ways of marking the same answers agree: Cohen's kappa."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def kappa(agreement: Any, first: Any, second: Any) -> NDArray[np.float64]:
    """Cohen's kappa of two ways of marking answers right or wrong (Cohen 1960), element by element.

    kappa = (p_o - p_e) / (1 - p_e), where p_o is the share of answers that both mark alike and p_e the share that they
    would if each gave its marks by chance: 1 at full agreement, 0 at that of chance.

    Args:
        agreement: p_o, the share of answers that both mark alike.
        first: the share that the first marks right.
        second: the share that the second marks right.

    Returns:
        kappa; NaN where it is not defined: both mark all answers right, or all wrong.
    """
    p_o, p, q = (np.asarray(part, dtype=float) for part in (agreement, first, second))
    by_chance = p * q + (1 - p) * (1 - q)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(by_chance < 1 - 1e-12, (p_o - by_chance) / (1 - by_chance), np.nan)
