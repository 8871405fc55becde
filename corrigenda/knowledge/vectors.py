"""`VectorFile`: float32 vectors one after the other in a file that only grows, read through a memory map.

Where a vector lies, and where the file ends, its owner knows (the database). What was written beyond that end, by a
process that was killed before its owner took note, is written over by the next one.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
import xxhash
from torch import Tensor

WIDTH = 4
"""Bytes of a number."""


class VectorFile:
    """A file of float32 numbers, little-endian.

    Args:
        path: of the file; it is made by the first `append`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mapped: np.ndarray | None = None

    def append(self, vectors: list[Tensor], end: int) -> int:
        """Writes vectors from a place on, and has them on the disk when it returns.

        One process at a time may do so; that is up to the caller.

        Args:
            vectors: (width,) each, float32.
            end: where the file ends, in numbers.

        Returns:
            where it ends now.

        Raises:
            OSError: the disk is full, or cannot be written.
        """
        content = b"".join(vector.numpy().astype("<f4", copy=False).tobytes() for vector in vectors)
        if not content:
            return end
        new = not self.path.exists()
        with self.path.open("xb" if new else "r+b") as file:
            file.seek(end * WIDTH)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if new:
            _sync_folder(self.path.parent)
        return end + len(content) // WIDTH

    def read(self, start: int, width: int) -> Tensor:
        """The vector of so many numbers that starts at a place, (width,): a view of the file until it is changed.

        Raises:
            ValueError: the file is missing, or ends before.
        """
        mapped = self._mapped
        if mapped is None or start + width > len(mapped):
            size = self.path.stat().st_size // WIDTH if self.path.exists() else 0
            if start + width > size:
                what = f"has {size} numbers where {start + width} are needed" if self.path.exists() else "is missing"
                raise ValueError(f"{self.path} {what}")
            # Copy-on-write: a tensor of it may be written to, and the file stays as it is.
            self._mapped = mapped = np.memmap(self.path, dtype="<f4", mode="c", shape=(size,))
        return torch.from_numpy(np.asarray(mapped[start : start + width]))

    def truncate(self) -> None:
        """Empties the file, and makes it if need be; memory maps of it must be of other files."""
        with self.path.open("wb"):
            pass
        _sync_folder(self.path.parent)

    def close(self) -> None:
        """Lets go of the memory map; it stays as long as there are tensors of it."""
        self._mapped = None


def checksum(*vectors: Tensor) -> str:
    """A hash of the numbers' bytes, one vector after the other."""
    digest = xxhash.xxh3_64()
    for vector in vectors:
        digest.update(vector.numpy().astype("<f4", copy=False).tobytes())
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    """Has a folder's list of files on the disk, where the system can do that."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
