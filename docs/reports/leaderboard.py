"""docs/leaderboard.md, .html and .csv: every editor on CounterFact and zsRE, on SmolLM2.

    python docs/reports/leaderboard.py collect [--facts 100] [--minutes 8] [--store outputs/leaderboard]
    python docs/reports/leaderboard.py page

or `make leaderboard`, which does both. Each run is an ordinary run of run.py in the store. What is finished is not done
again, and what was cut short goes on. So the first command can be stopped and given again (with --minutes it stops by
itself). It writes the data when all runs are done; with --write, of what there is. Whole tables of the data file (a
model, a data set and a mode) that the store has no run of are kept; --anew forgets them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pages import ROOT, Collected, Made, Report, keeping_option, kept
from runs import LIKE, how_made, relative, run
from words import provenance, rendered

from corrigenda.runs.store import Store
from corrigenda.system.files import write_text
from editing import EDITORS
from editing.registry import declaration
from eval.leaderboard import leaderboard
from eval.leaderboard.page import markdown, write_view
from eval.leaderboard.table import MODES
from eval.leaderboard.views import CasesView, cases_view, leaderboard_view
from eval.records import DEFINITIONS

NAME = "leaderboard"
SCRIPT = "leaderboard.py"

DATA = {"counterfact": "counterfact.json", "zsre": "zsre.json"}

SETTINGS = ("eval.max_new_tokens=20",)
"""Of all runs: the answers are names, so they are short."""
OF_MODE = {"single": ("eval.perplexity_sample=2",)}
"""Of the runs of a mode: the drift is measured after every edit, so each time of few windows, in turn."""

NO_BOUND = "its bound is that of the literature, which was chosen for another model"
SAME_FIRST = "without earlier edits it is memit"


@dataclass(frozen=True)
class Entry:
    """An editor in the table.

    Attributes:
        editor: its configuration, as `editor=` takes it.
        settings: what differs from that.
        on_request: by mode why it is run there only if it is asked for (--only).
    """

    editor: str
    settings: tuple[str, ...] = ()
    on_request: Mapping[str, str] | None = None

    def left_out(self, mode: str) -> str:
        """Why it is not run in a mode; empty where it is."""
        return (self.on_request or {}).get(mode, "")


# The controls first: they take least time, and all others are compared with them.
TABLE: tuple[Entry, ...] = (
    Entry("none"),
    Entry("in_context", on_request={"batch": "all statements before every prompt make it very long"}),
    Entry("finetune"),
    Entry("crispedit"),
    Entry("ft_l", on_request={"single": NO_BOUND, "batch": NO_BOUND}),
    Entry("rome"),
    Entry("random"),
    Entry("memit"),
    Entry("memit_plain", on_request={"single": SAME_FIRST, "batch": SAME_FIRST}),
    Entry("memit_blue"),
    Entry("alphaedit"),
    Entry("alphaedit_blue"),
    Entry("emmet"),
    Entry("pmet"),
    Entry("ultraedit"),
    Entry("grace"),
    Entry("grace_wide"),
    Entry("wise_whitened"),
    Entry("wise_paper"),
    Entry(
        "update_neurons",
        on_request={"batch": "the neurons are located fact by fact, as in single mode"},
    ),
)
"""The editors in the table: one more is one more line."""

ASKED, FOLLOWS, LEAVES = "free_generation_strict", "paraphrase_free_generation_strict", "preservation"
Table = tuple[Mapping[str, Any], Any]
"""A table of the page, and its cases."""


# -- the first step


def options(parser: argparse.ArgumentParser) -> None:
    """The first step's options."""
    parser.add_argument("--facts", type=int, default=100, help="facts of each data set")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the data files")
    parser.add_argument("--store", type=Path, default=ROOT / "outputs" / "leaderboard")
    parser.add_argument("--modes", default="single,batch", help="of single, batch")
    parser.add_argument("--sets", default=",".join(DATA), help="of the data sets")
    parser.add_argument("--only", default="", help="configurations, e.g. rome,finetune; all by default")
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long, to go on another time")
    parser.add_argument("--write", action="store_true", help="run nothing, write what there is")
    keeping_option(parser)
    parser.add_argument("overrides", nargs="*", help="of the configuration, for all runs, e.g. eval.max_new_tokens=20")


