"""`SquareSum`: the sum over tokens that becomes a second moment; written down now and then, and gone on with."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from corrigenda.system.files import read_kept, write_checked

CHECKPOINT = 16
"""Batches after which the sums so far are written down."""
FLOAT64_ON = ("cpu",)
"""Devices on which batches are added up in float64. Others are slow at it: they add up `CHECKPOINT` batches in float32,
which are then added in float64 on the CPU."""
BLOCK = 512
"""So many rows of the sum are added to at once. x x^T is symmetric: of each block of rows, what stands left of the
diagonal is the transpose of what is there already."""


class SquareSum:
    """The sum of x x^T over tokens: of a batch in float32, of batches in float64; one that was cut short is taken up.

    Beside the sum, 8 width^2 bytes of RAM, little is held; on an accelerator, 4 width^2.

    Args:
        width: of x.
        path: of the file that the mean goes to; the sum so far lies beside it.

    Attributes:
        done: how many batches are in it.
    """

    def __init__(self, width: int, path: Path) -> None:
        self._path = path
        self._part = path.with_suffix(".part")
        self._recent: Tensor | None = None
        kept = read_kept(self._part, "the sum is begun anew")
        begun = None if kept is None else _unpacked(*kept)
        self._total, self._tokens, self.done = begun or (torch.zeros(width, width, dtype=torch.float64), 0, 0)

    def add(self, rows: Tensor) -> None:
        """Adds one batch, (token, width); one in float64 is summed in it."""
        rows, total = rows if rows.dtype == torch.float64 else rows.float(), self._total
        if rows.device.type not in FLOAT64_ON:
            if self._recent is None:
                self._recent = torch.zeros(self._total.shape, dtype=torch.float32, device=rows.device)
            total = self._recent
        for a, b in _blocks(len(total)):
            total[a:b, a:] += rows[:, a:b].T @ rows[:, a:]
        self._tokens += len(rows)
        self.done += 1
        if self.done % CHECKPOINT == 0:
            self._gather()
            _write(self._part, self._total, self._tokens, self.done)

    def finish(self) -> None:
        """Writes the mean, and frees the memory: nothing can be added after it."""
        self._gather()
        for a, b in _blocks(len(self._total)):
            self._total[b:, a:b] = self._total[a:b, b:].T
        _write(self._path, self._total.div_(self._tokens), self._tokens, self.done)
        self._part.unlink(missing_ok=True)
        del self._total

    def _gather(self) -> None:
        """Adds what was summed on an accelerator."""
        if self._recent is not None:
            self._total += self._recent.cpu()
            self._recent = None


def _blocks(width: int) -> Iterator[tuple[int, int]]:
    """The first and the last row, excluded, of each block."""
    for a in range(0, width, BLOCK):
        yield a, min(a + BLOCK, width)


def read_mean(path: Path) -> tuple[Tensor, int] | None:
    """The mean that `SquareSum.finish` wrote, (width, width), float64, and over how many tokens it is.

    None where the file is missing, or damaged, which a warning says.
    """
    found = read_kept(path, "it is computed again")
    return None if found is None else _unpacked(*found)[:2]


def _write(path: Path, matrix: Tensor, tokens: int, done: int) -> None:
    write_checked(path, {"matrix": matrix}, {"progress": json.dumps([tokens, done])})


def _unpacked(found: Mapping[str, Tensor], metadata: Mapping[str, str]) -> tuple[Tensor, int, int]:
    tokens, done = json.loads(metadata["progress"])
    return found["matrix"], tokens, done
