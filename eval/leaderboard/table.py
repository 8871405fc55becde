"""`Leaderboard`: the tables, with intervals, paired tests and marks; from the records of cases alone."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from corrigenda.intervals import interval
from corrigenda.runs.store import StoredRun
from eval.evaluation import NOT_FINITE, SCORE_PARTS, Case, Evaluation
from eval.leaderboard.columns import BY_KEY, COLUMNS, CONTROLS, NOT_EDITING, ONE_VALUE, RANKED_BY, Column
from eval.leaderboard.entries import Entry, LeftOut, TableKey, collect
from eval.statistics.comparison import Comparison, compare
from eval.statistics.paired import MIN_FACTS, harmonic_mean, holm

ALPHA = 0.05


@dataclass(frozen=True)
class Cell:
    """One figure.

    Attributes:
        value: the mean after the edits, or what there is one of.
        before: the same before them; None where it has no meaning.
        low: of the 95 % interval; None where there is none.
        high: its other end.
        n: the number of facts (times seeds) that it is of.
        mark: "best"; "tied", if the test against the best is not significant; else empty.
    """

    value: float
    before: float | None
    low: float | None
    high: float | None
    n: int
    mark: Literal["best", "tied", ""] = ""


@dataclass(frozen=True)
class Test:
    """A paired test between two rows of a table.

    Attributes:
        metric: the column.
        left: label of the one row.
        right: of the other.
        comparison: how they differ.
        p_holm: the p-value, corrected for all tests of the table.
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
        entry: what it is made of; None for a control that has no run.
        cells: by column; one that could not be computed is absent.
        n_facts: the facts that its figures are of.
        n_own: all the facts it was run on.
        compared: whether it is on the table's common facts, and tested.
        rank: one more than the number of rows that are significantly better; None where there is no ranking.
        n_failed: edits that failed among its cases.
    """

    label: str
    control: str
    entry: Entry | None
    cells: Mapping[str, Cell]
    n_facts: int = 0
    n_own: int = 0
    compared: bool = False
    rank: int | None = None
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
    """

    key: TableKey
    rows: tuple[Row, ...]
    common: int
    ranked_by: str
    tests: tuple[Test, ...]
    notes: tuple[str, ...]

    @property
    def columns(self) -> list[Column]:
        """The columns that at least one row has."""
        return [column for column in COLUMNS if any(column.key in row.cells for row in self.rows)]

    @property
    def title(self) -> str:
        """Model, data set and mode."""
        return f"{self.key.model} · {self.key.data} · {self.key.mode}"


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


def leaderboard(runs: Iterable[StoredRun], min_facts: int = MIN_FACTS) -> Leaderboard:
    """The tables of the finished runs.

    Args:
        runs: of the store; what is not finished or damaged is named and left out.
        min_facts: with fewer common facts than that no ranking is given.
    """
    tables, left_out = collect(runs)
    modes = ("single", "batch", "sequential")
    keys = sorted(
        tables, key=lambda key: (key.model, key.data, *(key.mode != mode for mode in modes), key.facts, key.measured)
    )
    boards = []
    for key in keys:
        twins = [other for other in keys if (other.model, other.data, other.mode) == (key.model, key.data, key.mode)]
        boards.append(board(key, tables[key], min_facts, twins))
    return Leaderboard(tuple(boards), tuple(left_out), min_facts)


def board(key: TableKey, entries: Sequence[Entry], min_facts: int, twins: Sequence[TableKey] = ()) -> Board:
    """One table.

    Args:
        key: what its rows share.
        entries: the rows' material.
        min_facts: see `leaderboard`.
        twins: the tables of the same model, data set and mode; the notes say in what they differ.
    """
    labels = _labels(entries)
    large = [entry for entry in entries if len(entry.facts) >= min_facts]
    common = set.intersection(*(entry.facts for entry in large)) if large else set()
    if ranked := len(common) >= min_facts:
        compared = [entry for entry in entries if entry in large]
    else:
        compared = []
    rows = []
    for entry, label in zip(entries, labels, strict=True):
        mine = entry in compared
        cases = {unit: case for unit, case in entry.cases.items() if not mine or unit[0] in common}
        cells = _cells(entry, list(cases.values()), key.mode)
        control = CONTROLS.get(entry.editor, "")
        failed = sum(bool(case.error) for case in cases.values())
        n_facts = len({fact for fact, _ in cases})
        rows.append(Row(label, control, entry, cells, n_facts, len(entry.facts), mine, None, failed))
    ranked_by = ""
    tests: list[Test] = []
    if ranked:
        ranked_by = next((name for name in RANKED_BY if sum(name in row.cells for row in rows if row.compared)), "")
        tests = _tests(rows, common, key.mode, ranked_by)
        rows = [_marked(row, rows, tests, key.mode, ranked_by) for row in rows]
    missing = [name for name in CONTROLS if all(entry.editor != name for entry in entries)]
    rows += [Row(name, CONTROLS[name], None, {}) for name in missing]
    rows.sort(key=lambda row: _order(row, ranked_by))
    notes = _notes(key, rows, len(common), min_facts, ranked, ranked_by, twins)
    return Board(key, tuple(rows), len(common) if ranked else 0, ranked_by, tuple(tests), tuple(notes))