def collect(arguments: argparse.Namespace) -> Collected | None:
    """All runs of the table; None where the time was up before all was done."""
    if missing := not_in_table():
        print(f"not in TABLE, and their declarations give no reason (unranked): {', '.join(missing)}")
    store = Store(arguments.store)
    deadline = time.monotonic() + 60 * arguments.minutes if arguments.minutes else None
    if not arguments.write and not all(run(job, store, deadline) for job in jobs(arguments)):
        return None
    found = leaderboard(store.runs())
    view = leaderboard_view(found, arguments.docs)
    runs = {
        f"{board.key.data} {board.key.mode} {row.label} seed {stored.config.get('seed', 0)}": how_made(stored)
        for board in found.boards
        for row in board.rows
        for stored in (row.entry.runs if row.entry else ())
    }
    tables = list(zip(view["boards"], cases_view(found), strict=True))
    earlier = kept(NAME, arguments)
    if earlier:
        tables, runs = with_kept(tables, runs, earlier, read_cases(cases_path(arguments.docs)))
    view["boards"] = [board for board, _ in tables]
    write_cases([cases for _, cases in tables], arguments.docs)
    return Collected({"view": view}, runs, earlier.earlier if earlier else ())


def with_kept(
    tables: Sequence[Table], runs: Mapping[str, Made], earlier: Collected, cases: CasesView
) -> tuple[list[Table], dict[str, Made]]:
    """The tables of the store, and of the data file those that the store has no run of.

    Args:
        tables: of the store.
        runs: how their runs were made.
        earlier: the data file.
        cases: of its tables.

    Returns:
        the tables, as they are ordered; and how the runs of all were made.
    """
    there = {place(board) for board, _ in tables}
    others = [
        (board, own)
        for board, own in zip(earlier.figures["view"]["boards"], cases, strict=True)
        if place(board) not in there
    ]
    names = tuple(f"{board['data']} {board['mode']} " for board, _ in others)
    theirs = {run: how for run, how in earlier.runs.items() if run.startswith(names)}
    return sorted([*tables, *others], key=lambda table: place(table[0])), {**runs, **theirs}


def place(board: Mapping[str, Any]) -> tuple[str, str, int]:
    """What the runs of a table are of: the model, the data set, and the mode, as the tables are ordered."""
    return str(board["model"]), str(board["data"]), MODES.index(board["mode"])


def not_in_table() -> list[str]:
    """The editors that are in the table by no configuration, and for which no reason is given."""
    table = {EDITORS.base(entry.editor) for entry in TABLE}
    return [name for name in EDITORS.declared if name not in table and not declaration(EDITORS[name]).unranked]


def jobs(arguments: argparse.Namespace) -> list[list[str]]:
    """The overrides of every run, in the order in which they are done."""
    only = [name for name in arguments.only.split(",") if name]
    return [
        [
            *(f"mode={mode}", f"data={data}", f"data.path={relative(arguments.data / file)}"),
            *(f"data.limit={arguments.facts}", "data.on_error=skip", f"editor={entry.editor}", *entry.settings),
            *(f"store={relative(arguments.store)}", f"before={relative(arguments.store / 'before')}"),
            f"save_edits={str(entry.editor == LIKE).lower()}",
            *SETTINGS,
            *OF_MODE.get(mode, ()),
            *arguments.overrides,
        ]
        for mode in arguments.modes.split(",")
        for entry in TABLE
        if (entry.editor in only if only else not entry.left_out(mode))
        for data, file in DATA.items()
        if data in arguments.sets.split(",")
    ]


def cases_path(docs: Path) -> Path:
    """Where the cases lie that the page shows in detail: prompts and answers, which are large."""
    return docs / "data" / f"{NAME}-cases.json.gz"


def read_cases(path: Path) -> CasesView:
    """The cases that `write_cases` wrote.

    Raises:
        SystemExit: there is no such file.
    """
    if not path.is_file():
        raise SystemExit(f"{path}: the cases are missing; make them with the step 'collect'")
    found: CasesView = json.loads(gzip.decompress(path.read_bytes()))
    return found


