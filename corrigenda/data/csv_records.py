"""Facts in a table: the rows of a ``.csv`` or ``.tsv`` file as records, as a spreadsheet writes them.

A column is called as the field of the record, in any schema. An empty cell is an absent field. What is a list in a
`Fact` may have several columns of the same name (or ``paraphrases.1``, ``paraphrases.2``, ...), one entry each. What is
a list of probes has a column for each part: ``locality.prompt`` and ``locality.answer``, as often as there are probes.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

LISTS = frozenset(
    {
        *("aliases", "paraphrases", "neighbourhood", "generation", "negations", "reversals", "same_subject"),
        *("frames", "other_names"),
    }
)
"""The fields of a fact that are lists of texts."""
PROBES = frozenset({"locality", "portability"})
"""Those that are lists of probes."""
PARTS = ("prompt", "answer", "group")
"""What a probe has a column for."""

_NAME = re.compile(r"(?P<field>.*?)(?:\.(?P<part>prompt|answer|group))?(?:\.(?P<number>\d+))?")


@dataclass(frozen=True)
class CsvColumn:
    """A column of the table, by the record's field that it belongs to.

    `part` is that of a probe, empty for a text; `number` is the one in its name, else it counts the columns of this
    field and part, from 0.
    """

    name: str
    field: str
    part: str
    number: int


def table_rows(path: Path) -> Iterator[tuple[int, Mapping[str, object] | str, str]]:
    """The rows of a table below its first line, which names the columns; rows without any text are passed over.

    The separator is a tab in a ``.tsv`` file; else the first of comma, semicolon, tab that the first line has. Yields
    the line that the row begins in, from 1; its record, or what is wrong with it; and the field at fault, if one is.
    Raises ValueError: the file is no UTF-8 text, it has no first line, or columns are named twice or cannot be.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: not UTF-8 text at byte {error.start}: {error.reason}; save the file as UTF-8"
        ) from None
    except OSError as error:
        raise type(error)(f"{path}: cannot be read: {error.strerror}") from None
    first = next((line for line in text.split("\n") if line.strip(",; \t")), "")
    separator = next((sign for sign in ("\t" if path.suffix == ".tsv" else ",;\t") if sign in first), ",")
    # Line ends are the reader's business: a cell may hold some.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True)
    begins = 1
    columns: list[CsvColumn] | None = None
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            yield begins, f"not a row of a table: {error}; is a quotation mark missing?", ""
            begins = reader.line_num + 1
            continue
        if row is None:
            break
        if any(cell.strip() for cell in row):
            if columns is None:
                columns = _columns(path, row)
            else:
                yield begins, *_record(columns, row)
        begins = reader.line_num + 1
    if columns is None:
        raise ValueError(f"{path}: the file is empty; its first line must name the columns (subject, prompt, ...)")


def _columns(path: Path, names: list[str]) -> list[CsvColumn]:
    """The columns that the first line names. Raises ValueError: one is named twice that is no list, or has no name."""
    seen: Counter[tuple[str, str]] = Counter()
    columns: list[CsvColumn] = []
    for place, written in enumerate(names, start=1):
        name = written.strip()
        if not name:
            raise ValueError(f"{path}: column {place} has no name; the first line must name the columns")
        found = _NAME.fullmatch(name)
        field, part = (found["field"], found["part"] or "") if found is not None else (name, "")
        if field not in (PROBES if part else LISTS):
            field, part = name, ""
        if field in PROBES and not part:
            raise ValueError(f"{path}: column {name!r} is a list of probes: name {name}.prompt and {name}.answer")
        if seen[field, part] and field not in LISTS | PROBES:
            raise ValueError(f"{path}: two columns are called {name!r}; only one of the two can be meant")
        number = int(found["number"]) if part and found is not None and found["number"] else seen[field, part]
        if part and any((one.field, one.part, one.number) == (field, part, number) for one in columns):
            raise ValueError(f"{path}: two columns are {field}.{part} of the probe {number}; number them all, or none")
        columns.append(CsvColumn(name, field, part, number))
        seen[field, part] += 1
    return columns


def _record(columns: list[CsvColumn], row: list[str]) -> tuple[Mapping[str, object] | str, str]:
    """A row's record, or what is wrong with it and the field at fault."""
    if any(cell.strip() for cell in row[len(columns) :]):
        said = f"has {len(row)} cells, and the first line names {len(columns)} columns"
        return f"{said}; a text with the separator in it needs quotation marks", ""
    # All of them, so that a schema is recognised whichever cells of a row are empty.
    record: dict[str, object] = dict.fromkeys(column.field for column in columns)
    lists: dict[str, list[str]] = {}
    probes: dict[str, dict[int, dict[str, str]]] = {}
    for column, cell in zip(columns, row, strict=False):
        if not cell.strip():
            continue
        if column.part:
            probes.setdefault(column.field, {}).setdefault(column.number, {})[column.part] = cell
        elif column.field in LISTS:
            if cell.strip()[0] + cell.strip()[-1] == "[]":
                return "is a list in one cell; give each entry a column of this name", column.field
            lists.setdefault(column.field, []).append(cell)
        else:
            record[column.field] = cell
    for field, parts in probes.items():
        for number, probe in parts.items():
            for part in PARTS[:2]:
                if part not in probe:
                    return f"has no {part}; a probe needs {field}.prompt and {field}.answer", f"{field}[{number}]"
        record[field] = [parts[number] for number in sorted(parts)]
    return record | lists, ""
