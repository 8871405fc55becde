"""What docs/leaderboard.md says of its tables: the findings, what stays, what was not run."""

import json
import re
from collections.abc import Sequence
from typing import Any

from leaderboard_tables import PARTS, TABLE, left_out
from options import Data
from words import rendered, yardstick

from editing import EDITORS
from editing.registry import declaration
from eval.records import DEFINITIONS

NAME = "leaderboard"
ASKED, FOLLOWS = "free_generation_strict", "paraphrase_free_generation_strict"
LEAVES, SAYS = "preservation", "answer_kept"
OF_ANSWERS = (LEAVES, SAYS, "first_token_kept", "bleed")
"""What says nothing where the unedited model's other answers are blank."""
Board = Data


def prepared(board: Board, cases: Sequence[Sequence[Data]]) -> Board:
    """A table as the page shows it: with its yardsticks, and without what says nothing."""
    for part in PARTS:
        if part.of == of(board):
            board = {**board, "heads": [plain(yardstick(part.yardstick, floor=not blank_of(cases)[0]))]}
    board = told_apart(board, cases)
    there = {column["key"] for column in board["columns"]}
    if LEAVES not in there or SAYS in there:
        return board
    # It was made before there were metrics of what answers say.
    return {**board, "notes": [*board["notes"], rendered(NAME, {"part": "older"}).strip()]}


def of(board: Board) -> tuple[str, str, str]:
    """What a table is of: the model, the data and the mode."""
    return board["model"], board["data"], board["mode"]


def blank_of(cases: Sequence[Sequence[Data]]) -> tuple[bool, int, int]:
    """Whether most of the unedited model's other answers are blank; how many are, and of how many."""
    # Two blank answers are the same whatever was done to the model. An answer ends at a line break, so one that begins
    # with it is blank.
    kinds = ("neighbourhood", "locality")
    probes = [one for case in cases[0] for one in case["probes"]] if cases else []
    before = [answer for kind, _, answer, _, _ in probes if kind in kinds and answer is not None]
    blank = sum(not answer.partition("\n")[0].strip() for answer in before)
    return 2 * blank > len(before), blank, len(before)


def told_apart(board: Board, cases: Sequence[Sequence[Data]]) -> Board:
    """A table without what says nothing where the unedited model's other answers are blank."""
    most, blank, n = blank_of(cases)
    if not most:
        return board
    note = rendered(NAME, {"part": "blank", "blank": blank, "n": n}).strip()
    cells = [{key: cell for key, cell in row["cells"].items() if key not in OF_ANSWERS} for row in board["rows"]]
    return {
        **board,
        "columns": [column for column in board["columns"] if column["key"] not in OF_ANSWERS],
        "rows": [{**row, "cells": kept} for row, kept in zip(board["rows"], cells, strict=True)],
        "tests": [test for test in board["tests"] if test["metric"] not in OF_ANSWERS],
        "notes": [*board["notes"], note],
    }


def findings(boards: Sequence[Board]) -> list[dict[str, Any]]:
    """What the tables say together, a model each: of its largest edit, else of its first table."""
    found: dict[str, Board] = {}
    for board in boards:
        if board["model"] not in found or of(board)[1:] == ("counterfact", "batch"):
            found[board["model"]] = board
    return [*map(finding, found.values())]


def finding(board: Board) -> dict[str, Any]:
    """What a table says; without rows where it says nothing."""
    known = [row for row in board["rows"] if {ASKED, FOLLOWS, LEAVES} <= row["cells"].keys()]
    tested = [row for row in known if row["behind"] is not None]

    def spans(rows: Sequence[Data]) -> dict[str, Any]:
        """The shares of some rows, from the least to the most."""
        found: dict[str, Any] = {"labels": [row["label"] for row in rows]}
        for key in (ASKED, FOLLOWS, LEAVES, SAYS):
            if values := [row["cells"][key]["value"] for row in rows if key in row["cells"]]:
                found[key] = [min(values), max(values)]
        return found

    most = max((row["cells"][LEAVES]["value"] for row in tested), default=None)
    return {
        "board": board,
        "first": spans([row for row in tested if not row["behind"]]),
        "most": spans([row for row in tested if row["cells"][LEAVES]["value"] == most]),
        "random": spans([row for row in known if row["editor"] == "random"]),
        "half": any(min(row["cells"][key]["value"] for key in (LEAVES, FOLLOWS)) >= 0.5 for row in tested),
    }


def not_run(boards: Sequence[Board]) -> dict[str, Any]:
    """What the tables are of; and what is in none, by reason."""
    shown = {of(board): board for board in boards}
    parts = [part for part in PARTS if part.of in shown]
    there = {(*key, row["editor"]) for key, board in shown.items() for row in board["rows"] if row["runs"]}
    reasons: dict[tuple[str, str], list[str]] = {}  # by reason and place

    def say(editor: str, mode: str, where: str) -> None:
        reasons.setdefault((left_out(editor, mode) or "not yet", where), []).append(editor)

    for model, mode in dict.fromkeys((part.model, part.mode) for part in parts):
        mine = [part for part in parts if (part.model, part.mode) == (model, mode)]
        for editor in TABLE:
            asked = [part for part in mine if editor in part.editors]
            if missing := [part.data for part in asked if (*part.of, editor) not in there]:
                some = "" if len(missing) == len(asked) else f", {', '.join(missing)}"
                say(editor, mode, f"{model}, {mode}{some}")
    for part in PARTS:
        for editor in () if part in parts else part.editors:
            say(editor, part.mode, f"{part.model}, {part.mode}, {part.data}")
    for editor in EDITORS.declared:
        if why := declaration(EDITORS[editor]).unranked:
            reasons.setdefault((why, "all"), []).append(editor)
    definitions: dict[int, set[str]] = {}
    for board in boards:
        definitions.setdefault(int(json.loads(board["measured"])["definitions"]), set()).add(board["model"])
    return {
        "parts": parts,
        "every": TABLE,
        "definitions": {number: sorted(models) for number, models in sorted(definitions.items())},
        "now": DEFINITIONS,
        "reasons": sorted(reasons.items()),
    }


def plain(text: str) -> str:
    """Text without Markdown: what stands at the head of the HTML page, too."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace("*", "")
