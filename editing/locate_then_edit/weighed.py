"""What closed forms share whose update is weighed against what is to stay: a weight, or its ratio, and a history."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from corrigenda.errors import SettingsError
from corrigenda.settings.checked import Positive, checked
from editing.locate_then_edit.closed_form import ClosedForm
from editing.locate_then_edit.least_squares import Regularizer, solve_penalised
from editing.locate_then_edit.writing import Problem, Solution


@dataclass(frozen=True)
@checked
class Weighed(ClosedForm):
    """A closed form with a weight of what is to stay against the facts; what goes on from an edit has the same.

    Attributes:
        ratio: the weight as a ratio, which means the same in every model; None where `weight` is given.
        weight: the weight itself; None where `ratio` is given.
        history: whether H holds the keys of the earlier facts of the edit that is extended.
    """

    lasting: ClassVar[tuple[str, ...]] = ("ratio", "weight", "history")

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

    def weighed(
        self, problem: Problem, of_ratio: Callable[[float], float], metric: Callable[[float], Regularizer]
    ) -> Solution:
        """The solution with the weight of the first facts, which those that go on from them keep.

        `of_ratio` is from a ratio to the weight, `metric` from that to the metric.
        """
        weight = problem.weight or self.weight
        if weight is None:
            assert self.ratio is not None
            weight = of_ratio(self.ratio)
        found = solve_penalised(problem.keys, problem.residuals, metric(weight), problem.earlier, problem.known)
        return Solution(found[0], weight, found[1])


def mean_energy(keys: Tensor) -> float:
    """The mean of |k|^2 over keys, (n, d_ffn)."""
    return float(keys.double().square().sum(1).mean())


def require_one(where: str, left: str, left_value: float | None, right: str, right_value: float | None) -> None:
    """Checks that one of two settings is given, and the other null. Raises SettingsError: both are, or none."""
    if (left_value is None) == (right_value is None):
        raise SettingsError(
            f"{where}: {left}={left_value} and {right}={right_value}: give one of them, and null for the other"
        )
