"""How many facts a paired comparison needs, to see a difference of a given size most of the time."""

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

POINTS = 0.05
"""The difference that the leaderboard asks about: five points of a share."""
POWER = 0.8
ALPHA = 0.05


def variance_per_fact(
    columns: Sequence[Sequence[float]], groups: Sequence[Hashable], combine: Callable[..., NDArray[np.float64]]
) -> float | None:
    """The variance of a figure of n facts, times n: what one fact adds to its uncertainty.

    From the jackknife that leaves out one subject (`groups`) at a time (Tukey 1958; Efron and Stein 1981): with G
    subjects and the figure t_g without subject g, n (G - 1) / G sum_g (t_g - mean(t))^2. Where the figure is a mean of
    differences and every subject has one fact, this is the sample variance of the differences (n - 1 in the
    denominator). It also serves figures that `combine` makes of several columns' means (the score), and facts of one
    subject, which are not independent. None where there are fewer than two subjects.
    """
    names = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    if len(names) < 2:
        return None
    member = np.array([names[group] for group in groups])
    left = len(member) - np.bincount(member)
    arrays = [np.asarray(column, dtype=float) for column in columns]
    without = combine(*((array.sum() - np.bincount(member, weights=array)) / left for array in arrays))
    return float(len(member) * (len(names) - 1) * np.var(without))


def facts_needed(
    variance: float, difference: float = POINTS, power: float = POWER, alpha: float = ALPHA, yes_or_no: bool = False
) -> int | None:
    """How many facts a two-sided paired test needs to find a difference.

    By the normal approximation of the paired (one-sample) test,

        n = (z_(1 - alpha / 2) + z_power)^2 variance / difference^2

    (for instance Chow, Shao and Wang 2008, "Sample Size Calculations in Clinical Research", section 3.1; for yes-or-no
    outcomes Miettinen 1968, "The matched pairs design in the case of all-or-none responses"). Differences of
    yes-or-no outcomes are -1, 0 or 1, so that a mean difference d comes with a variance of d (1 - d) at least, however
    few of the observed pairs differ. An exact test needs some more than this; a correction for many tests, too.

    Args:
        variance: of the paired differences, see `variance_per_fact`.
        difference: the difference of the means to be found, in the unit of the values (0.05: five points of a share).
        power: the chance to find it.
        alpha: the p-value below which it is found.
        yes_or_no: whether all values are 0 or 1.

    Returns:
        the number; None where the observed differences do not vary, and so say nothing of it.

    Raises:
        ValueError: the variance is negative or not finite, or one of the others is not between 0 and 1.
    """
    if not (variance >= 0 and math.isfinite(variance)):
        raise ValueError(f"a variance must be a number of at least 0, got {variance}")
    for name, value in (("difference", difference), ("power", power), ("alpha", alpha)):
        if not 0 < value < 1:
            raise ValueError(f"{name} must be between 0 and 1, got {value}")
    if yes_or_no:
        variance = max(variance, difference * (1 - difference))
    if variance < 1e-12:
        return None
    deviations = stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(power)
    return math.ceil(deviations**2 * variance / difference**2)
