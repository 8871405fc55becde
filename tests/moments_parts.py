"""What the tests of moments share: a text, calls that are noted or interrupted, another cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from corrigenda.moments.text import Text

TEXT = Text("self", tokens=600, length=12)


def noted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, after: int | None = None) -> list[tuple[Any, ...]]:
    """The arguments of the calls of a module's function from here on; in place of call number `after` comes Ctrl-C."""
    calls: list[tuple[Any, ...]] = []
    whole = getattr(module, name)

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        if len(calls) == after:
            raise KeyboardInterrupt
        calls.append(args)
        return whole(*args, **kwargs)

    monkeypatch.setattr(module, name, stand_in)
    return calls


@contextmanager
def elsewhere(folder: Path) -> Iterator[None]:
    """Inside the block the cache is another folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CORRIGENDA_CACHE", str(folder))
        yield
