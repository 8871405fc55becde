"""Locks between processes that the system takes away when a process ends, however it ends.

They are advisory locks on files (flock). On a network file system they work between machines if it passes them on, as
NFS 4 and Lustre (mounted with ``flock``) do.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 2.0
"""Seconds that a lock is asked for: somebody may just be looking whether it is taken."""


class LockedError(RuntimeError):
    """Another live process holds the lock."""


@contextmanager
def locked(path: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Holds a lock; its file is made if need be, and stays.

    Raises:
        LockedError: another process (or another part of this one) holds it and does not let go.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        deadline = time.monotonic() + patience
        while not _try(handle, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise LockedError(f"{path} is held by another process")
            time.sleep(0.02)
        yield
    finally:
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether a live process holds the lock."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _try(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def _try(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
