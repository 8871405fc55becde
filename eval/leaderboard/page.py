"""`write_leaderboard`: Markdown, CSV, JSON and one self-contained HTML page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from corrigenda.files import write_json, write_text
from corrigenda.names import model_title
from eval.leaderboard.boards import Leaderboard, Row
from eval.leaderboard.columns import Column, axes, columns
from eval.leaderboard.marks import ALPHA
from eval.leaderboard.views import case_views, cell_text, figure_text, leaderboard_view
from eval.metrics.unit import UNITS

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
        ValueError: the name is that of another folder's file.
    """
    if name in ("", "..") or Path(name).name != name or "\\" in name:
        raise ValueError(f"job.file={name}: this is no plain name of a file; the folder is given by job.folder=")
    view = leaderboard_view(found, folder)
    paths = [folder / f"{name}.{suffix}" for suffix in ("md", "csv", "json", "html")]
    write_text(paths[0], markdown(found, about))
    write_text(paths[1], table_csv(found))
    write_json(paths[2], view | {"about": about})
    write_text(paths[3], html(found, view, about))
    return paths


def markdown(found: Leaderboard, about: str = "") -> str:
    """The tables in Markdown."""
    parts = ["# Leaderboard", *([about] if about else []), EXPLAINED]
    for board in found.boards:
        shown = board.columns
        head = ["rank", "editor", "n", *(f"{c.short} {'↑' if c.better == 'high' else '↓'}" for c in shown)]
        lines = [_line(head), _line(["---:", "---", "---:", *["---:"] * len(shown)])]
        for row in board.rows:
            cells = [_marked(row, column) for column in shown]
            number = str(row.n_facts) if row.entry else "no run"
            lines.append(_line([str(row.rank or ""), _escaped(_named(row)), number, *cells]))
        notes = "\n".join(f"- {_escaped(note)}" for note in board.notes)
        parts += [f"## {_escaped(board.title)}", "\n".join(lines), notes]
    units = [f"{c.short}: {c.title} ({c.unit})" for c in columns().values()]
    parts += ["## Columns", "\n".join(f"- {_escaped(text)}" for text in units)]
    if found.left_out:
        listed = "\n".join(f"- `{run.path.name}`: {_escaped(run.why)}" for run in found.left_out)
        parts += ["## Runs left out", listed]
    return "\n\n".join(parts) + "\n"


def table_csv(found: Leaderboard) -> str:
    """One line a row and metric, for spreadsheets and scripts."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for board in found.boards:
        for row in board.rows:
            about = [
                model_title(board.key.model),
                board.key.data,
                board.key.mode,
                row.label,
                row.control,
                row.rank,
                row.n_facts,
            ]
            for name, cell in row.cells.items():
                writer.writerow([*about, name, cell.before, cell.value, cell.low, cell.high, cell.n, cell.mark])
            if not row.cells:
                writer.writerow([*about, *[""] * 7])
    return text.getvalue()


def html(found: Leaderboard, view: dict[str, Any], about: str = "") -> str:
    """The page; it loads nothing, so that it works from the file system."""
    environment = Environment(
        loader=PackageLoader("eval.leaderboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(cell_text=cell_text, figure_text=figure_text)
    cases = [[case_views(row) for row in board.rows] for board in found.boards]
    return environment.get_template("page.html.j2").render(
        boards=found.boards,
        view=view,
        about=about,
        explained=EXPLAINED,
        made=datetime.now().strftime("%Y-%m-%d %H:%M"),
        data=_embedded({"boards": view["boards"], **_declared()}),
        cases=[[_embedded(rows) for rows in board] for board in cases],
        counts=[[len(rows) for rows in board] for board in cases],
    )


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


def _named(row: Row) -> str:
    return f"{row.label} (control: {row.control})" if row.control else row.label


def _marked(row: Row, column: Column) -> str:
    cell = row.cells.get(column.key)
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
    return text.replace("\n", " ")