def write_cases(cases: CasesView, docs: Path) -> None:
    """Writes the cases; the same cases give the same bytes."""
    path = cases_path(docs)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(cases, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


# -- the second step


def page(data: Mapping[str, Any], docs: Path) -> list[Path]:
    """The three files; the cases are shown where they lie beside the data."""
    made_on = max((entry["begun"] for entries in data["runs"].values() for entry in entries), default="")
    path = next((path for path in (cases_path(docs), cases_path(ROOT / "docs")) if path.is_file()), cases_path(docs))
    cases = read_cases(path)
    boards = [told_apart(board, own) for board, own in zip(data["figures"]["view"]["boards"], cases, strict=True)]
    found = rendered(NAME, {"part": "finding", **finding(boards)}).strip()
    seconds = rendered(NAME, {"part": "seconds"}).strip()
    view = data["figures"]["view"] | {"boards": boards, "made": made_on.replace("T", " ")}
    paths = write_view(view | {"about": f"{plain(found)} {seconds}"}, cases, docs, NAME)
    shown = {"part": "page", "tables": markdown(view | {"about": found}).rstrip(), **not_run(boards)}
    write_text(paths[0], rendered(NAME, shown | {"provenance": provenance(NAME, data, SCRIPT)}))
    return paths


def told_apart(board: Mapping[str, Any], cases: Sequence[Sequence[Mapping[str, Any]]]) -> Mapping[str, Any]:
    """A table without preservation, where the unedited model's other answers are blank.

    Two blank answers are the same whatever was done to the model. An answer ends at a line break, so one that begins
    with it is blank.
    """
    kinds = ("neighbourhood", "locality")
    probes = [one for case in cases[0] for one in case["probes"]] if cases else []
    before = [answer for kind, _, answer, _, _ in probes if kind in kinds and answer is not None]
    blank = sum(not answer.partition("\n")[0].strip() for answer in before)
    if 2 * blank <= len(before):
        return board
    note = rendered(NAME, {"part": "blank", "blank": blank, "n": len(before)}).strip()
    cells = [{key: cell for key, cell in row["cells"].items() if key != LEAVES} for row in board["rows"]]
    return {
        **board,
        "columns": [column for column in board["columns"] if column["key"] != LEAVES],
        "rows": [{**row, "cells": own} for row, own in zip(board["rows"], cells, strict=True)],
        "tests": [test for test in board["tests"] if test["metric"] != LEAVES],
        "notes": [*board["notes"], note],
    }


def finding(boards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the tables say together: of the largest edit, else of the first table; without rows where nothing does."""
    board = next((one for one in boards if (one["data"], one["mode"]) == ("counterfact", "batch")), boards[0])
    known = [row for row in board["rows"] if {ASKED, FOLLOWS, LEAVES} <= row["cells"].keys()]
    tested = [row for row in known if row["behind"] is not None]

    def spans(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The shares of some rows, from the least to the most."""
        values = {key: [row["cells"][key]["value"] for row in rows] for key in (ASKED, FOLLOWS, LEAVES)}
        return {
            "labels": [row["label"] for row in rows],
            **{key: [min(found), max(found)] for key, found in values.items() if found},
        }

    return {
        "board": board,
        "first": spans([row for row in tested if not row["behind"]]),
        "most": spans(sorted(tested, key=lambda row: row["cells"][LEAVES]["value"], reverse=True)[:1]),
        "random": spans([row for row in known if row["editor"] == "random"]),
        "half": any(min(row["cells"][key]["value"] for key in (LEAVES, FOLLOWS)) >= 0.5 for row in tested),
    }


def not_run(boards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the tables are of; and what is in none, by reason."""
    there = {(board["mode"], row["editor"], board["data"]) for board in boards for row in board["rows"] if row["runs"]}
    sets = [data for data in DATA if any(data == of for _, _, of in there)]
    reasons: dict[tuple[str, str], list[str]] = {}  # by reason and place
    for mode in MODES:
        for entry in TABLE if any(mode == of for of, _, _ in there) else ():
            if missing := [data for data in sets if (mode, entry.editor, data) not in there]:
                where = mode if missing == sets else f"{mode}, {', '.join(missing)}"
                reasons.setdefault((entry.left_out(mode) or "not yet", where), []).append(entry.editor)
    for editor in EDITORS.declared:
        if why := declaration(EDITORS[editor]).unranked:
            reasons.setdefault((why, "all"), []).append(editor)
    return {
        "settings": SETTINGS,
        "of_mode": OF_MODE,
        "definitions": sorted({str(json.loads(board["measured"])["definitions"]) for board in boards}),
        "now": DEFINITIONS,
        "reasons": sorted(reasons.items()),
    }


def plain(text: str) -> str:
    """Text without Markdown: what stands at the head of the HTML page, too."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace("*", "")


REPORT = Report(NAME, SCRIPT, (__doc__ or "").splitlines()[0], options, collect, page)

if __name__ == "__main__":
    REPORT.main()
