"""A leaderboard as plain values: what JSON, CSV and the page are written from."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from corrigenda.runs.ids import essential
from corrigenda.runs.store import StoredRun
from eval.leaderboard.boards import Board, Leaderboard, Row
from eval.leaderboard.case_view import case_view
from eval.leaderboard.columns import Column, columns
from eval.leaderboard.entries import flat


def leaderboard_view(found: Leaderboard, folder: Path) -> dict[str, Any]:
    """All of it except for the cases; paths of runs are relative to the folder that it is written to."""
    return {
        "min_facts": found.min_facts,
        "boards": [_board_view(board, folder) for board in found.boards],
        "left_out": [{"path": _relative(run.path, folder), "why": run.why} for run in found.left_out],
    }


def _board_view(board: Board, folder: Path) -> dict[str, Any]:
    return {
        **dataclasses.asdict(board.key),
        "title": board.title,
        "common_facts": board.common,
        "ranked_by": board.ranked_by or None,
        "heads": list(board.heads),
        "notes": list(board.notes),
        "columns": [dataclasses.asdict(column) for column in board.columns],
        "rows": [_row_view(row, folder) for row in board.rows],
        "tests": [
            {
                "metric": test.metric,
                "left": test.left,
                "right": test.right,
                **dataclasses.asdict(test.comparison),
                "p_holm": test.p_holm,
                "facts_needed": test.comparison.facts_needed if columns()[test.metric].written.is_share else None,
            }
            for test in board.tests
        ],
    }


def _row_view(row: Row, folder: Path) -> dict[str, Any]:
    entry = row.entry
    return {
        "label": row.label,
        "control": row.control,
        "editor": entry.editor if entry else None,
        "submitted": bool(entry and entry.submitted),
        "behind": None if row.behind is None else list(row.behind),
        "compared": row.compared,
        "n_facts": row.n_facts,
        "n_own_facts": row.n_own,
        "n_failed": row.n_failed,
        "seeds": entry.seeds if entry else [],
        "cells": {name: dataclasses.asdict(cell) for name, cell in row.cells.items()},
        "runs": [_run_view(run, folder) for run in entry.runs] if entry else [],
    }


def _run_view(run: StoredRun, folder: Path) -> dict[str, Any]:
    config = essential(run.config) | {key: run.config[key] for key in ("model", "data") if key in run.config}
    curve = [{"t": point["t"], "metrics": _point_view(point)} for point in run.summary.get("curve", [])]
    return {
        "id": run.id,
        "path": _relative(run.path, folder),
        "when": run.when.isoformat(timespec="seconds"),
        "seed": run.config.get("seed", 0),
        "code": run.identity.get("code"),
        "config": flat(config),
        "curve": curve,
        "pictures": [_relative(path, folder) for path in run.pictures],
    }


def _point_view(point: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """The columns' metrics at a point of the curve, value and interval; those of prompts nobody edits as ``fixed.``."""
    known = columns()
    found = {name: value for name, value in point["metrics"].items() if name in known}
    found |= {f"fixed.{name}": value for name, value in point.get("fixed", {}).items() if name in known}
    return {name: [value["after"], value["low"], value["high"]] for name, value in found.items()}


CasesView = list[list[list[dict[str, Any]]]]
"""The cases of each row of each table, as `case_views` gives them."""


def cases_view(found: Leaderboard) -> CasesView:
    """What was asked in each case of all tables: what the page shows of a row in detail."""
    return [[case_views(row) for row in board.rows] for board in found.boards]


def case_views(row: Row) -> list[dict[str, Any]]:
    """What was asked in each case of a row, and what came before and after; read from the runs' records."""
    views: list[dict[str, Any]] = []
    for run in row.entry.runs if row.entry else ():
        own = {record["id"]: record for record in run.cases()}
        records = run.cases("retention") if run.summary["mode"] == "sequential" else list(own.values())
        seed = run.config.get("seed", 0)
        views += [case_view(record, own[record["id"]].get("seconds"), seed) for record in records]
    return views


def with_interval(found: Mapping[str, Any] | None, column: Column) -> str:
    """A figure with its interval."""
    if found is None:
        return "–"
    text = figure_text(found["value"], column)
    if found["low"] is None or found["high"] is None:
        return text
    return f"{text} [{figure_text(found['low'], column)}, {figure_text(found['high'], column)}]"


def from_best(board: Mapping[str, Any], row: Mapping[str, Any], key: str) -> dict[str, Any] | None:
    """The test of a row against the best of a column, as that row less the best one; None where there is none."""
    best = next((one["label"] for one in board["rows"] if one["cells"].get(key, {}).get("mark") == "best"), None)
    for test in board["tests"]:
        if test["metric"] == key and best != row["label"] and {test["left"], test["right"]} == {best, row["label"]}:
            sign = 1 if test["left"] == row["label"] else -1
            ends = [None if test[end] is None else sign * test[end] for end in ("low", "high")]
            low, high = ends if sign == 1 else reversed(ends)
            return {"value": sign * test["difference"], "low": low, "high": high, "n": test["n"], "p": test["p_holm"]}
    return None


def figure_text(value: float, column: Column) -> str:
    """A figure in the column's unit."""
    text = column.written.text(value, column.written.digits_on_leaderboard)
    return text.removeprefix("-") if float(text) == 0 else text  # no "-0.000"


def _relative(path: Path, folder: Path) -> str:
    found = Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
    return f"./{found}" if ":" in found.partition("/")[0] else found  # as a link it would be an address
