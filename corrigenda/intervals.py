"""Intervals, on scipy; what locators and the evaluation both report: bootstrap, and exact where all outcomes agree."""

import math
import warnings
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

RESAMPLES = 2000
LEVEL = 0.95
ROUNDING = 1e-9
"""Shares that differ by less are equal: sums of them in float64."""


def interval(
    columns: Sequence[Sequence[float]],
    groups: Sequence[Hashable],
    combine: Callable[..., NDArray[np.float64]] | None = None,
    seed: int = 0,
    shares: bool = False,
) -> tuple[float, float] | None:
    """A 95 % interval of a mean, or of a combination of means; the cases come in groups.

    By bootstrap: facts about one subject are not independent, so whole subjects are drawn. BCa where it is defined,
    else the percentile interval (BCa is not where all groups agree).

    A bootstrap of outcomes that are all the same gives an interval without width, ten of ten as sure as a thousand of a
    thousand. Shares have the exact interval there (`exact_share`), with the number of groups, not of cases, for n. A
    combination of shares that all agree, each in itself, is bounded by that of their exact bounds, each to the level
    1 - 0.05 / (number of columns), so that together they hold in 95 % (Bonferroni).

    Args:
        columns: one sequence of per-case values, or several of the same length.
        groups: the group (subject) of each case.
        combine: from the columns' means to the figure wanted; by default the only column's mean. With `shares` it must
            not fall where one of the means rises.
        seed: for resampling.
        shares: whether the columns hold yes-or-no outcomes or shares of them, from 0 to 1. Not so for differences: one
            that is 0 everywhere is no count of successes.

    Returns:
        the bounds, or None where there are fewer than two groups.
    """
    names = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    if len(names) < 2:
        return None
    member = np.array([names[group] for group in groups])
    counts = np.bincount(member).astype(float)
    sums = [np.bincount(member, weights=np.asarray(column, dtype=float)) for column in columns]
    if shares and all(np.ptp(total / counts) <= ROUNDING for total in sums):
        level = 1 - (1 - LEVEL) / len(sums)
        exact = [exact_share(float(total.sum() / counts.sum()), len(names), level) for total in sums]
        bounds = exact[0] if combine is None else [combine(*map(np.array, side)) for side in zip(*exact, strict=True)]
        return float(bounds[0]), float(bounds[1])

    return _bootstrap(tuple(total.tobytes() for total in (*sums, counts)), combine, seed, RESAMPLES)


@lru_cache(maxsize=1024)  # a summary, its table and a run that goes on ask for the same
def _bootstrap(
    samples: tuple[bytes, ...], combine: Callable[..., NDArray[np.float64]] | None, seed: int, resamples: int
) -> tuple[float, float] | None:
    """The interval by drawing groups, of each the sums over its cases and, last, their number, all in float64."""

    def figure(*samples: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
        *totals, number = samples
        means = [total.sum(axis=axis) / number.sum(axis=axis) for total in totals]
        return combine(*means) if combine is not None else means[0]

    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scipy warns where BCa is not defined; that case is handled here
            found = stats.bootstrap(
                [np.frombuffer(sample) for sample in samples],
                figure,
                paired=True,
                vectorized=True,
                n_resamples=resamples,
                method=method,
                rng=np.random.default_rng(seed),
            ).confidence_interval
        if math.isfinite(found.low) and math.isfinite(found.high):
            return float(found.low), float(found.high)
    return None


def exact_share(share: float, n: int, level: float = LEVEL) -> tuple[float, float]:
    """The exact interval of a share of n independent outcomes (Clopper and Pearson 1934), at a level.

    With k = n * share successes: from the quantile (1 - level) / 2 of Beta(k, n - k + 1), or 0 for k = 0, to the
    quantile (1 + level) / 2 of Beta(k + 1, n - k), or 1 for k = n. Ten of ten: [0.692, 1]. Outcomes that are shares
    themselves (of one subject's prompts) make k a fraction. The bounds are then too wide rather than too narrow, for
    nothing between 0 and 1 varies more about its mean than yes-or-no outcomes do.
    """
    k, tail = n * share, (1 - level) / 2
    low = stats.beta.ppf(tail, k, n - k + 1) if share > ROUNDING else 0.0
    high = stats.beta.ppf(1 - tail, k + 1, n - k) if share < 1 - ROUNDING else 1.0
    return float(low), float(high)
