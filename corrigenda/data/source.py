"""Raw records from wherever they are: a JSON, JSONL or CSV file, a folder that `datasets` can load, or the hub."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Literal

from corrigenda.data.csv_records import table_rows
from corrigenda.data.repository import folder_records, hub_file, hub_records
from corrigenda.system.files import expanded
from corrigenda.system.plain_data import parse, problem_in

_HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")
_HUB_FILE = re.compile(r"hf://datasets/(\w[\w.-]*/[\w.-]+)(?:@([\w.-]+))?/(.+)")
_FILE_SUFFIXES = (".json", ".jsonl", ".csv", ".tsv")
_SAVE_AS = "save the file as UTF-8"


@dataclass(frozen=True)
class RawRecord:
    """One record as it stands in the source: the parsed JSON value, of any type.

    Its number is counted from 1: the line in a JSONL or CSV file, else the record. `problem` is what is wrong with it
    (a line that is not JSON, a key that stands twice), `field` the path of the field at fault; both may be empty.
    """

    number: int
    value: object
    problem: str = ""
    field: str = ""


@dataclass(frozen=True)
class Source:
    """Where records come from, and the records, read lazily and once.

    The name is short: the file's stem, the folder's name, or the hub id; the label is what error messages call the
    source, the unit what the record numbers count.
    """

    name: str
    label: str
    unit: Literal["line", "record"]
    records: Iterator[RawRecord]


def open_source(source: str | Path, split: str, config: str | None) -> Source:
    """Opens a file, a folder or a hub data set; what exists locally wins over a hub id of the same spelling.

    A source is the path of a ``.json`` file (a list of records), of a ``.jsonl`` file (one record a line; blank lines
    are passed over), of a ``.csv`` or ``.tsv`` table (`corrigenda.data.csv_records`) or of a folder with data files; or
    a hub id "owner/name", or one such file on the hub, "hf://datasets/owner/name/path/file.json" (``@revision`` after
    the name). A `Path` is never on the hub. `split` and `config` are of folders and the hub. Raises FileNotFoundError:
    there is no such source, or it holds no data; ConnectionError: the hub cannot be reached and its cache has no copy;
    ValueError: the file is not a JSON list, has another suffix, or no such split or configuration exists.
    """
    label = str(source)
    on_hub = _HUB_FILE.fullmatch(label) if isinstance(source, str) else None
    if on_hub is not None:
        hub_id, revision, name = on_hub.groups()
        if Path(name).suffix not in _FILE_SUFFIXES:
            raise ValueError(f"{label}: give a .json, .jsonl or .csv file of the data set, or only its id, {hub_id!r}")
        path = hub_file(hub_id, name, revision)
    else:
        path = expanded(source)
    if path.is_dir():
        found = folder_records(path, split, config)
        return Source(path.resolve().name, label, "record", starmap(RawRecord, enumerate(found, 1)))
    if path.is_file():
        if path.suffix not in _FILE_SUFFIXES:
            raise ValueError(
                f"{label}: cannot read a {path.suffix or 'file without suffix'!r}; give a .json, .jsonl or .csv file, "
                "or the folder that holds the data files"
            )
        if config is not None:
            raise ValueError(f"{label}: config={config!r} has no meaning for a file; leave it out")
        if split not in (None, "train"):
            raise ValueError(f"{label}: split={split!r} has no meaning for a file, which is read whole; leave it out")
        if path.suffix == ".jsonl":
            return Source(path.stem, label, "line", _jsonl_records(path))
        if path.suffix in (".csv", ".tsv"):
            return Source(path.stem, label, "line", _table_records(path))
        return Source(path.stem, label, "record", starmap(_record, enumerate(_json_list(path), 1)))
    if isinstance(source, str) and _HUB_ID.fullmatch(source) and path.suffix not in _FILE_SUFFIXES:
        return Source(source, label, "record", starmap(RawRecord, enumerate(hub_records(source, split, config), 1)))
    raise FileNotFoundError(
        f"no file or folder {label!r} (looked in {Path.cwd()}); give the path of a .json, .jsonl or .csv file or of a "
        "folder with data files, a Hugging Face data set id 'owner/name', or 'embedded' for corrigenda's own facts"
    )


def _record(number: int, value: object) -> RawRecord:
    """A record that was read from JSON, with what is wrong in it."""
    field, problem = problem_in(value) or ("", "")
    return RawRecord(number, value, problem, field)


def _table_records(path: Path) -> Iterator[RawRecord]:
    for number, found, field in table_rows(path):
        yield RawRecord(number, None, found, field) if isinstance(found, str) else RawRecord(number, found)


def _json_list(path: Path) -> list[object]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        if not text.strip():
            raise ValueError("the file is empty; it must hold a JSON list of records")
        values = parse(text)
    except json.JSONDecodeError as error:
        hint = "; a file with one record a line must be called .jsonl" if error.msg == "Extra data" else ""
        where = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"{path}: not valid JSON at {where}: {error.msg}{hint}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text at byte {error.start}: {error.reason}; {_SAVE_AS}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    except OSError as error:
        raise type(error)(f"{path}: cannot be read: {error.strerror}") from None
    if not isinstance(values, list):
        raise ValueError(
            f"{path}: must hold a list of records, got {type(values).__name__}; "
            "put the records into one list, or one a line into a .jsonl file"
        )
    return values


def _jsonl_records(path: Path) -> Iterator[RawRecord]:
    try:
        lines = path.open("rb")
    except OSError as error:
        raise type(error)(f"{path}: cannot be read: {error.strerror}") from None
    with lines:
        for number, line in enumerate(lines, start=1):
            try:
                # A byte order mark can only stand at the start of the file.
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
                if text:
                    yield _record(number, parse(text))
            except json.JSONDecodeError as error:
                yield RawRecord(number, None, f"not valid JSON at column {error.colno}: {error.msg}")
            except UnicodeDecodeError as error:
                where = f"byte {error.start + 1} of the line"
                yield RawRecord(number, None, f"not UTF-8 text at {where}: {error.reason}; {_SAVE_AS}")
            except ValueError as error:
                yield RawRecord(number, None, str(error))
