"""What the tests of malformed input share: damage to a folder's files, and what an answer has to be."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
Damage = Callable[[Path], object]
Case = tuple[Callable[[T], object], type[Exception], str]
"""What is done (to a folder, with a model), the error, and what it says."""


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    """The message, which has to be one line."""
    said = str(error.value)
    assert said
    assert "\n" not in said
    return said


def refused(error: type[BaseException], says: str, call: Callable[..., object], *given: Any, **named: Any) -> None:
    """A call is answered with an error whose message, of one line, has what it says."""
    with pytest.raises(error, match=says) as caught:
        call(*given, **named)
    one_line(caught)


def changed_json(name: str, change: Callable[[dict[str, Any]], object]) -> Damage:
    def changed(folder: Path) -> None:
        value = json.loads((folder / name).read_text())
        change(value)
        (folder / name).write_text(json.dumps(value))

    return changed


def cut(name: str, keep: int) -> Damage:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])


def written(name: str, text: str) -> Damage:
    return lambda folder: (folder / name).write_text(text)
