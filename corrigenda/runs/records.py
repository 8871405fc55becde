"""Records of cases: JSON lines, one case a line, from the first case of a run to the end.

A line is on the disk when its case is finished, so a killed run loses nothing, and finishing a run moves nothing: it
only notes a digest of each file (``records.sha256``, as ``sha256sum --check`` reads it), by which damage is noticed.
Plain text was chosen over Parquet and over compression: 1,000 cases with all their prompts take 23 MB (6 MB in Parquet
or with gzip), are read in 0.6 s (Parquet: 1.0 s), counted and checked in 0.02 s, and any tool reads them while the run
goes on. Figures come back to the last bit. A case whose error begins with `CRASHED` is tried again when the run goes
on; its new line comes later in the file and takes the earlier one's place. For a table with pandas::

    pandas.json_normalize(list(records_in(folder)), max_level=2)["after.values.efficacy_success"]

Finished runs of version 0.1 have Parquet files, which are read as well (`corrigenda.runs.parquet`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corrigenda.files import write_text

RECORDS = ("cases", "retention")
"""The records of a run that are cases."""

CRASHED = "crashed: "
"""How the error of a case begins that is not final: the program failed at it, not the method."""

DIGESTS = "records.sha256"
"""The file with the digests of a finished run's records."""


def records_in(folder: Path, of: str = "cases") -> Iterator[dict[str, Any]]:
    """The records in a run's folder, whichever files hold them; nothing is changed there.

    Of a case that crashed and was tried again the later record counts, in the place of the earlier one.

    Args:
        folder: the run's.
        of: "cases", or "retention" for those scored again at the end of a sequential run.

    Raises:
        ValueError: a file is damaged.
    """
    check_digest(folder, of)
    lines, old = folder / f"{of}.jsonl", folder / f"{of}.parquet"
    if not old.is_file():
        if lines.is_file():
            yield from _latest(lines) if _some_crashed(lines.read_bytes()) else read_lines(lines)
        return
    from corrigenda.runs.parquet import read_parquet

    # Both are there when version 0.1 was killed just before it took the lines away.
    seen = set()
    for record in (*read_parquet(old), *(read_lines(lines) if lines.is_file() else ())):
        key = _key(record)
        if key not in seen:
            seen.add(key)
            yield record


def count_records(folder: Path, of: str = "cases") -> int:
    """How many cases there are records of; those of a finished run are checked against their digest and not parsed.

    Raises:
        ValueError: a file is damaged.
    """
    if check_digest(folder, of):
        content = (folder / f"{of}.jsonl").read_bytes()
        if not _some_crashed(content):
            return content.count(b"\n")
    return sum(1 for _ in records_in(folder, of))


def _some_crashed(content: bytes) -> bool:
    """Whether there may be a case that was tried twice; a text that happens to look so costs time and no more."""
    return json.dumps({"error": CRASHED})[1:-2].encode() in content


def _latest(lines: Path) -> Iterator[dict[str, Any]]:
    """The last record of each case, in the order of the first ones."""
    return iter({_key(record): record for record in read_lines(lines)}.values())


def _key(record: dict[str, Any]) -> str:
    return json.dumps([record.get("id"), record.get("t")])


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


def write_digests(folder: Path) -> None:
    """Notes the digests of a run's records, so that a change of them is noticed."""
    names = [f"{name}.jsonl" for name in RECORDS if (folder / f"{name}.jsonl").is_file()]
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    write_text(folder / DIGESTS, "".join(lines))


def check_digest(folder: Path, of: str) -> bool:
    """Whether there is a digest of these records and the run is finished.

    Raises:
        ValueError: the records are not those that the digest is of.
    """
    digests, lines = folder / DIGESTS, folder / f"{of}.jsonl"
    if of not in RECORDS or not (digests.is_file() and lines.is_file() and (folder / "summary.json").is_file()):
        return False
    found = f"{hashlib.sha256(lines.read_bytes()).hexdigest()}  {lines.name}"
    if found.encode() not in digests.read_bytes().split(b"\n"):
        raise ValueError(f"{lines}: damaged (the records are not those that were written)")
    return True
