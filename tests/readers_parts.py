"""What the tests of the readers of data share."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

Json = dict[str, Any]
COUNTERFACT: Json = {
    "case_id": 7,
    "pararel_idx": 2796,
    "requested_rewrite": {
        "prompt": "The capital of {} is",
        "relation_id": "P36",
        "target_new": {"str": "Lyon", "id": "Q456"},
        "target_true": {"str": "Tallinn", "id": "Q1770"},
        "subject": "Estonia",
    },
    "paraphrase_prompts": ["They flew home. Estonia has its seat of government in"],
    "neighborhood_prompts": ["The old hanseatic town of Reval is today called"],
    "attribute_prompts": ["The third largest city of France is"],
    "generation_prompts": ["Estonia's parliament sits in"],
}


def changed(record: Json, path: str, value: object) -> Json:
    """A copy of the record with `value` at the dotted path; Ellipsis deletes the field."""
    record = copy.deepcopy(record)
    *parents, last = path.split(".")
    owner = record
    for name in parents:
        owner = owner[name]
    if value is ...:
        del owner[last]
    else:
        owner[last] = value
    return record


def write_repository(folder: Path, splits: dict[str, list[Json]]) -> Path:
    folder.mkdir(parents=True)
    for split, records in splits.items():
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder
