"""Locks between processes that the system takes away when a process ends, however it ends.

They are `filelock`'s locks on files (flock, or its counterpart on Windows). On a network file system they work between
machines if it passes them on, as NFS 4 and Lustre (mounted with ``flock``) do.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from corrigenda.errors import LockedError

PATIENCE = 2.0
"""Seconds that a lock is asked for: somebody may just be looking whether it is taken."""

LOOKING_TAKES = 0.1
"""Seconds after which a lock that cannot be had is held by a writer, not by somebody else who looks."""

_POLL = 0.01


@contextmanager
def locked(path: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Holds a lock; its file is made if need be, and stays.

    Raises:
        LockedError: another process (or another part of this one) holds it and does not let go.
        OSError: its file cannot be made, or the file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=patience, poll_interval=_POLL)
    except Timeout:
        raise LockedError(f"{path} is held by another process; wait until it ends") from None
    except OSError as error:
        if error.filename is None:  # the system says why, and not of what
            error.filename = str(path)
        raise
    try:
        yield
    finally:
        lock.release()


def is_locked(path: Path) -> bool:
    """Whether a live process holds the lock; no file is made.

    The lock is taken for an instant. Who may not write the file (another user's, a read-only disk) cannot take it: for
    them it is not held, and they cannot go on with what it guards either.
    """
    if not path.is_file():
        return False
    try:
        with locked(path, LOOKING_TAKES):
            return False
    except LockedError:
        return True
    except OSError:
        return False
