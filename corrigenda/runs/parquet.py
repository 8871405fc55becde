"""Records of finished runs as version 0.1 wrote them: Parquet, to be read only.

Each metric was a column of its own (``after.efficacy_success``); what is nested was JSON text in the column ``rest``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

_PLAIN = ("id", "verb", "seconds", "error")


def read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a finished run of version 0.1.

    Raises:
        ValueError: the file is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
        records = list(_put_together(table.to_pydict()))
        whole = (table.schema.metadata or {}).get(b"sha256", b"").decode() == _digest(records)
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: damaged ({str(error).splitlines()[0]})") from None
    if not whole:
        raise ValueError(f"{path}: damaged (the records are not those that were written)")
    yield from records


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
        digest.update(json.dumps(record, ensure_ascii=False, allow_nan=False).encode() + b"\n")
    return digest.hexdigest()
