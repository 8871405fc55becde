"""Rank correlation, also given a third quantity."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats


def rank_correlation(left: ArrayLike, right: ArrayLike) -> float:
    """Spearman's rank correlation: that of the ranks, ties sharing their mean rank; NaN where one does not vary.

    Raises:
        ValueError: the lengths differ.
    """
    first, second = np.asarray(left, dtype=float), np.asarray(right, dtype=float)
    if len(first) != len(second):
        raise ValueError(f"a correlation needs pairs, got {len(first)} and {len(second)} values")
    if len(first) < 2 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return math.nan
    return float(np.corrcoef(stats.rankdata(first), stats.rankdata(second))[0, 1])


def partial_rank_correlation(left: ArrayLike, right: ArrayLike, given: ArrayLike) -> float:
    """How the ranks of x and y go together beyond what both have from z, `given`: between -1 and 1.

    With Spearman's r of each pair, r_(xy.z) = (r_xy - r_xz r_yz) / sqrt((1 - r_xz^2) (1 - r_yz^2)) (Yule 1907, of
    ranks: for instance Kendall and Gibbons 1990, "Rank Correlation Methods", chapter 8): the correlation of what is
    left of the ranks of x and y after the straight line on the ranks of z is taken away. NaN where one of the three
    does not vary, or where z alone settles the ranks of x or y, so that nothing is left of them. Raises ValueError: the
    lengths differ.
    """
    xy = rank_correlation(left, right)
    xz, yz = rank_correlation(left, given), rank_correlation(right, given)
    rest = (1 - xz**2) * (1 - yz**2)
    if not rest > 1e-12:
        return math.nan
    return float(np.clip((xy - xz * yz) / math.sqrt(rest), -1, 1))
