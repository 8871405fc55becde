"""Measurements of the unedited model on the disk, with what only a running comparison needs.

One file: the records, and the next-token distributions, two megabytes for a fact with ten neighbours and a vocabulary
of 50,000.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from corrigenda.system.files import read_kept, write_checked
from eval.records import Measurement

AGAIN = "it is measured again"


def file_of(folder: Path, name: str) -> Path:
    """The file that holds the measurements of a name."""
    return folder / f"{name}.safetensors"


def write_measurements(folder: Path, name: str, found: Sequence[Measurement]) -> None:
    """Writes measurements under a name."""
    rows = [row for measurement in found for row in measurement.distributions.values()]
    tensors = {"distributions": torch.stack(rows)} if rows else {}
    records = [m.to_dict() | {"continuations": m.continuations, "distributions": list(m.distributions)} for m in found]
    write_checked(file_of(folder, name), tensors, {"records": json.dumps(records, allow_nan=False)})


def stored_measurements(folder: Path, name: str) -> list[Measurement] | None:
    """What `write_measurements` wrote; None where there is nothing to rely on (see `read_kept`)."""
    kept = read_kept(file_of(folder, name), AGAIN)
    if kept is None:
        return None
    rows = iter(kept[0].get("distributions", ()))
    found = []
    for record in json.loads(kept[1]["records"]):
        mine = {prompt: next(rows) for prompt in record["distributions"]}
        found.append(replace(Measurement.from_dict(record), distributions=mine, continuations=record["continuations"]))
    return found
