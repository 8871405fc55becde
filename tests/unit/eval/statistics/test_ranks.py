import math

import numpy as np
import pytest
from scipy import stats

from eval.statistics.ranks import partial_rank_correlation, rank_correlation


def test_rank_correlation_by_hand_and_with_ties() -> None:
    """1 - 6 sum d^2 / n (n^2 - 1): d = (0, 1, -1, 0), so 1 - 6 x 2 / 60."""
    assert rank_correlation([1, 2, 3, 4], [10, 30, 20, 99]) == pytest.approx(0.8)
    left, right = np.random.default_rng(0).integers(0, 5, size=(2, 30))
    assert rank_correlation(left, right) == pytest.approx(stats.spearmanr(left, right).statistic)
    assert math.isnan(rank_correlation([1, 1, 1], [1, 2, 3]))


def test_partial_correlation_by_hand() -> None:
    """z = 1 2 3 4 5, x = 2 1 4 3 5, y = 1 3 2 5 4: r_xz = 0.8, r_yz = 0.8, r_xy = 0.3."""
    x, y, z = [2, 1, 4, 3, 5], [1, 3, 2, 5, 4], [1, 2, 3, 4, 5]
    assert [rank_correlation(x, z), rank_correlation(y, z)] == pytest.approx([0.8, 0.8])
    assert rank_correlation(x, y) == pytest.approx(1 - 6 * 14 / 120)
    assert partial_rank_correlation(x, y, z) == pytest.approx((0.3 - 0.64) / 0.36)


def test_two_quantities_that_share_only_the_third_have_none() -> None:
    z = np.arange(64.0)
    x = z + 6 * np.where(np.arange(64) % 2, 1, -1)
    y = z + 6 * np.where(np.arange(64) // 2 % 2, 1, -1)
    assert rank_correlation(x, y) > 0.8
    assert abs(partial_rank_correlation(x, y, z)) < 0.1


def test_what_goes_together_beyond_the_third_is_found() -> None:
    draw = np.random.default_rng(1)
    z = np.arange(60.0)
    both = draw.normal(size=60) * 8
    x, y = z + both, z + both + 0.1 * draw.normal(size=60)
    assert partial_rank_correlation(x, y, z) > 0.9


def test_it_is_the_correlation_of_what_a_regression_leaves() -> None:
    x, y, z = np.random.default_rng(2).normal(size=(3, 40)) + np.linspace(0, 3, 40)
    ranks = [stats.rankdata(values) for values in (x, y, z)]
    left, right = (values - np.polyval(np.polyfit(ranks[2], values, 1), ranks[2]) for values in ranks[:2])
    assert partial_rank_correlation(x, y, z) == pytest.approx(np.corrcoef(left, right)[0, 1])


def test_where_the_third_settles_all_there_is_none() -> None:
    assert math.isnan(partial_rank_correlation([1, 2, 3, 4], [2, 1, 4, 3], [10, 20, 30, 40]))
    with pytest.raises(ValueError, match="pairs"):
        rank_correlation([1, 2], [1, 2, 3])