# -- figures


def _cells(entry: Entry, cases: list[Case], mode: str) -> dict[str, Cell]:
    single = ONE_VALUE.get(mode, frozenset())
    cells: dict[str, Cell] = {}
    for name, figures in Evaluation(tuple(cases)).metrics.items():
        value, before, n = figures["after"], figures["before"], figures["n"]
        if name in BY_KEY and value is not None and n is not None:
            low, high = (None, None) if name in single else (figures["low"], figures["high"])
            cells[name] = Cell(float(value), before, low, high, int(n))
    if not {"preservation", "perplexity_drift"} <= set(cells):
        cells.pop("score", None)  # it can reward a wrecked model: not without what would tell
    timed = [case for case in cases if case.seconds is not None]
    if timed:
        seconds = [float(case.seconds or 0.0) for case in timed]
        bounds = None if "seconds_per_edit" in single else interval([seconds], [case.fact.subject for case in timed])
        low, high = bounds or (None, None)
        cells["seconds_per_edit"] = Cell(sum(seconds) / len(seconds), None, low, high, len(timed))
    memory = [run.summary["peak_memory_mb"] for run in entry.runs if run.summary.get("peak_memory_mb") is not None]
    if memory:
        cells["peak_memory_mb"] = Cell(max(memory), None, None, None, len(memory))
    return cells


# -- tests


def _tests(rows: Sequence[Row], common: set[str], mode: str, ranked_by: str) -> list[Test]:
    """Each row against the best one in every column, and all pairs in the column that ranks; corrected together."""
    found: list[tuple[str, Row, Row, Comparison]] = []
    for column in COLUMNS:
        candidates = _candidates(rows, column, mode)
        if len(candidates) < 2:
            continue
        best = _best(candidates, column)
        pairs = [(best, row) for row in candidates if row is not best]
        if column.key == ranked_by:
            pairs += [
                (left, right)
                for place, left in enumerate(candidates)
                for right in candidates[place + 1 :]
                if best is not left and best is not right
            ]
        for left, right in pairs:
            comparison = _compared(left, right, column, common)
            if comparison is not None:
                found.append((column.key, left, right, comparison))
    corrected = holm([comparison.p for _, _, _, comparison in found])
    return [
        Test(metric, left.label, right.label, comparison, p)
        for (metric, left, right, comparison), p in zip(found, corrected, strict=True)
    ]


def _candidates(rows: Sequence[Row], column: Column, mode: str) -> list[Row]:
    """The rows that are tested in a column."""
    if column.key == "peak_memory_mb" or column.key in ONE_VALUE.get(mode, frozenset()):
        return []  # one value a run
    return [
        row
        for row in rows
        if row.compared
        and row.entry is not None
        and row.entry.editor not in NOT_EDITING
        and column.key in row.cells
        # Where nothing was edited nothing is harmed; and a mean without the worst edits is better than they were.
        and not all(case.error for case in row.entry.cases.values())
        and not any(_lacks(case, column.key) for case in row.entry.cases.values())
    ]


def _lacks(case: Case, key: str) -> bool:
    """Whether an edit left the model without the number that its figure would be."""
    return case.error.startswith(NOT_FINITE) and _value(case, key) is None


def _best(candidates: Sequence[Row], column: Column) -> Row:
    sign = 1 if column.better == "high" else -1
    return max(candidates, key=lambda row: sign * row.cells[column.key].value)


def _compared(left: Row, right: Row, column: Column, common: set[str]) -> Comparison | None:
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
            if fact in common and value is not None and (not seeds or seed in seeds):
                values.setdefault(unit, []).append(value)
                subjects[unit] = case.fact.subject
        sides.append(
            {
                unit: tuple(sum(parts) / len(found) for parts in zip(*found, strict=True))
                for unit, found in values.items()
            }
        )
    return compare(sides[0], sides[1], subjects, harmonic_mean if column.key == "score" else None)


def _value(case: Case, key: str) -> tuple[float, ...] | None:
    if key == "seconds_per_edit":
        return None if case.seconds is None else (case.seconds,)
    names = SCORE_PARTS if key == "score" else (key,)
    values = [case.after.values.get(name) for name in names]
    return None if None in values else tuple(float(value) for value in values if value is not None)


