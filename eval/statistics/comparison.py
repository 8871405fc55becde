"""`compare`: two methods on the facts that both were run on, with a paired test, an interval and effect sizes."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from corrigenda.intervals import interval
from eval.statistics.paired import cohens_d, matched_odds_ratio, mcnemar, paired_test
from eval.statistics.power import facts_needed, variance_per_fact

Values = Mapping[Hashable, tuple[float, ...]]
"""By unit (a fact, or a fact and a seed) its values: one, or as many as the figure combines."""


@dataclass(frozen=True)
class Comparison:
    """How two methods differ on their common facts.

    Attributes:
        n: the number of common units (facts, or facts and seeds).
        subjects: the number of subjects among them.
        difference: left minus right, of the means or of what combines them; for yes-or-no outcomes this is the risk
            difference.
        low: of a 95 % bootstrap interval of the difference, by subject; None where there are too few subjects. Without
            width where all units differ alike: a difference is no share of successes that would have an exact
            interval, and whether there is one at all is what `p` says.
        high: its other end.
        p: the two-sided p-value, not corrected.
        test: which test gave it: "McNemar" or "permutation".
        effect: the effect size besides the difference; None where it is not defined.
        effect_name: what `effect` is: "matched odds ratio" or "Cohen's d (paired)"; empty for combined figures.
        facts_needed: how many units a difference of 0.05 (five points of a share) needs for 80 % power at p < 0.05,
            not corrected (see `eval.statistics.power`); None where the observed differences do not tell.
    """

    n: int
    subjects: int
    difference: float
    low: float | None
    high: float | None
    p: float
    test: str
    effect: float | None
    effect_name: str
    facts_needed: int | None = None


def compare(
    left: Values,
    right: Values,
    subjects: Mapping[Hashable, Hashable],
    combine: Callable[..., NDArray[np.float64]] | None = None,
    seed: int = 0,
) -> Comparison | None:
    """Compares two methods on the units that both have; None where there is none.

    McNemar's exact test where every value is 0 or 1 and every subject occurs once; else a permutation test that swaps
    whole subjects, for facts about one subject are not independent. Units without a subject are their own. `combine` is
    from several columns' means to the figure compared (the score); without it the first value counts.
    """
    common = [unit for unit in left if unit in right]
    if not common:
        return None
    groups = [subjects.get(unit, unit) for unit in common]
    columns = [
        [list(column) for column in zip(*(side[unit] for unit in common), strict=True)] for side in (left, right)
    ]
    if combine is None:
        columns = [side[:1] for side in columns]

    difference = _difference(combine)
    value = float(difference(*(np.mean(column, dtype=float) for side in columns for column in side)))
    low, high = interval([*columns[0], *columns[1]], groups, difference, seed) or (None, None)
    binary = combine is None and all(value in (0, 1) for side in columns for value in side[0])
    if binary and len(set(groups)) == len(groups):
        p, test = mcnemar(columns[0][0], columns[1][0]), "McNemar"
    else:
        p, test = paired_test(columns[0], columns[1], seed, groups, combine), "permutation"
    effect, effect_name = None, ""
    if binary:
        effect, effect_name = matched_odds_ratio(columns[0][0], columns[1][0]), "matched odds ratio"
    elif combine is None:
        effect, effect_name = cohens_d(columns[0][0], columns[1][0]), "Cohen's d (paired)"
    variance = variance_per_fact([*columns[0], *columns[1]], groups, difference)
    needed = None if variance is None else facts_needed(variance, yes_or_no=binary)
    return Comparison(len(common), len(set(groups)), value, low, high, p, test, effect, effect_name, needed)


@lru_cache  # the same function for the same figure, by which `interval` finds what it has
def _difference(combine: Callable[..., NDArray[np.float64]] | None) -> Callable[..., NDArray[np.float64]]:
    """From the means of the left, then of the right columns to how the figures differ."""

    def difference(*means: NDArray[np.float64]) -> NDArray[np.float64]:
        half = len(means) // 2
        if combine is None:
            return np.asarray(means[0] - means[1])
        return np.asarray(combine(*means[:half]) - combine(*means[half:]))

    return difference
