"""Facts that are written in several rounds, each on the model with what was written before."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from editing.locate_then_edit.history import KeyHistory
from editing.locate_then_edit.joined import beside
from editing.locate_then_edit.least_squares import Factors


class Round(NamedTuple):
    """What one round wrote: by layer the update's factors, the history with it, and of each fact what to report."""

    factors: dict[int, Factors]
    state: KeyHistory
    report: list[dict[str, Any]]


def in_one(rounds: Sequence[Round]) -> Round:
    """Rounds of the same facts as one: all that they wrote, and the last one's history.

    Of each fact the first round's report, with those of the later ones as ``again``.
    """
    factors = rounds[0].factors
    for one in rounds[1:]:
        factors = {layer: beside(factors[layer], pair) for layer, pair in one.factors.items()}
    by_fact = zip(*(one.report for one in rounds), strict=True)
    report = [first | {"again": later} if later else first for first, *later in by_fact]
    return Round(factors, rounds[-1].state, report)
