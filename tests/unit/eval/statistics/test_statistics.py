import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from corrigenda import intervals
from corrigenda.intervals import RESAMPLES, exact_share, interval
from eval.statistics.comparison import Comparison, compare
from eval.statistics.paired import cohens_d, harmonic_mean, holm, matched_odds_ratio, mcnemar, paired_test

Combine = Callable[..., NDArray[np.float64]] | None


def width(bounds: tuple[float, float] | None) -> float:
    assert bounds is not None
    return bounds[1] - bounds[0]


def compared(*arguments: Any) -> Comparison:
    """`compare`, of sides with facts in common."""
    found = compare(*arguments)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", [0, 5])
def test_interval_is_scipys_where_every_subject_has_one_fact(seed: int) -> None:
    values = np.random.default_rng(1).beta(2, 5, size=40)
    expected = stats.bootstrap(
        (values,), np.mean, n_resamples=RESAMPLES, method="BCa", rng=np.random.default_rng(seed)
    ).confidence_interval
    found = interval([values.tolist()], range(40), seed=seed)
    assert found == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert found[0] < values.mean() < found[1]
    assert found == interval([values.tolist()], [f"subject {i}" for i in range(40)], seed=seed)


def test_correlated_facts_of_a_subject_widen_the_interval() -> None:
    """Twenty subjects, each with six facts that agree: twenty observations, not 120."""
    per_subject = np.random.default_rng(6).uniform(size=20).tolist()
    values = [value for value in per_subject for _ in range(6)]
    subjects = [number for number in range(20) for _ in range(6)]
    grouped, alone = width(interval([values], subjects)), width(interval([values], range(120)))
    assert grouped / alone == pytest.approx(6**0.5, rel=0.15)
    assert grouped == pytest.approx(width(interval([per_subject], range(20))), rel=1e-9)


def test_subjects_weigh_by_their_number_of_facts() -> None:
    found = interval([[0.0] * 8 + [1, 1]], ["a"] * 8 + ["b", "c"])
    assert found is not None
    assert 0 <= found[0] < 0.2 < found[1] <= 1


def test_degenerate_cases() -> None:
    assert interval([[1.0] * 5], range(5)) == (1, 1)
    assert interval([[0.25] * 6], [0, 0, 1, 1, 2, 2]) == pytest.approx((0.25, 0.25))
    assert interval([[0.0, 1, 1]], ["one subject"] * 3) is None
    assert interval([[1.0]], ["one fact"]) is None


@pytest.mark.parametrize(("n", "low"), [(10, 0.025 ** (1 / 10)), (3, 0.025 ** (1 / 3)), (100, 0.025 ** (1 / 100))])
def test_shares_that_all_agree_have_the_exact_interval(n: int, low: float) -> None:
    """Clopper and Pearson: of n right ones the lower bound p is where p^n = 0.025; of none right, the mirror image."""
    assert interval([[1.0] * n], range(n), shares=True) == pytest.approx((low, 1))
    assert interval([[0.0] * n], range(n), shares=True) == pytest.approx((0, 1 - low))
    assert low == pytest.approx(stats.binomtest(n, n).proportion_ci(0.95, "exact").low)


def test_ten_of_ten_and_what_counts_is_subjects() -> None:
    found = interval([[True] * 10], range(10), shares=True)
    assert found == (pytest.approx(0.6915, abs=5e-5), 1)
    # Thirty facts about ten subjects are ten outcomes.
    subjects = [number for number in range(10) for _ in range(3)]
    assert interval([[1.0] * 30], subjects, shares=True) == found
    assert interval([[1.0] * 30], ["one subject"] * 30, shares=True) is None


def test_subjects_that_agree_on_a_fraction() -> None:
    five_of_ten = stats.binomtest(5, 10).proportion_ci(0.95, "exact")
    subjects = [number for number in range(10) for _ in range(2)]
    found = interval([[0.0, 1.0] * 10], subjects, shares=True)
    assert found == pytest.approx((five_of_ten.low, five_of_ten.high))


@pytest.mark.parametrize("k", [0, 1, 4, 11, 12])
def test_exact_share_is_scipys(k: int) -> None:
    expected = stats.binomtest(k, 12).proportion_ci(0.9, "exact")
    assert exact_share(k / 12, 12, 0.9) == pytest.approx((expected.low, expected.high))


def test_shares_that_differ_are_drawn_as_ever() -> None:
    values = [1.0] * 9 + [0.0]
    assert interval([values], range(10), shares=True) == interval([values], range(10))


