"""`VectorFile`: float32 vectors one after the other in a file that only grows, read through a memory map.

Where the file ends its owner knows (the database); what lies beyond, of a process that was killed, is written over. The
file begins with its owner's identity, so that no other's is read or written over.
"""

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
import xxhash
from torch import Tensor

from corrigenda.errors import ForeignFileError

WIDTH = 4
"""Bytes of a number."""
MARK = b"corr-kb3"


class VectorFile:
    """A file of float32 numbers, little-endian.

    Args:
        path: of the file; it is made by the first `append`.
        identity: of the owner, 32 hexadecimal digits; empty for a file of the time when there was none in it.
        anew: whether it begins empty, whatever is there; memory maps of it must be of other files.

    Raises:
        ForeignFileError: the file is there, and of another owner.
    """

    def __init__(self, path: Path, identity: str, anew: bool = False) -> None:
        self.path = path
        begin = MARK + bytes.fromhex(identity)
        self._header = begin + xxhash.xxh3_64_digest(begin) if identity else b""
        if anew:
            with self.path.open("wb"):
                pass
            _sync_folder(self.path.parent)
        elif identity:
            found = b""
            with suppress(FileNotFoundError), self.path.open("rb") as file:
                found = file.read(len(self._header))
            whole = len(found) == len(self._header) and xxhash.xxh3_64_digest(found[:-8]) == found[-8:]
            if whole and found != self._header:
                raise ForeignFileError(f"{path} is of another knowledge base")
        self._mapped: np.ndarray | None = None

    def append(self, vectors: list[Tensor], end: int) -> int:
        """Writes float32 vectors, (width,) each, from the place `end` on, in numbers, and gives the new end.

        They are on the disk when it returns. One process at a time may do so; that is up to the caller. Raises OSError:
        the disk is full, or cannot be written.
        """
        content = b"".join(vector.numpy().astype("<f4", copy=False).tobytes() for vector in vectors)
        if not content:
            return end
        new = not self.path.exists()
        with self.path.open("xb" if new else "r+b") as file:
            file.write(self._header)
            file.seek(len(self._header) + end * WIDTH)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if new:
            _sync_folder(self.path.parent)
        return end + len(content) // WIDTH

    def read(self, start: int, width: int) -> Tensor:
        """The vector of so many numbers that starts at a place, (width,), as its own copy.

        Raises:
            ValueError: the file is missing, or ends before.
        """
        mapped = self._mapped
        if mapped is None or start + width > len(mapped):
            try:
                size = (self.path.stat().st_size - len(self._header)) // WIDTH
                if start + width > size:
                    raise ValueError(f"{self.path} has {size} numbers where {start + width} are needed")
                mapped = np.memmap(self.path, dtype="<f4", mode="r", offset=len(self._header), shape=(size,))
            except FileNotFoundError:  # another process may have written the vectors anew just now
                raise ValueError(f"{self.path} is missing") from None
            self._mapped = mapped
        return torch.from_numpy(np.array(mapped[start : start + width]))

    def close(self) -> None:
        """Lets go of the memory map."""
        self._mapped = None


def checksum(*vectors: Tensor, about: str = "") -> str:
    """A hash of the numbers' bytes, one vector after the other, and of what they are of."""
    digest = xxhash.xxh3_64(about.encode())
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
