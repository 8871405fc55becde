"""MEMIT: many facts, one penalised least-squares problem for each of several layers.

Meng, Sen Sharma, Andonian, Belinkov and Bau 2023, "Mass-Editing Memory in a Transformer". Configurations of the same
class: without history (as published), BLUE (first and last layer only), PMET (Li et al. 2024).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from corrigenda.settings import Positive, SettingsError, checked
from editing.locate_then_edit.closed_form import ClosedForm, Problem, Solution
from editing.locate_then_edit.least_squares import Penalty, solve_penalised

SCALE_FACTS = 100
"""The number of facts at which a ratio of weights is meant."""


@dataclass(frozen=True)
@checked
class Memit(ClosedForm):
    """Mass-Editing Memory in a Transformer.

    For each layer, with its share R of what is missing at the last:

        delta V = A^-1 K^T R,    A = lambda C + H + K^T K

    lambda weighs the text against the facts. As a `ratio` it means the same in every model: at 100 facts,
    tr(lambda C) is `ratio` times tr(K^T K), so that lambda = ratio * 100 * (mean of |k|^2 over the facts) / tr(C),
    however many facts there are. It is taken from the first facts, and an edit that goes on from them keeps it.

    With `history`, H holds the keys of the earlier facts of the edit that is extended: in one layer, and with keys and
    targets of the unedited model, batches then give what one batch of all gives. Without, as published, later batches
    undo earlier ones: a straw man in sequences.

    Attributes:
        ratio: lambda as a ratio; None where `weight` is given.
        weight: lambda itself, as the authors state it (15,000 for GPT-J); None where `ratio` is given.
        history: whether H is kept.
    """

    name: str = "memit"
    ratio: Positive | None = 1.0
    weight: Positive | None = None
    history: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one(type(self).__name__, "ratio", self.ratio, "weight", self.weight)

    @property
    def keeps_history(self) -> bool:
        """As `history` says."""
        return self.history

    def solution(self, problem: Problem) -> Solution:
        """A^-1 K^T and R, and lambda."""
        weight = problem.weight or self.weight
        if weight is None:
            assert self.ratio is not None
            weight = self.ratio * SCALE_FACTS * mean_energy(problem.keys) / float(problem.moment.matrix.trace())
        metric = Penalty(problem.moment, weight, self.ridge)
        factors, system = solve_penalised(problem.keys, problem.residuals, metric, problem.earlier, problem.known)
        return Solution(factors, weight, system)


def mean_energy(keys: Tensor) -> float:
    """The mean of |k|^2 over keys, (n, d_ffn)."""
    return float(keys.double().square().sum(1).mean())


def require_one(where: str, left: str, left_value: float | None, right: str, right_value: float | None) -> None:
    """Checks that one of two settings is given, and the other null.

    Raises:
        SettingsError: both are, or none.
    """
    if (left_value is None) == (right_value is None):
        raise SettingsError(
            f"{where}: {left}={left_value} and {right}={right_value}: give one of them, and null for the other"
        )
