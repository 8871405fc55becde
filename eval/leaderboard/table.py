"""`leaderboard`: the tables, with intervals, paired tests and marks; from the records of cases alone."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from corrigenda.intervals import interval
from corrigenda.runs.store import StoredRun
from eval.evaluation import Case, Evaluation, over_windows
from eval.leaderboard.boards import Board, Cell, Leaderboard, Row, Test
from eval.leaderboard.columns import CONTROLS, columns, one_value
from eval.leaderboard.entries import LeaderboardEntry, TableKey, collect
from eval.leaderboard.marks import marked, order, tests_of
from eval.leaderboard.notes import heads_of, labels_of, notes_of
from eval.leaderboard.ranking import Ranking, ranking_of
from eval.metrics import METRICS
from eval.metrics.run_figures import MEMORY, SECONDS
from eval.statistics.paired import MIN_FACTS

MODES = ("single", "batch", "sequential")
"""In the order in which tables of one data set stand."""


def leaderboard(runs: Iterable[StoredRun], min_facts: int = MIN_FACTS) -> Leaderboard:
    """The tables of the finished runs.

    Args:
        runs: of the store; what is not finished or damaged is named and left out.
        min_facts: with fewer common facts than that no ranking is given.
    """
    tables, left_out = collect(runs)
    keys = sorted(tables, key=lambda key: (key.model, key.data, MODES.index(key.mode), key.facts, key.measured))
    boards = []
    for key in keys:
        twins = [other for other in keys if (other.model, other.data, other.mode) == (key.model, key.data, key.mode)]
        boards.append(board(key, tables[key], min_facts, twins))
    return Leaderboard(tuple(boards), tuple(left_out), min_facts)


def board(key: TableKey, entries: Sequence[LeaderboardEntry], min_facts: int, twins: Sequence[TableKey] = ()) -> Board:
    """One table; of its `twins`, of the same model, data set and mode, the notes say in what they differ."""
    labels = labels_of(entries)
    large = [entry for entry in entries if len(entry.facts) >= min_facts]
    common = set.intersection(*(entry.facts for entry in large)) if large else set()
    if ranked := len(common) >= min_facts:
        compared = [entry for entry in entries if entry in large]
    else:
        compared = []
    rows = []
    for entry, label in zip(entries, labels, strict=True):
        mine = entry in compared
        # Each fact counts as often as the others: seeds of a part of the facts are left out where one has them all.
        whole = [seed for seed in entry.seeds if all((fact, seed) in entry.cases for fact in common)] or entry.seeds
        cases = {
            (fact, seed): case
            for (fact, seed), case in entry.cases.items()
            if not mine or (fact in common and seed in whole)
        }
        shown = replace(entry, cases=cases)
        cells = _cells(entry, list(cases.values()), key.mode)
        control = CONTROLS.get(entry.editor, "")
        failed = sum(bool(case.error) for case in cases.values())
        rows.append(Row(label, control, shown, cells, len(shown.facts), len(entry.facts), mine, n_failed=failed))
    by = Ranking("", "")
    tests: list[Test] = []
    if ranked:
        by = ranking_of(key, entries, rows)
        tests = tests_of(rows, key.mode, by.key)
        rows = [marked(row, rows, tests, key.mode, by.key) for row in rows]
    missing = [name for name in CONTROLS if all(entry.editor != name for entry in entries)]
    rows += [Row(name, CONTROLS[name], None, {}) for name in missing]
    rows.sort(key=lambda row: order(row, by.key))
    notes = notes_of(key, rows, len(common), min_facts, ranked, by, tests, twins)
    return Board(key, tuple(rows), len(common) if ranked else 0, by.key, tuple(tests), tuple(notes), heads_of(rows))


def _cells(entry: LeaderboardEntry, cases: list[Case], mode: str) -> dict[str, Cell]:
    single, known = one_value(mode), columns()
    cells: dict[str, Cell] = {}
    for name, figures in Evaluation(tuple(cases)).metrics.items():
        value, before, n = figures["after"], figures["before"], figures["n"]
        if name in known and value is not None and n is not None:
            low, high = figures["low"], figures["high"]
            if name in single:
                low, high = over_windows(METRICS.named(name), cases) or (None, None)
            cells[name] = Cell(float(value), before, low, high, int(n))
    for name in list(cells):
        if not set(METRICS.named(name).shown_with) <= set(cells):
            del cells[name]
    timed = [case for case in cases if case.seconds is not None]
    if timed:
        seconds = [float(case.seconds or 0.0) for case in timed]
        bounds = None if SECONDS.key in single else interval([seconds], seconds)  # facts of one edit have one time
        low, high = bounds or (None, None)
        cells[SECONDS.key] = Cell(sum(seconds) / len(seconds), None, low, high, len(timed))
    memory = [run.summary[MEMORY.key] for run in entry.runs if run.summary.get(MEMORY.key) is not None]
    if memory:
        cells[MEMORY.key] = Cell(max(memory), None, None, None, len(memory))
    return cells
