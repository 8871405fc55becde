"""Paired tests between the rows of a table, the marks that follow from them, and the order of the rows."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Literal

from corrigenda import Fact
from eval.evaluation import NOT_FINITE, Case
from eval.leaderboard.boards import Cell, Row, Test
from eval.leaderboard.columns import NOT_EDITING, Column, columns, one_value
from eval.metrics import METRICS
from eval.metrics.run_figures import MEMORY, SECONDS
from eval.scoring.fitting import TOO_LONG
from eval.statistics.comparison import Comparison, compare
from eval.statistics.paired import holm

ALPHA = 0.05


def tests_of(rows: Sequence[Row], mode: str, ranked_by: str) -> list[Test]:
    """Each row against the best one in every column, and all pairs in the column that ranks; corrected together."""
    found: list[tuple[str, Row, Row, Comparison]] = []
    for column in columns().values():
        tested = candidates(rows, column, mode)
        if len(tested) < 2:
            continue
        best = _best(tested, column)
        pairs = [(best, row) for row in tested if row is not best]
        if column.key == ranked_by:
            pairs += [
                (left, right)
                for place, left in enumerate(tested)
                for right in tested[place + 1 :]
                if best is not left and best is not right
            ]
        for left, right in pairs:
            comparison = _compared(left, right, column)
            if comparison is not None:
                found.append((column.key, left, right, comparison))
    corrected = holm([comparison.p for _, _, _, comparison in found])
    return [
        Test(metric, left.label, right.label, comparison, p)
        for (metric, left, right, comparison), p in zip(found, corrected, strict=True)
    ]


def candidates(rows: Sequence[Row], column: Column, mode: str) -> list[Row]:
    """The rows that are tested in a column."""
    if column.key in one_value(mode):
        return []
    return [
        row
        for row in rows
        if row.compared
        and row.entry is not None
        and row.entry.editor not in NOT_EDITING
        and column.key in row.cells
        # Where nothing was edited nothing is harmed; and a mean without the worst edits is better than they were.
        and not all(case.error for case in row.entry.cases.values())
        and not any(lacks(case, column.key) for case in row.entry.cases.values())
    ]


def lacks(case: Case, key: str) -> bool:
    """Whether there is no number after an edit that a figure would be of: none finite, or a prompt became too long."""
    if key == MEMORY.key:  # of the process, and not of a case
        return False
    if case.before is not None and case.before.error:  # without an edit there is none, too
        return False
    return case.error.startswith((NOT_FINITE, TOO_LONG)) and _value(case, key) is None and _asked(case.fact, key)


_GIVEN = frozenset({"paraphrases", "neighbourhood", "locality", "portability", "generation"})
"""The kinds of prompts that a fact has where its data set gives some."""


def _asked(fact: Fact, key: str) -> bool:
    """Whether a fact has the prompts that a figure is of; without them it has no number, whatever the edit did."""
    if (metric := METRICS.find(key)) is None:
        return True
    for part in map(METRICS.named, metric.parts or (key,)):
        kinds = {kind for need in part.needs for kind in need.kinds}
        if kinds and kinds <= _GIVEN and not any(getattr(fact, kind) for kind in kinds):
            return False
    return True


def _best(tested: Sequence[Row], column: Column) -> Row:
    sign = -1 if column.better == "high" else 1
    return min(tested, key=lambda row: (sign * row.cells[column.key].value, row.label))  # of equal ones as in `order`


def _compared(left: Row, right: Row, column: Column) -> Comparison | None:
    """The test of two rows, on the same facts and seeds; over each fact's mean where they share no seed."""
    assert left.entry is not None
    assert right.entry is not None
    seeds = set(left.entry.seeds) & set(right.entry.seeds)
    sides: list[dict[Hashable, tuple[float, ...]]] = []
    subjects: dict[Hashable, Hashable] = {}
    for entry in (left.entry, right.entry):
        values: dict[Hashable, list[tuple[float, ...]]] = {}
        for (fact, seed), case in entry.cases.items():
            unit: Hashable = (fact, seed) if seeds else fact
            value = _value(case, column.key)
            if value is not None and (not seeds or seed in seeds):
                values.setdefault(unit, []).append(value)
                subjects[unit] = case.fact.subject
        sides.append(
            {
                unit: tuple(sum(parts) / len(found) for parts in zip(*found, strict=True))
                for unit, found in values.items()
            }
        )
    if column.key == SECONDS.key:  # facts of one edit have one time; of two rows the one with fewer edits says which
        fewer = min(sides, key=lambda side: len(set(side.values())))
        subjects = dict(fewer)
    metric = METRICS.find(column.key)
    return compare(sides[0], sides[1], subjects, None if metric is None else metric.combine)


def _value(case: Case, key: str) -> tuple[float, ...] | None:
    if key == SECONDS.key:
        return None if case.seconds is None else (case.seconds,)
    metric = METRICS.find(key)
    return None if metric is None else metric.figures(case.after.values)


def marked(row: Row, rows: Sequence[Row], tests: Sequence[Test], mode: str, ranked_by: str) -> Row:
    """The row with its marks, and with the rows that it is behind."""
    cells, known = dict(row.cells), columns()
    for name, cell in row.cells.items():
        column = known[name]
        tested = candidates(rows, column, mode)
        if len(tested) < 2 or row not in tested:
            continue
        if len({one.cells[name].value for one in tested}) == 1:
            continue  # where all are equal, at 0 as often as not, none is best
        best = _best(tested, column).label
        test = next((t for t in tests if t.metric == name and {t.left, t.right} == {best, row.label}), None)
        mark: Literal["best", "behind", ""] = ""
        if row.label == best:
            mark = "best"
        elif test is not None and _is_behind(test, row.label, column):
            mark = "behind"  # the best by all its seeds may be behind on those that both have
        cells[name] = Cell(cell.value, cell.before, cell.low, cell.high, cell.n, mark)
    behind = None
    if ranked_by and row in candidates(rows, known[ranked_by], mode):
        better = set[str]()
        for test in tests:
            if test.metric == ranked_by and _is_behind(test, row.label, known[ranked_by]):
                better |= {test.left, test.right} - {row.label}
        behind = tuple(one.label for one in sorted(rows, key=lambda one: order(one, ranked_by)) if one.label in better)
    return replace(row, cells=cells, behind=behind)


def _is_behind(test: Test, label: str, column: Column) -> bool:
    """Whether a test says that a row of it is worse than the other."""
    if label not in (test.left, test.right) or test.p_holm >= ALPHA:
        return False
    gain = test.comparison.difference * (1 if test.left == label else -1)
    return (gain if column.better == "high" else -gain) < 0


def order(row: Row, ranked_by: str) -> tuple[bool, bool, float, str]:
    """By the ranking figure, best first; by name where there is no ranking; what was not compared after it."""
    cell = row.cells.get(ranked_by) if row.compared else None
    sign = -1 if not ranked_by or columns()[ranked_by].better == "high" else 1
    return row.entry is None, bool(ranked_by) and cell is None, sign * cell.value if cell else 0.0, row.label
