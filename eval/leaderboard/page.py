"""`write_leaderboard`: Markdown, CSV, JSON and one self-contained HTML page, all written from the same plain values."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from corrigenda.system.files import write_json, write_text
from corrigenda.text.display import in_spreadsheet, printable
from corrigenda.text.names import model_title
from eval.leaderboard.boards import Leaderboard
from eval.leaderboard.columns import Column, axes
from eval.leaderboard.marks import ALPHA
from eval.leaderboard.views import CasesView, cases_view, figure_text, from_best, leaderboard_view, with_interval
from eval.metrics.run_figures import MEMORY, SECONDS
from eval.metrics.unit import UNITS
from eval.templating import environment

EXPLAINED = (
    "Figures are of the model after the edits, shares in %, intervals 95 % (bootstrap over subjects). “From the best” "
    "is the paired difference from the best row in the column that orders the table. “Behind” gives the numbers of "
    f"the rows that are significantly better in it (p < {ALPHA}, Holm's correction over all tests of the table: a "
    "difference may miss that though its own interval excludes 0). Behind none does not mean as good as the best: "
    "they are not told apart. The unedited model and the random update make no edit, and are not tested."
)
"""How a table is read."""
WHERE = "The HTML page and the CSV file have every interval, and the tests against the best of each column."

LEFT_TO_HTML = frozenset({"token_accuracy", "free_generation_lenient", "windows_activated", SECONDS.key, MEMORY.key})
"""Columns that the Markdown leaves to the other formats: another wording of a neighbour, or what a machine did."""

CSV_COLUMNS = (
    *("model", "data", "mode", "editor", "control", "n_facts", "metric", "before", "after", "low", "high", "n", "mark"),
    *("from_best", "from_best_low", "from_best_high", "p_holm"),
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
    """Writes what people read (Markdown, CSV, the page) from plain values, and gives the files.

    The view is that of `leaderboard_view`, and "about" and "made", how and when it was made; the cases, those of
    `cases_view`. The same values give the same files. Raises ValueError: the name is that of another folder's file.
    """
    paths = [_path(folder, name, suffix) for suffix in ("md", "csv", "html")]
    for path, text in zip(paths, (markdown(view), table_csv(view), html(view, cases)), strict=True):
        write_text(path, text)
    return paths


def write_data(view: Mapping[str, Any], folder: Path, name: str = "leaderboard") -> Path:
    """Writes the values as JSON. Raises ValueError: the name is that of another folder's file."""
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
    parts = ["# Leaderboard", *([about] if about else [])]
    used: dict[str, Column] = {}
    for board in view["boards"]:
        shown = [column for column in _columns(board) if column.key not in LEFT_TO_HTML - {board["ranked_by"]}]
        used |= {column.key: column for column in shown}
        ranked = bool(board["ranked_by"])
        head = [f"{c.short} {'↑' if c.better == 'high' else '↓'}" for c in shown]
        head[1:1] = ["from the best", "behind"] if ranked else []
        lines = [_line(["", "editor", *head]), _line(["---:", "---", *["---:"] * len(head)])]
        for place, row in enumerate(board["rows"], 1):
            found = [row["cells"].get(column.key) for column in shown]
            # The column that orders has its interval here; the others have theirs in the other formats.
            cells = [
                "–" if cell is None else figure_text(cell["value"], c) for cell, c in zip(found, shown, strict=True)
            ]
            if ranked:
                difference = from_best(board, row, shown[0].key)
                away = "" if difference is None else with_interval(difference, shown[0])
                cells[:1] = [with_interval(found[0], shown[0]), away, behind(board, row)]
            if row["editor"]:
                lines.append(_line([str(place), _escaped(_named(row, board["common_facts"])), *cells]))
        notes = "\n".join(f"- {_escaped(note)}" for note in board["notes"])
        parts += [f"## {_escaped(board['title'])}", *map(_escaped, finding(board)), "\n".join(lines), notes]
    units = [f"{c.short}: {c.title}{f' ({c.unit})' if c.unit else ''}" for c in used.values()]
    parts += ["## How to read the tables", f"{EXPLAINED} {WHERE}", _escaped("; ".join(units) + ".")]
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
                *(row["label"], row["control"], row["n_facts"]),
            ]
            for name, cell in row["cells"].items():
                figures = [cell[key] for key in ("before", "value", "low", "high", "n", "mark")]
                test = from_best(board, row, name) or {}
                figures += [test.get(key) for key in ("value", "low", "high", "p")]
                writer.writerow(map(in_spreadsheet, [*about, name, *figures]))
            if not row["cells"]:
                writer.writerow(map(in_spreadsheet, [*about, *[""] * (len(CSV_COLUMNS) - len(about))]))
    return text.getvalue()


def html(view: Mapping[str, Any], cases: CasesView) -> str:
    """The page; it loads nothing, so that it works from the file system."""
    made = environment("eval.leaderboard")
    made.globals.update(figure_text=figure_text, from_best=from_best, behind=behind)
    return made.get_template("page.html.j2").render(
        boards=[board | {"columns": _columns(board), "finding": finding(board)} for board in view["boards"]],
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


def _named(row: Mapping[str, Any], common: int) -> str:
    """The row's name; with its own number of facts where that is not the one that the rows have in common."""
    own = f" (n = {row['n_facts']})" if row["n_facts"] != common else ""
    return f"{row['label']} (control){own}" if row["control"] else f"{row['label']}{own}"


def behind(board: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """The places of the rows that a row is behind: 1-5, 7."""
    places = [place for place, one in enumerate(board["rows"], 1) if one["label"] in (row["behind"] or ())]
    spans: list[list[int]] = []
    for place in places:
        if spans and place == spans[-1][-1] + 1:
            spans[-1].append(place)
        else:
            spans.append([place])
    return ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]}–{span[-1]}" for span in spans)


def finding(board: Mapping[str, Any]) -> list[str]:
    """What stands above a table: what it says by the column that orders it, if one does, and what to read it by."""
    return [*_ranked(board), *board.get("heads", ())]


def _ranked(board: Mapping[str, Any]) -> list[str]:
    key = board["ranked_by"]
    tested = [row for row in board["rows"] if row["behind"] is not None]
    best = next((row for row in tested if row["cells"][key]["mark"] == "best"), None)
    if best is None:
        return []
    column = next(column for column in _columns(board) if column.key == key)
    open_ = [row["label"] for row in tested if row is not best and not row["cells"][key]["mark"]]
    are = "is" if len(open_) == 1 else "are"
    rest = (
        f"{_listed(open_)} {are} not told apart from it after Holm's correction"
        if open_
        else "every other row that was tested is behind it"
    )
    value = figure_text(best["cells"][key]["value"], column)
    extreme = "highest" if column.better == "high" else "lowest"
    return [
        f"{best['label']} has the {extreme} {column.title}, {value}{f' {column.unit}' if column.unit else ''}"
        f" (n = {best['cells'][key]['n']}); {rest}."
    ]


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Text that Markdown leaves as it is, also inside a table."""
    for character in "\\|*_`<[]":
        text = text.replace(character, f"\\{character}")
    return printable(text.replace("\n", " "))
