import math

import numpy as np
import pytest

from eval.statistics.comparison import compare
from eval.statistics.paired import harmonic_mean
from eval.statistics.power import facts_needed, variance_per_fact


def difference(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left - right


def test_the_number_by_hand() -> None:
    """z of 97.5 % is 1.95996 and of 80 % is 0.84162: 7.8489 x 0.2 / 0.0025 = 627.9; a tenth: 7.8489 x 20 = 156.98."""
    assert facts_needed(0.2) == 628
    assert facts_needed(0.2, difference=0.1) == 157
    assert facts_needed(0.2, difference=0.1, power=0.5) == math.ceil(1.95996**2 * 20)


def test_yes_or_no_outcomes_cannot_vary_less_than_the_difference_itself() -> None:
    """Of 100 pairs one differs; a difference of 0.05 needs five, with a variance of 0.05 x 0.95."""
    assert facts_needed(0.01) == 32
    assert facts_needed(0.01, yes_or_no=True) == math.ceil(7.8489 * 0.0475 / 0.0025)
    assert facts_needed(0.0, yes_or_no=True) == facts_needed(0.01, yes_or_no=True)


def test_where_nothing_varies_nothing_is_said() -> None:
    assert facts_needed(0.0) is None


@pytest.mark.parametrize("variance", [-1.0, math.nan, math.inf])
def test_a_variance_that_is_none(variance: float) -> None:
    with pytest.raises(ValueError, match="variance"):
        facts_needed(variance)


def test_with_one_fact_a_subject_it_is_the_sample_variance() -> None:
    left, right = np.random.default_rng(0).uniform(size=(2, 40))
    assert variance_per_fact([left, right], range(40), difference) == pytest.approx(np.var(left - right, ddof=1))
    assert variance_per_fact([[1.0], [0.0]], ["alone"], difference) is None


def test_facts_of_a_subject_that_agree_count_as_one() -> None:
    values = np.random.default_rng(1).normal(size=30)
    subjects = [number for number in range(30) for _ in range(4)]
    found = variance_per_fact([np.repeat(values, 4), np.zeros(120)], subjects, difference)
    assert found == pytest.approx(4 * np.var(values, ddof=1))


def test_a_combined_figure_against_the_spread_of_many_samples() -> None:
    """The harmonic mean of two shares: the variance that one sample tells is that of 4,000 samples, within 10 %."""
    draw = np.random.default_rng(2)
    n = 400

    def sample() -> np.ndarray:
        return (draw.uniform(size=(2, n)) < [[0.9], [0.6]]).astype(float)

    spread = n * np.var([float(harmonic_mean(*sample().mean(axis=1))) for _ in range(4000)])
    told = np.mean([variance_per_fact(sample(), range(n), harmonic_mean) for _ in range(50)])
    assert told == pytest.approx(spread, rel=0.1)


def test_a_comparison_says_it() -> None:
    """Ten of 40 pairs differ, all in one way: the variance is 0.25 x 0.75 x 40 / 39 = 0.1923."""
    left = {number: (float(number < 30),) for number in range(40)}
    right = {number: (float(number < 20),) for number in range(40)}
    found = compare(left, right, {})
    assert found is not None
    assert found.facts_needed == math.ceil(7.8489 * 0.25 * 0.75 * 40 / 39 / 0.0025)
    half = {number: (value / 2,) for number, (value,) in left.items()}  # no yes or no: nothing else is assumed
    same = compare(half, half, {})
    assert same is not None
    assert same.facts_needed is None
