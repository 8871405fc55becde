"""What the tests of the readers of data share."""

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

Json = dict[str, Any]
ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("CORRIGENDA_SHARED", ROOT.parent / "shared")) / "data"

CASES: dict[str, Json] = yaml.safe_load((ROOT / "tests/unit/corrigenda/data/records.yaml").read_text("utf-8"))
"""By name of a data set: `schema`, `record`, `fact`, `bad` and `variants`, as the file itself says."""

RECORDS: dict[str, Json] = {name: case["record"] for name, case in CASES.items()}
PLAIN, KNOWN, COUNTERFACT = RECORDS["plain"], RECORDS["known_facts"], RECORDS["counterfact"]


def changed(record: Json, path: str, value: object) -> Json:
    """A copy of the record with `value` at the path, whose parts may be places in lists; "<absent>" leaves it out."""
    record = copy.deepcopy(record)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    owner: Any = record
    for part in parents:
        owner = owner[part]
    if value == "<absent>":
        del owner[last]
    else:
        owner[last] = value
    return record


def plain_records(count: int, start: int = 0) -> list[Json]:
    return [changed(PLAIN, "id", f"f{number}") for number in range(start, start + count)]


def write(path: Path, *records: object) -> Path:
    """A file of records: a list, or one a line."""
    lines = path.suffix == ".jsonl"
    text = "".join(f"{json.dumps(record)}\n" for record in records) if lines else json.dumps(records)
    path.write_text(text, encoding="utf-8")
    return path


def write_repository(folder: Path, splits: dict[str, list[Json]]) -> Path:
    folder.mkdir(parents=True)
    for split, records in splits.items():
        write(folder / f"{split}.jsonl", *records)
    return folder


def shared(name: str) -> Path:
    path = SHARED / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"no {path}; set CORRIGENDA_SHARED to the folder that holds data/{name}.json")
    return path
