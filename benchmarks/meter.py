"""Seconds and the most memory of the parts of a run, for `sizes.py`."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


class Meter:
    """Seconds and the most memory of the parts of a run; a part inside another is not counted in that one."""

    def __init__(self) -> None:
        self.parts: dict[str, dict[str, float]] = {}
        self._open: list[str] = []
        self._since = time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measures what runs inside the block; several blocks of one name are added up."""
        self._note()
        self._open.append(name)
        try:
            yield
        finally:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self._note()
            self._open.pop()
            print(f"  {name}: {self.parts[name]}", file=sys.stderr)

    def within(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function whose calls are measured as a part."""

        def measured(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return call(*args, **kwargs)

        return measured

    def _note(self) -> None:
        now = time.perf_counter()
        if self._open:
            so_far = self.parts.setdefault(self._open[-1], {"seconds": 0.0})
            so_far["seconds"] = round(so_far["seconds"] + now - self._since, 3)
            peak = _peak_since_reset()
            if peak is not None:
                so_far["memory_mb"] = round(max(so_far.get("memory_mb", 0.0), peak))
        _reset_peak()
        self._since = time.perf_counter()


def _reset_peak() -> None:
    """Lets the most memory held count from now on, where the system can do that."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    counter = Path("/proc/self/clear_refs")
    if counter.exists():
        counter.write_text("5", encoding="ascii")


def _peak_since_reset() -> float | None:
    """MiB; None where the system tells only the peak of the whole process."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    [line] = [line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024
