"""Units: how figures are written in tables."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """How a figure in one unit is written.

    Attributes:
        symbol: what stands beside the figure.
        factor: what the value is multiplied with; a share is shown in hundredths.
        digits: after the point, in the tables of a run.
        digits_on_leaderboard: after the point, on the leaderboard.
    """

    symbol: str
    factor: int = 1
    digits: int = 3
    digits_on_leaderboard: int = 3

    @property
    def is_share(self) -> bool:
        """Whether values lie between 0 and 1 (differences of shares between -1 and 1)."""
        return self.symbol == "%"

    def text(self, value: float, digits: int | None = None) -> str:
        """The figure without its unit."""
        places = self.digits if digits is None else digits
        return f"{round(self.factor * value, places) + 0.0:.{places}f}"  # + 0.0: no minus before zero


UNITS: Mapping[str, Unit] = {
    unit.symbol: unit
    for unit in (
        Unit("%", factor=100, digits=1, digits_on_leaderboard=1),
        Unit("nats"),
        Unit("bits", digits_on_leaderboard=2),
        Unit("s", digits=2, digits_on_leaderboard=2),
        Unit("MB", digits=0, digits_on_leaderboard=0),
        Unit("norm", digits=2),  # a norm of weights has no unit
    )
}
"""The units that are written in a way of their own."""


def unit_of(symbol: str) -> Unit:
    """The unit with a symbol; any other symbol gives three digits after the point."""
    return UNITS.get(symbol) or Unit(symbol)
