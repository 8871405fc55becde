"""What a leaderboard is made of: cells, tests, rows, tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from corrigenda.text.names import model_title
from eval.leaderboard.columns import Column, columns
from eval.leaderboard.entries import LeaderboardEntry, LeftOut, TableKey
from eval.statistics.comparison import Comparison
from eval.statistics.paired import MIN_FACTS


@dataclass(frozen=True)
class Cell:
    """One figure.

    Attributes:
        value: the mean after the edits, or what there is one of.
        before: the same before them; None where it has no meaning.
        low: of the 95 % interval; None where there is none.
        high: its other end.
        n: the number of facts (times seeds) that it is of.
        mark: "best"; "behind", if the test tells it from the best; else empty: not told apart, or not tested.
    """

    value: float
    before: float | None
    low: float | None
    high: float | None
    n: int
    mark: Literal["best", "behind", ""] = ""


@dataclass(frozen=True)
class Test:
    """A paired test between two rows of a table, by their labels, in the column of a metric.

    `p_holm` is the p-value, corrected for all tests of the table.
    """

    metric: str
    left: str
    right: str
    comparison: Comparison
    p_holm: float


@dataclass(frozen=True)
class Row:
    """One editor in a table.

    Attributes:
        label: the editor's name, with the settings that tell it from its variants.
        control: what kind of control it is; empty for others.
        entry: what it is made of, with the cases that its figures are of; None for a control that has no run.
        cells: by column; one that could not be computed is absent.
        n_facts: the facts that its figures are of.
        n_own: all the facts it was run on.
        compared: whether it is on the table's common facts, and tested.
        behind: the labels of the rows that are significantly better, the best first; None where it is not ranked.
        n_failed: edits that failed among its cases.
    """

    label: str
    control: str
    entry: LeaderboardEntry | None
    cells: Mapping[str, Cell]
    n_facts: int = 0
    n_own: int = 0
    compared: bool = False
    behind: tuple[str, ...] | None = None
    n_failed: int = 0


@dataclass(frozen=True)
class Board:
    """One table.

    Attributes:
        key: model, data set, mode.
        rows: the editors and the controls.
        common: the number of facts that the compared rows share.
        ranked_by: the column that orders the rows; empty where there is no ranking.
        tests: every test that was made, corrected for their number.
        notes: what a reader has to know.
        heads: what its figures are to be read by; it stands above the table.
    """

    key: TableKey
    rows: tuple[Row, ...]
    common: int
    ranked_by: str
    tests: tuple[Test, ...]
    notes: tuple[str, ...]
    heads: tuple[str, ...] = ()

    @property
    def columns(self) -> list[Column]:
        """The columns that at least one row has: the one that ranks, preservation beside it, then the others."""
        shown = [column for column in columns().values() if any(column.key in row.cells for row in self.rows)]
        first = [self.ranked_by, "preservation"] if self.ranked_by else []
        return sorted(shown, key=lambda column: first.index(column.key) if column.key in first else len(first))

    @property
    def title(self) -> str:
        """Model, data set and mode."""
        return f"{model_title(self.key.model)} · {self.key.data} · {self.key.mode}"


@dataclass(frozen=True)
class Leaderboard:
    """All tables, and what is in none.

    Attributes:
        boards: the tables.
        left_out: the runs that are in none, with the reason.
        min_facts: the number of common facts under which nothing is ranked.
    """

    boards: tuple[Board, ...]
    left_out: tuple[LeftOut, ...]
    min_facts: int = field(default=MIN_FACTS)