def test_the_score_where_all_parts_agree() -> None:
    """Three exact bounds to the level 1 - 0.05 / 3 each: p^10 = 0.025 / 3; their harmonic mean is p."""
    found = interval([[1.0] * 10] * 3, range(10), harmonic_mean, shares=True)
    assert found == pytest.approx(((0.025 / 3) ** 0.1, 1))
    mixed = interval([[1.0] * 10, [1.0] * 10, [0.0] * 10], range(10), harmonic_mean, shares=True)
    low, high = (0.025 / 3) ** 0.1, 1 - (0.025 / 3) ** 0.1
    assert mixed == pytest.approx((0, 3 / (1 + 1 + 1 / high)))
    assert 0 < high < low < 1
    # One part that varies is enough for the bootstrap to see that the score does.
    columns = [[1.0] * 10, [1.0] * 10, [1.0] * 8 + [0.0] * 2]
    assert interval(columns, range(10), harmonic_mean, shares=True) == interval(columns, range(10), harmonic_mean)


def test_a_difference_that_is_zero_everywhere_is_no_share() -> None:
    """Two methods that never differ: the test says so (p = 1), and the differences are no counts out of n."""
    sides = dict.fromkeys(range(10), (1.0,))
    found = compared(sides, sides, {})
    assert (found.low, found.high, found.p) == (0, 0, 1)


def test_interval_of_a_combination() -> None:
    values = np.random.default_rng(2).uniform(0.2, 1, size=25).tolist()
    combined, plain = interval([values, values, values], range(25), harmonic_mean), interval([values], range(25))
    assert combined == pytest.approx(plain)


def test_interval_of_a_score_that_is_zero() -> None:
    draw = np.random.default_rng(4)
    columns = [draw.uniform(size=12).tolist(), [0.0] * 12]
    assert interval(columns, range(12), harmonic_mean) == (0, 0)


def test_the_interval_of_a_difference_is_kept() -> None:
    """A table and its page ask for the same, and each interval that is kept without a use takes the place of one."""
    left, right = ({n: (way * n / 41 % 1,) for n in range(30)} for way in (3, 7))
    before = intervals._bootstrap.cache_info()
    assert compare(left, right, {}) == compare(left, right, {})
    after = intervals._bootstrap.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 1)


def test_harmonic_mean() -> None:
    assert float(harmonic_mean(np.array(1.0), np.array(0.5), np.array(0.25))) == pytest.approx(3 / 7)
    assert float(harmonic_mean(np.array(1.0), np.array(0.0), np.array(0.25))) == 0
    assert harmonic_mean(np.array([1.0, 0.0]), np.array([0.5, 1.0])).tolist() == pytest.approx([2 / 3, 0])


def test_paired_test_by_hand() -> None:
    assert paired_test([3.0, 5, 7], [2.0, 3, 4]) == pytest.approx(2 / 8)
    # 1, 2, -1 sum to 2; of the 8 sums 4, 2, 2, 0, 0, -2, -2, -4 three are at least 2, so 2 * 3 / 8.
    assert paired_test([1.0, 2, 0], [0.0, 0, 1]) == pytest.approx(6 / 8)
    assert paired_test([1.0, 0, 1], [1.0, 0, 1]) == 1


def test_a_clear_difference_passes_the_correction_for_a_table_of_tests() -> None:
    left = np.random.default_rng(0).random(100)
    p = paired_test(list(left), list(left + 0.5))
    assert holm([p] + [1.0] * 499)[0] < 0.05


@pytest.mark.parametrize("n", [4, 30, 300])
@pytest.mark.parametrize("combine", [None, harmonic_mean])
def test_equal_differences_are_equal_whatever_their_rounding(n: int, combine: Combine) -> None:
    """Methods that differ on one fact of many, on two alike, or in turns: no swap makes a smaller difference."""
    shares = np.resize([0.8, 0.6, 1.0, 0.4], n)
    others = [] if combine is None else [[1.0] * n, [0.9] * n]

    def p(*changes: float) -> float:
        changed = shares + np.pad(changes, (0, n - len(changes)))
        return paired_test([*others, shares.tolist()], [*others, changed.tolist()], combine=combine)

    assert p(0.2) == 1
    assert p(0.2, 0.2) == 0.5  # two of four swaps are as far
    assert p(0.2, -0.2) == 1
    assert p(0.2, 0, 0.2, 0.2) == 0.25
    assert p(*[0.2, -0.2, 0.2, 0.2]) == pytest.approx(10 / 16)  # all but the six swaps that make no difference


