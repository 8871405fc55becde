"""Intervals, paired tests, effect sizes and the correction for many tests, on scipy."""

from collections.abc import Callable, Hashable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

PERMUTATIONS = (9_999, 99_999)
"""So many; and so many where these give a p below `RARE`, which a table's hundreds of tests would correct to 1."""
RARE = 0.01
MIN_FACTS = 30
"""Under this many common facts methods are not ranked: a success rate near one half is then uncertain by more than 18
points either way, and differences that matter would not show in a paired test."""


def harmonic_mean(*values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The harmonic mean, element by element; zero where one of the values is."""
    stacked = np.stack(np.broadcast_arrays(*(np.asarray(value, dtype=float) for value in values)))
    with np.errstate(divide="ignore"):
        return np.asarray(len(stacked) / (1 / stacked).sum(axis=0))


def paired_test(
    left: Sequence[float] | Sequence[Sequence[float]],
    right: Sequence[float] | Sequence[Sequence[float]],
    seed: int = 0,
    groups: Sequence[Hashable] | None = None,
    combine: Callable[..., NDArray[np.float64]] | None = None,
) -> float:
    """The two-sided p-value of a paired permutation test of two methods on the same facts.

    Under the null hypothesis the two methods could be swapped on any subject; the statistic is the difference of the
    means (or of what `combine` makes of several columns' means). Groups on which they do not differ are left out. Exact
    where there are few enough others, else over `PERMUTATIONS`: no p is below 2 / 100,000.

    Args:
        left: the per-fact values of the one method; several columns of them where `combine` is given.
        right: of the other, in the same order of facts.
        seed: for the random permutations.
        groups: the group (subject) of each fact; whole groups are swapped. By default each fact is its own.
        combine: from the columns' means to the figure that is compared, e.g. `harmonic_mean`.

    Raises:
        ValueError: the lengths differ, there is no pair, or a value is not finite.
    """
    columns = [np.atleast_2d(np.asarray(side, dtype=float)) for side in (left, right)]
    if columns[0].shape != columns[1].shape or not columns[0].size:
        sizes = [side.shape[-1] for side in columns]
        raise ValueError(f"a paired test needs the same facts on both sides, got {sizes[0]} and {sizes[1]}")
    if not all(np.isfinite(side).all() for side in columns):
        raise ValueError("a paired test needs numbers, got NaN or infinity")
    number = columns[0].shape[1]
    names = {group: place for place, group in enumerate(dict.fromkeys(range(number) if groups is None else groups))}
    member = np.array([names[group] for group in (range(number) if groups is None else groups)])
    sums = [np.stack([np.bincount(member, weights=column) for column in side]) for side in columns]
    differs = (sums[0] != sums[1]).any(axis=0)
    if differs.sum() <= 1:
        return 1.0  # swapped or not, the difference is as large
    same = sums[0][:, ~differs].sum(axis=1)
    moved = [side[:, differs] for side in sums]

    def difference(x: NDArray[np.float64], y: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
        # x and y say, for each such group, whether it is swapped; so all columns of a group are swapped together.
        figures = []
        for swapped in (x, y):
            columns = zip(same, *moved, strict=True)
            means = [(a + swapped * (b - a)).sum(axis=axis) / number + of / number for of, a, b in columns]
            figures.append(combine(*means) if combine is not None else means[0])
        # Equal differences are summed in another order for each swap: what rounding makes of them has to be equal, too.
        return np.asarray(np.round((figures[0] - figures[1]) / unit) * unit)

    unit = 1e-11 * max(1e-300, *(float(np.abs(side).sum(axis=1).max()) / number for side in sums))

    p = 0.0
    for permutations in PERMUTATIONS:
        if p < RARE:
            found = stats.permutation_test(
                (np.zeros(moved[0].shape[1]), np.ones(moved[0].shape[1])),
                difference,
                permutation_type="samples",
                vectorized=True,
                n_resamples=permutations,
                batch=1000,
                rng=np.random.default_rng(seed),
            )
            p = float(found.pvalue)
    return p


def mcnemar(left: Sequence[float], right: Sequence[float]) -> float:
    """The p-value of McNemar's exact test: yes-or-no outcomes of two methods on the same facts.

    Only the facts on which they differ count; under the null hypothesis each is as likely to favour the one as the
    other (a two-sided binomial test). 1 where they never differ.

    Raises:
        ValueError: the lengths differ, there is no pair, or an outcome is neither 0 nor 1.
    """
    first, second = _discordant(left, right)
    return float(stats.binomtest(first, first + second).pvalue) if first + second else 1.0


def matched_odds_ratio(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Facts on which only the left method succeeds, divided by those on which only the right one does.

    The conditional maximum-likelihood estimate of the odds ratio of matched pairs. None where the right method never
    succeeds alone, for it is then without bound (or, if the left one never does either, undefined).
    """
    first, second = _discordant(left, right)
    return first / second if second else None


def _discordant(left: Sequence[float], right: Sequence[float]) -> tuple[int, int]:
    if len(left) != len(right) or not len(left):
        raise ValueError(f"McNemar's test needs the same facts on both sides, got {len(left)} and {len(right)}")
    for value in (*left, *right):
        if value not in (0, 1):
            raise ValueError(f"McNemar's test is for outcomes 0 and 1, got {value!r}")
    pairs = list(zip(left, right, strict=True))
    return sum(a > b for a, b in pairs), sum(b > a for a, b in pairs)


def cohens_d(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Cohen's d of paired values (d_z): the mean of the differences divided by their standard deviation (n - 1).

    None where there are fewer than two pairs or the differences are all the same, so that it is not defined.

    Raises:
        ValueError: the lengths differ.
    """
    if len(left) != len(right):
        raise ValueError(f"paired values need the same facts on both sides, got {len(left)} and {len(right)}")
    differences = np.asarray(left, dtype=float) - np.asarray(right, dtype=float)
    if len(differences) < 2 or np.ptp(differences) <= 1e-12 * max(1.0, float(np.abs(differences).max())):
        return None
    return float(differences.mean() / differences.std(ddof=1))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number by Holm's step-down method (Holm 1979), in the order given.

    The k-th smallest of m is multiplied by m - k + 1, and none is smaller than one before it, nor larger than 1.
    Comparing these with alpha keeps the chance of any false discovery among the m below alpha.
    """
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
