"""Records of cases in files: JSON lines while a run goes on, Parquet when it is finished.

In Parquet each metric is a column of its own (``before.efficacy_success``, ``after.efficacy_success``, ...), so that
pandas, DuckDB or any other reader finds the figures; what is nested (the fact, the prompts) is JSON text. Every value
comes back as it was, to the last bit; a figure that was a whole number comes back as a float.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from corrigenda.files import write_file

_STATES = ("before", "after")
_PLAIN = {"id": pa.string(), "verb": pa.string(), "seconds": pa.float64(), "error": pa.string()}


def write_parquet(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Writes the records of cases atomically, with a digest of them all."""
    records = [_with_floats(record) for record in records]
    keys = {state: _value_keys(records, state) for state in _STATES}
    columns: dict[str, pa.Array] = {
        name: pa.array([record.get(name) for record in records], kind) for name, kind in _PLAIN.items()
    }
    columns["subject"] = pa.array([record.get("fact", {}).get("subject") for record in records], pa.string())
    for state in _STATES:
        for key in keys[state]:
            values = [(record.get(state) or {}).get("values", {}).get(key) for record in records]
            columns[f"{state}.{key}"] = pa.array(values, pa.float64())
    columns["rest"] = pa.array([_dump(_rest(record)) for record in records], pa.string())
    table = pa.table(columns).replace_schema_metadata({"sha256": _digest(records)})
    # Statistics of the columns would hold the longest texts twice more.
    write_file(path, lambda scratch: pq.write_table(table, scratch, compression="zstd", write_statistics=False))


def _with_floats(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record as it will come back: figures are floats, and come first in their state."""
    seconds = record.get("seconds")
    found = dict(record) | ({} if seconds is None else {"seconds": float(seconds)})
    for state in _STATES:
        part = record.get(state)
        if part and part.get("values"):
            values = {key: None if value is None else float(value) for key, value in part["values"].items()}
            found[state] = {"values": values, **{key: value for key, value in part.items() if key != "values"}}
    return found


def read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """The records that `write_parquet` wrote.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        table = pq.read_table(path)
        records = list(_put_together(table.to_pydict()))
        whole = (table.schema.metadata or {}).get(b"sha256", b"").decode() == _digest(records)
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: damaged ({str(error).splitlines()[0]})") from None
    if not whole:
        raise ValueError(f"{path}: damaged (the records are not those that were written)")
    yield from records


def count_parquet(path: Path) -> int:
    """The number of records, from the end of the file alone.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: damaged ({str(error).splitlines()[0]})") from None


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines; a last line that was cut off in the writing is passed over.

    Raises:
        ValueError: another line is damaged.
    """
    # Not splitlines(): a text may hold characters that it takes for the end of a line.
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}, line {number}: damaged ({error}); take the line out to go on") from None
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number}: damaged (not an object); take the line out to go on")
        yield record


def records_in(folder: Path, of: str = "cases") -> Iterator[dict[str, Any]]:
    """The records in a run's folder, whichever files hold them; nothing is changed there.

    Args:
        folder: the run's.
        of: "cases", or "retention" for those scored again at the end of a sequential run.

    Raises:
        ValueError: a file is damaged.
    """
    seen = set()
    for suffix, read in ((".parquet", read_parquet), (".jsonl", read_lines)):
        path = folder / f"{of}{suffix}"
        if not path.is_file():
            continue
        for record in read(path):
            # Both are there when a run was killed just before it took the lines away.
            key = _dump([record.get("id"), record.get("t")])
            if key not in seen:
                seen.add(key)
                yield record


def _put_together(columns: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    """The records from the columns of the table."""
    for row, text in enumerate(columns["rest"]):
        rest = json.loads(text)
        measured = rest.pop("measured")
        record: dict[str, Any] = {}
        for name in rest.pop("order"):
            if name in _PLAIN:
                record[name] = columns[name][row]
            elif name in measured:
                values = {key: columns[f"{name}.{key}"][row] for key in rest[name].pop("keys")}
                record[name] = {"values": values, **rest[name]}
            else:
                record[name] = rest[name]
        yield record


def _digest(records: Iterable[Mapping[str, Any]]) -> str:
    digest = hashlib.sha256()
    for record in records:
        digest.update(_dump(record).encode() + b"\n")
    return digest.hexdigest()


def _value_keys(records: Iterable[Mapping[str, Any]], state: str) -> list[str]:
    keys: dict[str, None] = {}
    for record in records:
        keys.update(dict.fromkeys((record.get(state) or {}).get("values", {})))
    return list(keys)


def _rest(record: Mapping[str, Any]) -> dict[str, Any]:
    """What has no column of its own, with what is needed to put the record together again in its order."""
    measured = [state for state in _STATES if "values" in (record.get(state) or {})]
    rest: dict[str, Any] = {"order": list(record), "measured": measured}
    for name, value in record.items():
        if name in measured:
            others = {key: part for key, part in value.items() if key != "values"}
            rest[name] = {"keys": list(value["values"]), **others}
        elif name not in _PLAIN:
            rest[name] = value
    return rest


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