def _marked(row: Row, rows: Sequence[Row], tests: Sequence[Test], mode: str, ranked_by: str) -> Row:
    """The row with its marks and its rank."""
    cells = dict(row.cells)
    for name, cell in row.cells.items():
        column = BY_KEY[name]
        candidates = _candidates(rows, column, mode)
        if len(candidates) < 2 or row not in candidates:
            continue
        best = _best(candidates, column).label
        test = next((t for t in tests if t.metric == name and {t.left, t.right} == {best, row.label}), None)
        mark: Literal["best", "tied", ""] = ""
        if row.label == best:
            mark = "best"
        elif test is not None and test.p_holm >= ALPHA:
            mark = "tied"
        cells[name] = Cell(cell.value, cell.before, cell.low, cell.high, cell.n, mark)
    rank = None
    if ranked_by and row in _candidates(rows, BY_KEY[ranked_by], mode):
        sign = 1 if BY_KEY[ranked_by].better == "high" else -1
        better = 0
        for test in tests:
            if test.metric == ranked_by and row.label in (test.left, test.right) and test.p_holm < ALPHA:
                gain = sign * test.comparison.difference * (1 if test.left == row.label else -1)
                better += gain < 0
        rank = better + 1
    return Row(row.label, row.control, row.entry, cells, row.n_facts, row.n_own, row.compared, rank, row.n_failed)


def _order(row: Row, ranked_by: str) -> tuple[bool, bool, float, str]:
    """By the ranking figure, best first; by name where there is no ranking; what was not compared after it."""
    cell = row.cells.get(ranked_by) if row.compared else None
    sign = -1 if not ranked_by or BY_KEY[ranked_by].better == "high" else 1
    return row.entry is None, bool(ranked_by) and cell is None, sign * cell.value if cell else 0.0, row.label


# -- words


def _labels(entries: Sequence[Entry]) -> list[str]:
    """The editors' names; variants of one editor with the settings in which they differ."""
    labels = []
    for entry in entries:
        variants = [other for other in entries if other.editor == entry.editor]
        names = sorted({name for other in variants for name in other.settings})
        differing = [name for name in names if len({_told(v.settings, name) for v in variants}) > 1]
        parts = [f"{name.removeprefix('editor.')}={_plain(entry.settings, name)}" for name in differing]
        if any(other.submitted != entry.submitted for other in variants) and entry.submitted:
            parts.append("submitted")
        labels.append(f"{entry.editor} ({', '.join(parts)})" if parts else entry.editor)
    # A row is known by its label: no two may be alike (a text that reads like a number).
    alike = {label for label in labels if labels.count(label) > 1}
    return [
        f"{label} [{entry.runs[0].id[:8]}]" if label in alike else label
        for label, entry in zip(labels, entries, strict=True)
    ]


def _told(settings: Mapping[str, Any], name: str) -> str | None:
    return json.dumps(settings[name]) if name in settings else None


def _plain(settings: Mapping[str, Any], name: str) -> str:
    if name not in settings:
        return "unset"  # an option that is younger than the run
    value = settings[name]
    return value if isinstance(value, str) else json.dumps(value)


def _notes(
    key: TableKey,
    rows: Sequence[Row],
    common: int,
    min_facts: int,
    ranked: bool,
    ranked_by: str,
    twins: Sequence[TableKey],
) -> list[str]:
    notes = []
    if ranked:
        notes.append(f"Compared on the {common} facts that the rows have in common.")
        if ranked_by:
            notes.append(
                f"Rank: one more than the number of rows that are significantly better in {BY_KEY[ranked_by].title}."
            )
    else:
        notes.append(f"No ranking: the rows have fewer than {min_facts} facts in common. Each shows its own facts.")
    for row in rows:
        if row.entry is None:
            notes.append(f"The control {row.label} ({row.control}) has no run in the store.")
        elif ranked and not row.compared:
            notes.append(f"{row.label}: {row.n_own} facts are too few to be compared; the figures are of these.")
        elif row.compared and row.n_own > row.n_facts:
            notes.append(f"{row.label} was run on {row.n_own} facts; {row.n_facts} of them are shown.")
        if row.n_failed:
            notes.append(f"{row.label}: {row.n_failed} edits failed and count as failed.")
        cases = list(row.entry.cases.values()) if row.entry is not None else []
        lacking = [column for column in COLUMNS if any(_lacks(case, column.key) for case in cases)]
        if titles := [column.title for column in lacking if column.key in row.cells]:
            notes.append(
                f"{row.label}: some edits left the model without numbers; the figures for {', '.join(titles)} are of "
                "the others, and are not compared."
            )
    if key.mode == "sequential":
        notes.append("Every figure is of the model after the last edit; seconds are of each edit.")
    if key.mode != "single":
        notes.append(
            "One edit or sequence a seed: the intervals are over the facts under it, not over edits made anew, and "
            "what has one value for all facts (perplexity drift) has none."
        )
    for name in ("measured", "facts"):
        if len({getattr(twin, name) for twin in twins}) > 1:
            value = getattr(key, name)
            notes.append(
                f"Measured with {value}." if name == "measured" else f"The facts are those of set {value[:12]}."
            )
    codes = {str(run.identity.get("code", "unknown")) for row in rows if row.entry for run in row.entry.runs}
    if len(codes) > 1:
        notes.append(f"The runs are of {len(codes)} versions of the code ({', '.join(sorted(codes))}).")
    return notes