def test_paired_test_wants_pairs() -> None:
    with pytest.raises(ValueError, match="same facts"):
        paired_test([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="same facts"):
        paired_test([], [])
    with pytest.raises(ValueError, match="got NaN or infinity"):
        paired_test([1.0, float("nan"), 2.0], [1.0, 0.0, 3.0])


def test_paired_test_swaps_whole_subjects() -> None:
    """Differences 1, 1 of one subject and 2, -1 of two more: sums 2, 2, -1, flipped in 8 ways.

    The sums of the flips are 3, 5, -1, 1 and their opposites; |.| >= 3 in four of eight.
    """
    left, right = [1.0, 1, 2, 0], [0.0, 0, 0, 1]
    assert paired_test(left, right, groups=["a", "a", "b", "c"]) == pytest.approx(4 / 8)
    # Each fact for itself: 1, 1, 2, -1. Of 16 sums |.| >= 3: 5, 3, 3 (1+1+2-1, -1+1+2+1, 1-1+2+1) and opposites.
    assert paired_test(left, right) == pytest.approx(8 / 16)
    assert paired_test(left, right, groups=["one"] * 4) == 1


def test_paired_test_of_a_combination() -> None:
    left = np.array([[1.0, 0.4, 0.9], [0.8, 0.7, 0.2]])
    right = np.array([[0.3, 0.5, 0.1], [0.6, 0.9, 0.4]])

    def figure(swap: tuple[int, ...]) -> float:
        chosen = np.array(swap, dtype=bool)
        mine, other = np.where(chosen, right, left).mean(axis=1), np.where(chosen, left, right).mean(axis=1)
        return float(2 / (1 / mine).sum() - 2 / (1 / other).sum())

    swaps = list(itertools.product((0, 1), repeat=3))
    observed = figure((0, 0, 0))
    expected = sum(abs(figure(swap)) >= abs(observed) - 1e-12 for swap in swaps) / len(swaps)
    assert paired_test(left.tolist(), right.tolist(), combine=harmonic_mean) == pytest.approx(expected)


def test_mcnemar_by_hand() -> None:
    """Nine facts favour the left method and one the right: 2 * (C(10, 9) + C(10, 10)) / 2^10 = 22 / 1024."""
    left, right = [1.0] * 9 + [0.0] + [1.0] * 20, [0.0] * 9 + [1.0] + [1.0] * 20
    assert mcnemar(left, right) == pytest.approx(22 / 1024)
    assert mcnemar(right, left) == pytest.approx(22 / 1024)
    assert mcnemar([1.0, 0.0], [1.0, 0.0]) == 1
    assert mcnemar([1.0] * 5, [0.0] * 5) == pytest.approx(2 / 32)
    assert matched_odds_ratio(left, right) == pytest.approx(9)
    assert matched_odds_ratio(right, left) == pytest.approx(1 / 9)
    assert matched_odds_ratio([1.0, 1.0], [0.0, 1.0]) is None


def test_mcnemar_wants_matched_outcomes() -> None:
    with pytest.raises(ValueError, match="same facts"):
        mcnemar([1.0], [1.0, 0.0])
    with pytest.raises(ValueError, match=r"0 and 1, got 0\.5"):
        mcnemar([0.5], [1.0])


def test_holm_by_hand() -> None:
    """Holm's own procedure on 0.01, 0.04, 0.03, 0.005: times 3, 1, 2, 4 in order of size, then never decreasing."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.5]) == [1, 1]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_cohens_d_by_hand() -> None:
    assert cohens_d([2.0, 4, 6], [1.0, 2, 3]) == pytest.approx(2)
    assert cohens_d([1.0, 4], [1.0, 2]) == pytest.approx(1 / 2**0.5)
    assert cohens_d([1.0, 2.1], [0.1, 1.2]) is None  # the same difference twice
    assert cohens_d([1.0], [0.0]) is None


def test_compare_uses_only_common_facts() -> None:
    left = dict.fromkeys(range(10), (1.0,))
    right = {number: (0.0 if number < 6 else 1.0,) for number in range(2, 20)}
    found = compared(left, right, {})
    # Facts 2 to 9; the left method alone succeeds on 2 to 5: p = 2 / 2^4.
    assert (found.n, found.difference, found.test) == (8, 0.5, "McNemar")
    assert found.p == pytest.approx(2 / 16)
    assert found.effect is None  # the right method never succeeds alone
    assert compare(left, {99: (1.0,)}, {}) is None


def test_compare_takes_facts_of_one_subject_together() -> None:
    left = {(number, seed): (1.0,) for number in range(4) for seed in range(3)}
    right = dict.fromkeys(left, (0.0,))
    found = compared(left, right, {unit: unit[0] for unit in left})
    assert (found.n, found.subjects, found.test) == (12, 4, "permutation")
    assert found.p == pytest.approx(2 / 16)
    assert (found.low, found.high) == (1, 1)


def test_compare_graded_values_and_a_combination() -> None:
    left, right = {n: (0.1 * n, 0.5) for n in range(8)}, {n: (0.1 * n - 0.05 * (n % 3), 0.5) for n in range(8)}
    found = compared(left, right, {})
    differences = np.array([0.05 * (n % 3) for n in range(8)])
    assert found.effect_name == "Cohen's d (paired)"
    assert found.effect == pytest.approx(differences.mean() / differences.std(ddof=1))
    assert found.difference == pytest.approx(differences.mean())
    assert found.p == pytest.approx(
        stats.permutation_test(
            (differences,), lambda x, axis: x.mean(axis=axis), permutation_type="samples", vectorized=True
        ).pvalue
    )
    combined = compared(left, right, {}, harmonic_mean)
    means = [np.mean([value[0] for value in side.values()]) for side in (left, right)]
    expected = [2 / (1 / mean + 1 / 0.5) for mean in means]
    assert combined.difference == pytest.approx(expected[0] - expected[1])
    assert (combined.effect, combined.effect_name) == (None, "")
