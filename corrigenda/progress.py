"""How far something is that takes longer than a few seconds: on standard error, a bar, or a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import track as _track

T = TypeVar("T")

QUIET_SECONDS = 10.0
"""Where there is no terminal, how long the first line is waited for."""
LINE_SECONDS = 30.0
"""And how long each further one."""


def track(items: Sequence[T], description: str) -> Iterable[T]:
    """The items, one after another; says how far it is, with a bar on a terminal and a line now and then elsewhere."""
    console = Console(stderr=True)
    if console.is_terminal:
        return _track(items, description, console=console, transient=True)
    return _lines(items, description, console)


def _lines(items: Sequence[T], description: str, console: Console) -> Iterator[T]:
    begin = time.monotonic()
    due = begin + QUIET_SECONDS
    for done, item in enumerate(items):
        now = time.monotonic()
        if now >= due:
            due = now + LINE_SECONDS
            text = f"{description}: {done} of {len(items)}, {now - begin:.0f} s"
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        yield item


@contextmanager
def stage(description: str) -> Iterator[None]:
    """Says what is done in the block, which cannot say how far it is: a spinner on a terminal, elsewhere a line."""
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(description):
            yield
    else:
        console.print(description, markup=False, highlight=False, soft_wrap=True)
        yield
