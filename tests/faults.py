"""Faults at every step of what a test runs: an interruption between two lines, or a tensor operation without memory."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

import corrigenda

INSIDE = (str(Path(corrigenda.__file__).parent), contextlib.__file__)
"""Where what is run may be interrupted: in this project's core, and in what its contexts are made of."""

Action = Callable[[], object]


class Interrupted:
    """Runs something that is interrupted at one step of it, as by Ctrl-C.

    Attributes:
        steps: how many steps were made.
    """

    def __init__(self, at: int, every: str = "line") -> None:
        self.steps = 0
        self._at, self._every = at, every

    def __call__(self, action: Action) -> None:
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            action()
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(INSIDE):
            return None
        frame.f_trace_opcodes = self._every == "opcode"
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == self._every:
            self.steps += 1
            if self.steps == self._at:
                raise KeyboardInterrupt  # the interpreter stops tracing: the one fault
        return self._stepped


class WithoutMemory(TorchFunctionMode):
    """Runs something of which one tensor operation fails for want of memory, or that one and all later ones.

    Attributes:
        steps: how many operations were asked for.
    """

    def __init__(self, at: int, onwards: bool = False) -> None:
        super().__init__()
        self.steps = 0
        self._at, self._onwards = at, onwards

    def __call__(self, action: Action) -> None:
        with self:
            action()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.steps += 1
        if self.steps == self._at or (self._onwards and self.steps > self._at):
            raise torch.OutOfMemoryError("no memory left")
        return function(*args, **(kwargs or {}))


Fault = Callable[[int], Interrupted | WithoutMemory]

FAULTS: dict[str, Fault] = {
    "lines": Interrupted,
    "operations": WithoutMemory,
    "operations onwards": lambda at: WithoutMemory(at, onwards=True),
}
DEEP: dict[str, Fault] = {**FAULTS, "bytecodes": lambda at: Interrupted(at, "opcode")}


def everywhere(fault: Fault, action: Action, again: Action, most: int | None = None) -> Iterator[BaseException | None]:
    """Runs something again and again, with a fault one step later each time; yields the error that came out of it.

    Args:
        fault: which.
        action: what is run.
        again: brings back what was there before it; what reads this has left what it likes.
        most: at so many steps at most, evenly; None for all.
    """
    counted = fault(sys.maxsize)
    counted(action)
    yield None
    stride = 1 if most is None else max(1, counted.steps // most)
    for at in range(1, counted.steps + 1, stride):
        again()
        try:
            fault(at)(action)
        except (KeyboardInterrupt, torch.OutOfMemoryError) as error:
            yield error
        else:
            yield None  # what was run has made less steps this time
