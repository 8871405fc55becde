"""By which metric a table is ranked: what its data set declares, passing over what is at its ceiling."""

from collections.abc import Sequence
from dataclasses import dataclass

from corrigenda.data.schemas import SCHEMAS
from eval.leaderboard.boards import Row
from eval.leaderboard.columns import Column, columns, ranking
from eval.leaderboard.entries import LeaderboardEntry, TableKey
from eval.leaderboard.marks import candidates

CEILING = 0.97
"""A share of at least that leaves no room to tell methods apart."""


@dataclass(frozen=True)
class Ranking:
    """What orders the rows of a table: a metric's key, empty where there is no ranking, and why, in a sentence."""

    key: str
    why: str


def ranking_of(key: TableKey, entries: Sequence[LeaderboardEntry], rows: Sequence[Row]) -> Ranking:
    """The first metric that the table's data set declares, that the compared rows have, and that tells them apart.

    A data set that declares none, or is not known, is ranked by the first of the metrics that say `ranks` in their
    declaration. A metric at its ceiling (see `at_ceiling`) ranks nothing: the next one is taken.

    Raises:
        ValueError: a data set declares a metric that is none, or that has no column.
    """
    name = schema_of(key, entries)
    declared = SCHEMAS[name].ranked_by if name else ()
    known = columns()
    if unknown := [metric for metric in declared if metric not in known]:
        raise ValueError(
            f"corrigenda/data/schemas.py: {name} is ranked by {unknown[0]!r}, which is no metric with a column of the "
            f"leaderboard; there are {', '.join(known)}"
        )
    source = f"as the data set ({name}) declares" if declared else "by the rule for data sets that declare nothing"
    compared = [row for row in rows if row.compared]
    passed: list[str] = []
    for metric in declared or ranking():
        if not any(metric in row.cells for row in compared):
            if declared:
                passed.append(f"{known[metric].title} was not measured")
        elif at_ceiling(known[metric], rows, key.mode):
            passed.append(
                f"{known[metric].title} is at its ceiling (every row that is tested has {100 * CEILING:.0f} % or more, "
                "or an interval that reaches 100 %)"
            )
        else:
            before = f"; {' and '.join(passed)}" if passed else ""
            return Ranking(metric, f"Ranked by {known[metric].title}, {source}{before}.")
    return Ranking("", f"No ranking: {' and '.join(passed)}." if passed else "")


def schema_of(key: TableKey, entries: Sequence[LeaderboardEntry]) -> str:
    """The schema of a table's data: as its runs were read, else the one called like the data set; empty if none.

    So facts in CounterFact's schema are ranked in CounterFact's way whatever their file is called.
    """
    for entry in entries:
        for run in entry.runs:
            # Runs of earlier versions note none, and are configured.
            noted = str(run.identity.get("schema") or dict(run.config.get("data") or {}).get("schema", ""))
            if noted in SCHEMAS:
                return noted
    return key.data if key.data in SCHEMAS else ""


def at_ceiling(column: Column, rows: Sequence[Row], mode: str) -> bool:
    """Whether a share is so high in all the rows that are tested in it that it cannot rank them.

    So it is where every row has at least 97 %, or a 95 % interval that reaches 100 %.
    """
    tested = candidates(rows, column, mode)
    if not column.written.is_share or column.better != "high" or len(tested) < 2:
        return False
    cells = [row.cells[column.key] for row in tested]
    return all(cell.value >= CEILING or (cell.high is not None and cell.high >= 1) for cell in cells)
