"""How far something is that takes longer than a moment: on standard error, a bar on a terminal, and elsewhere lines.

Lines come at the start and the end, and every half minute between, with the time left; they are never broken. Who shows
it elsewhere (a page) listens: `heard`.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import track as _track

from corrigenda.text.display import printable

T = TypeVar("T")

QUIET_SECONDS = 1.0
"""Where there is no terminal, how long something may take without a word."""
LINE_SECONDS = 30.0
"""And how long it is until each further line."""

Hear = Callable[[str, int, "int | None"], None]
"""Is told what is done, how many items are finished, and of how many; None where that is not known."""
_HEARS: ContextVar[Hear | None] = ContextVar("hears", default=None)


@contextmanager
def heard(by: Hear) -> Iterator[None]:
    """In the block, and in this thread, tells also `by` how far it is."""
    token = _HEARS.set(by)
    try:
        yield
    finally:
        _HEARS.reset(token)


def _passed_on(items: Iterable[T], description: str, total: int | None, hear: Hear) -> Iterator[T]:
    for number, item in enumerate(items):
        hear(description, number, total)
        yield item


def track(items: Iterable[T], description: str, bar: bool = True, total: int | None = None) -> Iterable[T]:
    """The items, one after another; says how far it is, with a bar on a terminal and a line now and then elsewhere.

    No `bar` where another one is open; `total` where the items are no sequence.
    """
    total = len(items) if isinstance(items, Sized) else total
    if (hear := _HEARS.get()) is not None:
        items = _passed_on(items, description, total, hear)
    console = Console(stderr=True)
    if console.is_terminal:
        return _track(items, escape(printable(description)), total, console=console, transient=True) if bar else items
    return _lines(items, description, total)


def _lines(items: Iterable[T], description: str, total: int | None) -> Iterator[T]:
    with _told(description, total) as told:
        for item in items:
            yield item
            told.done += 1


@contextmanager
def stage(description: str, at_once: bool = True, bar: bool = True) -> Iterator[None]:
    """Says what is done in the block, which cannot say how far it is: a spinner on a terminal, elsewhere lines.

    The first line comes `at_once`, or only if it takes longer than a moment. No `bar` where another one is open.
    """
    if (hear := _HEARS.get()) is not None:
        hear(description, 0, None)
    console = Console(stderr=True)
    if not console.is_terminal:
        with _told(description, at_once=at_once):
            yield
    elif bar:
        with console.status(escape(printable(description))):
            yield
    else:
        yield


def line(text: str) -> None:
    """Writes one line to standard error, however long it is."""
    Console(stderr=True).print(printable(text), markup=False, highlight=False, soft_wrap=True)


def how_far(done: int, total: int, seconds: float) -> str:
    """How far something is, in words: what is done, and the time that is left if the rest takes as long."""
    text = f"{done} of {total}, {seconds:.0f} s"
    return f"{text}, about {seconds / done * (total - done):.0f} s left" if 0 < done < total else text


def counted(number: int, what: str) -> str:
    """A number of things in words: 1 fact, 2 facts."""
    return f"{number} {what}{'s' * (number != 1)}"


@contextmanager
def now_and_then(say: Callable[[float], None]) -> Iterator[None]:
    """Calls `say` every half minute while the block runs, from another thread, with the seconds that it has run."""
    begin = time.monotonic()
    with _ticking(lambda: say(time.monotonic() - begin), LINE_SECONDS):
        yield


class _Told:
    """What is said of one piece of work where there is no terminal."""

    def __init__(self, description: str, total: int | None) -> None:
        self.description, self.total = description, total
        self.done = 0
        self.begun = False
        self._begin = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def tick(self) -> None:
        """The first line, or a further one."""
        if not self.begun:
            self.begun = True
            line(self.description)
        elif self.total is None:
            line(f"{self.description}: {self.seconds:.0f} s")
        else:
            line(f"{self.description}: {how_far(self.done, self.total, self.seconds)}")


@contextmanager
def _told(description: str, total: int | None = None, at_once: bool = False) -> Iterator[_Told]:
    told = _Told(description, total)
    if at_once:
        told.tick()
    with _ticking(told.tick, LINE_SECONDS if at_once else QUIET_SECONDS):
        yield told
    if told.begun:
        line(f"{description}: done in {told.seconds:.0f} s")


@contextmanager
def _ticking(tick: Callable[[], None], first: float) -> Iterator[None]:
    """Calls `tick` from another thread while the block runs: after the first so many seconds, then every half minute.

    From a thread, for a single step of the work may take minutes.
    """
    stop = threading.Event()

    def run() -> None:
        wait = first
        while not stop.wait(wait):
            tick()
            wait = LINE_SECONDS

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
