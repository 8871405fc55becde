"""Measurements of the unedited model on the disk, with what only a running comparison needs.

Beside the records, NAME.json, lie the next-token distributions, NAME.safetensors: two megabytes for a fact with ten
neighbours and a vocabulary of 50,000.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from corrigenda.files import write_json, write_tensors
from eval.records import Measurement


def write_measurements(folder: Path, name: str, found: Sequence[Measurement]) -> None:
    """Writes measurements under a name; they are there once the records are, which are written last."""
    rows = [row for measurement in found for row in measurement.distributions.values()]
    tensors = {"distributions": torch.stack(rows)} if rows else {}
    write_tensors(folder / f"{name}.safetensors", tensors)
    records = [m.to_dict() | {"continuations": m.continuations, "distributions": list(m.distributions)} for m in found]
    write_json(folder / f"{name}.json", records)


def stored_measurements(folder: Path, name: str) -> list[Measurement] | None:
    """What `write_measurements` wrote; None where nothing is there, or of a version that kept less."""
    path = folder / f"{name}.json"
    if not path.is_file():
        return None
    rows = iter(load_file(folder / f"{name}.safetensors").get("distributions", ()))
    found = []
    for record in json.loads(path.read_text(encoding="utf-8")):
        if "continuations" not in record:
            return None  # of a version that compared answers up to their end: measured anew
        mine = {prompt: next(rows) for prompt in record["distributions"]}
        found.append(replace(Measurement.from_dict(record), distributions=mine, continuations=record["continuations"]))
    return found
