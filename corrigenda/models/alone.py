"""One thread at a time: hooks, edits and what forwards tell them are a model's, not a thread's."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


class OneThread:
    """A model's lock, as a context: inside it the other threads wait; one thread may enter again and again.

    A copy of a model has a lock of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @property
    def elsewhere(self) -> bool:
        """Whether another thread is inside."""
        if free := self._lock.acquire(blocking=False):
            self._lock.release()
        return not free

    def __reduce__(self) -> tuple[type[OneThread], tuple[()]]:
        return OneThread, ()


def one_thread(function: F) -> F:
    """Makes a function, or a method, hold the lock of the model that it is given (an argument with ``alone``)."""

    @functools.wraps(function)
    def alone(*args: Any, **kwargs: Any) -> Any:
        for argument in (*args, *kwargs.values()):
            if isinstance(lock := getattr(argument, "alone", None), OneThread):
                with lock:
                    return function(*args, **kwargs)
        return function(*args, **kwargs)

    return cast(F, alone)
