"""Records of cases: JSON lines, one case a line, from the first case of a run to the end.

A line is on the disk when its case is finished; finishing a run only notes a digest of each file (``records.sha256``,
as ``sha256sum --check`` reads it). A case whose error begins with `CRASHED` is tried again when the run goes on;
the new line takes the earlier one's place. For a table with pandas::

    pandas.json_normalize(list(records_in(folder)), max_level=2)["after.values.efficacy_success"]

Each line ends with a seal: a digest of its record and of the seal above it. A line that was changed, copied or moved
while the run was under way is named, and its case is done again; so is the one below a line that is gone.
"""

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from corrigenda.system.files import digest_of, write_text

RECORDS = ("cases", "retention")
"""The records of a run that are cases."""

JOURNAL = "journal"
"""The records of what else a run has done, from which it goes on."""

CRASHED = "crashed: "
"""How the error of a case begins that is not final: the program failed at it, not the method."""

SEAL = "seal"
"""The last entry of a line, which no record has."""

DIGESTS = "records.sha256"
"""The file with the digests of a finished run's records."""


def records_in(folder: Path, of: str = "cases") -> Iterator[dict[str, Any]]:
    """The records in a run's folder, of "cases" or "retention"; nothing is changed there.

    Of a case that crashed and was tried again the later record counts, in the place of the earlier one. Raises
    ValueError: a file is damaged.
    """
    finished = check_digest(folder, of)  # which covers the seals, too
    lines = folder / f"{of}.jsonl"
    if lines.is_file():
        records = read_lines(lines, seals=not finished)
        if _some_crashed(lines.read_bytes()):
            records = iter({_key(record): record for record in records}.values())
        yield from records


def count_records(folder: Path) -> int:
    """How many cases there are records of; those of a finished run are checked against their digest and not parsed.

    Raises:
        ValueError: a file is damaged.
    """
    if check_digest(folder, "cases"):
        content = (folder / "cases.jsonl").read_bytes()
        if not _some_crashed(content):
            return content.count(b"\n")
    return sum(1 for _ in records_in(folder))


def _some_crashed(content: bytes) -> bool:
    """Whether there may be a case that was tried twice; a text that happens to look so costs time and no more."""
    return json.dumps({"error": CRASHED})[1:-2].encode() in content


def _key(record: dict[str, Any]) -> str:
    return json.dumps([record.get("id"), record.get("t")])


def read_lines(path: Path, repair: bool = False, seals: bool = True) -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines, without their seals. A last line that was cut off is passed over.

    With `repair` a line that is not what was written there is passed over, with a warning; else it raises a ValueError.
    A file of an earlier version has no seals at all, and its lines are taken as they are.
    """
    # Not splitlines(): a text may hold characters that it takes for the end of a line.
    lines = path.read_bytes().split(b"\n")[:-1]
    sealed_file = seals and any(map(seal_of, lines))
    above, sound = b"", b""  # the seal that stands above a line, and that of the last line that was as written
    for number, line in enumerate(lines, 1):
        record, problem = _record_of(line)
        if not problem and sealed_file:
            said, seal = line[:-_SEAL_LENGTH].removesuffix(b", ") + b"}", seal_of(line)
            if not seal:
                problem = "no seal"
            elif seal not in (_seal(said, above), _seal(said, sound)):
                problem = "not the line that was written there"
        above = seal_of(line) or above
        if problem or record is None:
            if not repair:
                raise ValueError(f"{path}, line {number}: damaged ({problem}); go on with the run, which does it again")
            warnings.warn(f"{path}, line {number}: damaged ({problem}); that case is done again", stacklevel=3)
            continue
        sound = seal_of(line)
        yield record


def sealed(record: Mapping[str, Any], above: bytes) -> bytes:
    """The line of a record, given the seal of the line above (empty for the first).

    Raises:
        ValueError: a value that JSON has no word for (NaN).
    """
    said = json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
    return said[:-1] + b", " * (len(said) > 2) + b'"%s": "%s"}\n' % (SEAL.encode(), _seal(said, above))


def sealed_lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    """The lines of some records, from the first one of a file."""
    lines: list[bytes] = []
    for record in records:
        lines.append(sealed(record, seal_of(lines[-1].rstrip(b"\n")) if lines else b""))
    return b"".join(lines)


def last_line(path: Path) -> bytes:
    """The last whole line of a file, without reading the others; empty where there is none."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        end, piece = file.seek(0, os.SEEK_END), 2**16
        while True:
            begin = max(0, end - piece)
            file.seek(begin)
            lines = file.read().split(b"\n")[:-1]  # what stands behind the last line's end was cut off
            if begin == 0 or len(lines) > 1:
                return lines[-1] if lines else b""
            piece *= 4


def seal_of(line: bytes) -> bytes:
    """The seal at a line's end; empty where there is none."""
    found = _SEALED.search(line, max(0, len(line) - _SEAL_LENGTH))
    return found[1] if found else b""


_SEALED = re.compile(rb'"%s": "([0-9a-f]{16})"}$' % SEAL.encode())
_SEAL_LENGTH = len(f'"{SEAL}": "{16 * "0"}"}}')


def _seal(said: bytes, above: bytes) -> bytes:
    return hashlib.sha256(above + b" " + said).hexdigest()[:16].encode()


def _record_of(line: bytes) -> tuple[dict[str, Any] | None, str]:
    """A line's record without its seal, None where there is none; and why."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return None, str(error)
    if not isinstance(record, dict):
        return None, "not an object"
    record.pop(SEAL, None)
    return record, ""


def write_digests(folder: Path) -> None:
    """Notes the digests of a run's records, so that a change of them is noticed."""
    names = [f"{name}.jsonl" for name in RECORDS if (folder / f"{name}.jsonl").is_file()]
    lines = [f"{digest_of(folder / name)}  {name}\n" for name in names]
    write_text(folder / DIGESTS, "".join(lines))


def check_digest(folder: Path, of: str) -> bool:
    """Whether there is a digest of these records and the run is finished.

    Raises:
        ValueError: the records are not those that the digest is of.
    """
    digests, lines = folder / DIGESTS, folder / f"{of}.jsonl"
    if of not in RECORDS or not (digests.is_file() and lines.is_file() and (folder / "summary.json").is_file()):
        return False
    found = f"{digest_of(lines)}  {lines.name}"
    if found.encode() not in digests.read_bytes().split(b"\n"):
        raise ValueError(f"{lines}: damaged (the records are not those that were written)")
    return True
