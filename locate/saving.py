"""Results on disk: tensors as safetensors, everything else as JSON beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from corrigenda.files import write_json, write_tensors
from corrigenda.plain_data import read_json


def save_result(folder: Path, name: str, fields: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Writes ``<name>.json`` and ``<name>.safetensors`` into a folder; the JSON last, so that with it all is there."""
    path = folder / f"{name}.safetensors"
    write_tensors(path, tensors)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    write_json(folder / f"{name}.json", {**fields, "tensors_sha256": digest})


def load_result(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What `save_result` wrote: the fields (lists as tuples) and the tensors.

    Raises:
        FileNotFoundError: the folder holds no such result.
        ValueError: it is damaged.
    """
    path, tensors = folder / f"{name}.json", folder / f"{name}.safetensors"
    for file in (path, tensors):
        if not file.is_file():
            raise FileNotFoundError(f"{folder} holds no {name}: there is no {file.name} in it")
    try:
        read = dict(read_json(path))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if hashlib.sha256(tensors.read_bytes()).hexdigest() != read.pop("tensors_sha256", None):
        raise ValueError(f"{tensors} is damaged: its SHA-256 is not the one that {path.name} names")
    fields = {key: tuple(value) if isinstance(value, list) else value for key, value in read.items()}
    return fields, load_file(tensors)
