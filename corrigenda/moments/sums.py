"""`SquareSum`: the sum over tokens that becomes a second moment; written down now and then, and gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from corrigenda.files import write_tensors

CHECKPOINT = 16
"""Batches after which the sums so far are written down."""


class SquareSum:
    """The sum of x x^T over tokens, float64; an earlier one that was cut short is taken up.

    Args:
        width: of x.
        path: of the file that the mean goes to; the sum so far lies beside it.

    Attributes:
        done: how many batches are in it.
    """

    def __init__(self, width: int, path: Path) -> None:
        self._path = path
        self._part = path.with_suffix(".part")
        self._tokens = self.done = 0
        if self._part.is_file():
            self._total, self._tokens, self.done = _read(self._part)
        else:
            self._total = torch.zeros(width, width, dtype=torch.float64)

    def add(self, rows: Tensor) -> None:
        """Adds one batch, (token, width)."""
        rows = rows.double().cpu()
        self._total += rows.T @ rows
        self._tokens += len(rows)
        self.done += 1
        if self.done % CHECKPOINT == 0:
            _write(self._part, self._total, self._tokens, self.done)

    def finish(self) -> None:
        """Writes the mean."""
        _write(self._path, self._total / self._tokens, self._tokens, self.done)
        self._part.unlink(missing_ok=True)


def read_mean(path: Path) -> tuple[Tensor, int]:
    """The mean that `SquareSum.finish` wrote, (width, width), float64, and over how many tokens it is."""
    return _read(path)[:2]


def _write(path: Path, matrix: Tensor, tokens: int, done: int) -> None:
    write_tensors(path, {"matrix": matrix}, {"progress": json.dumps([tokens, done])})


def _read(path: Path) -> tuple[Tensor, int, int]:
    with safe_open(path, framework="pt") as file:
        tokens, done = json.loads(file.metadata()["progress"])
        return file.get_tensor("matrix"), tokens, done
