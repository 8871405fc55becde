"""`write_leaderboard`: Markdown, CSV, JSON and one self-contained HTML page, all written from the same plain values."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from corrigenda.files import write_json, write_text
from corrigenda.names import model_title
from corrigenda.texts import in_spreadsheet, printable
from eval.leaderboard.boards import Cell, Leaderboard
from eval.leaderboard.columns import Column, axes
from eval.leaderboard.marks import ALPHA
from eval.leaderboard.views import CasesView, cases_view, cell_text, figure_text, leaderboard_view
from eval.metrics.unit import UNITS
from eval.templating import environment

EXPLAINED = (
    "After the edits, with 95 % bootstrap intervals that resample subjects. Best of a column in bold "
    "(none where all are equal); "
    f"≈ means that the paired test against the best is not significant (p ≥ {ALPHA}, Holm's correction over the "
    "table). "
    "The unedited model and the random update make no edit and are not marked. Shares are in %."
)

CSV_COLUMNS = (
    *("model", "data", "mode", "editor", "control", "rank", "n_facts"),
    *("metric", "before", "after", "low", "high", "n", "mark"),
)


def write_leaderboard(found: Leaderboard, folder: Path, name: str = "leaderboard", about: str = "") -> list[Path]:
    """Writes the leaderboard in all four formats.

    Args:
        found: what to write.
        folder: where; the links to runs and their pictures are relative to it.
        name: of the files, without suffix.
        about: how it was made (command, machine); put at the head.

    Returns:
        the files.

    Raises:
        ValueError: the name is that of another folder's file, or there is nothing to compare.
    """
    _path(folder, name, "md")
    if not found.boards:
        reasons = "; ".join(f"{run.path}: {run.why}" for run in found.left_out) or "there is none"
        raise ValueError(f"no finished run to compare ({reasons}): the leaderboard is not written")
    made = datetime.now().strftime("%Y-%m-%d %H:%M")
    view = leaderboard_view(found, folder) | {"about": about, "made": made}
    text, table, page = write_view(view, cases_view(found), folder, name)
    return [text, table, write_data(view, folder, name), page]


def write_view(view: Mapping[str, Any], cases: CasesView, folder: Path, name: str = "leaderboard") -> list[Path]:
    """Writes what people read (Markdown, CSV, the page) from plain values; the same values give the same files.

    Args:
        view: what `leaderboard_view` gives, and "about" and "made", how and when it was made.
        cases: what `cases_view` gives: the cases of each row of each table, which the page shows.
        folder: where.
        name: of the files, without suffix.

    Returns:
        the files.

    Raises:
        ValueError: the name is that of another folder's file.
    """
    paths = [_path(folder, name, suffix) for suffix in ("md", "csv", "html")]
    for path, text in zip(paths, (markdown(view), table_csv(view), html(view, cases)), strict=True):
        write_text(path, text)
    return paths


def write_data(view: Mapping[str, Any], folder: Path, name: str = "leaderboard") -> Path:
    """Writes the values as JSON.

    Raises:
        ValueError: the name is that of another folder's file.
    """
    path = _path(folder, name, "json")
    write_json(path, view)
    return path


def _path(folder: Path, name: str, suffix: str) -> Path:
    if name in ("", "..") or Path(name).name != name or "\\" in name:
        raise ValueError(f"job.file={name}: this is no plain name of a file; the folder is given by job.folder=")
    return folder / f"{name}.{suffix}"


def markdown(view: Mapping[str, Any]) -> str:
    """The tables in Markdown."""
    about = view.get("about", "")
    parts = ["# Leaderboard", *([about] if about else []), EXPLAINED]
    used: dict[str, Column] = {}
    for board in view["boards"]:
        shown = _columns(board)
        used |= {column.key: column for column in shown}
        head = ["rank", "editor", "n", *(f"{c.short} {'↑' if c.better == 'high' else '↓'}" for c in shown)]
        lines = [_line(head), _line(["---:", "---", "---:", *["---:"] * len(shown)])]
        for row in board["rows"]:
            cells = [_marked(row, column) for column in shown]
            number = str(row["n_facts"]) if row["editor"] else "no run"
            lines.append(_line([str(row["rank"] or ""), _escaped(_named(row)), number, *cells]))
        notes = "\n".join(f"- {_escaped(note)}" for note in board["notes"])
        parts += [f"## {_escaped(board['title'])}", "\n".join(lines), notes]
    units = [f"{c.short}: {c.title} ({c.unit})" for c in used.values()]
    parts += ["## Columns", "\n".join(f"- {_escaped(text)}" for text in units)]
    if view["left_out"]:
        listed = "\n".join(
            f"- `{printable(Path(run['path']).name)}`: {_escaped(run['why'])}" for run in view["left_out"]
        )
        parts += ["## Runs left out", listed]
    return "\n\n".join(parts) + "\n"


def table_csv(view: Mapping[str, Any]) -> str:
    """One line a row and metric, for spreadsheets and scripts."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for board in view["boards"]:
        for row in board["rows"]:
            about = [
                *(model_title(board["model"]), board["data"], board["mode"]),
                *(row["label"], row["control"], row["rank"], row["n_facts"]),
            ]
            for name, cell in row["cells"].items():
                figures = [cell[key] for key in ("before", "value", "low", "high", "n", "mark")]
                writer.writerow(map(in_spreadsheet, [*about, name, *figures]))
            if not row["cells"]:
                writer.writerow(map(in_spreadsheet, [*about, *[""] * 7]))
    return text.getvalue()


def html(view: Mapping[str, Any], cases: CasesView) -> str:
    """The page; it loads nothing, so that it works from the file system."""
    made = environment("eval.leaderboard")
    made.globals.update(cell_text=cell_text, figure_text=figure_text)
    return made.get_template("page.html.j2").render(
        boards=[board | {"columns": _columns(board)} for board in view["boards"]],
        view=view,
        about=view.get("about", ""),
        explained=EXPLAINED,
        made=view["made"],
        data=_embedded({"boards": view["boards"], **_declared()}),
        cases=[[_embedded(rows) for rows in board] for board in cases],
        counts=[[len(rows) for rows in board] for board in cases],
    )


def _columns(board: Mapping[str, Any]) -> list[Column]:
    return [Column(**column) for column in board["columns"]]


def _declared() -> dict[str, Any]:
    """What the page's script has to know of metrics: shares and their digits, and which metrics it shows first."""
    shares = {unit.symbol: {"factor": unit.factor, "digits": unit.digits} for unit in UNITS.values() if unit.is_share}
    return {"shares": shares, "axes": axes()}


def _embedded(value: Any) -> Markup:
    """JSON that may stand in a script element: nothing in it can end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['label']} (control: {row['control']})" if row["control"] else str(row["label"])


def _marked(row: Mapping[str, Any], column: Column) -> str:
    found = row["cells"].get(column.key)
    cell = None if found is None else Cell(**found)
    text = cell_text(cell, column)
    if cell is None or not cell.mark:
        return text
    return f"**{text}**" if cell.mark == "best" else f"{text} ≈"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Text that Markdown leaves as it is, also inside a table."""
    for character in "\\|*_`<[]":
        text = text.replace(character, f"\\{character}")
    return printable(text.replace("\n", " "))
