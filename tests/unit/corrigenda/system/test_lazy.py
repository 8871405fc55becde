import importlib
import sys
from pathlib import Path

import pytest


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One that exports two names of a file, one of them the name of the file."""
    folder = tmp_path / "lazy_toy"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from corrigenda.system.lazy import lazily\n"
        "if TYPE_CHECKING:\n"
        "    from lazy_toy.measure import measure as measure\n"
        "    from lazy_toy.measure import SIZE as SIZE\n"
        "__all__ = lazily(__name__)\n"
    )
    (folder / "measure.py").write_text("SIZE, LENGTH = 3, 4\ndef measure(): return SIZE\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "lazy_toy"
    for name in [name for name in sys.modules if name.startswith("lazy_toy")]:
        del sys.modules[name]


def test_names_come_when_they_are_used(package: str) -> None:
    toy = importlib.import_module(package)
    assert "lazy_toy.measure" not in sys.modules
    assert toy.__all__ == ["SIZE", "measure"]
    assert {"SIZE", "measure", "__name__"} <= set(dir(toy))
    assert toy.SIZE == 3
    assert "lazy_toy.measure" in sys.modules
    with pytest.raises(AttributeError, match="module 'lazy_toy' has no attribute 'weigh'"):
        toy.weigh  # noqa: B018
    assert not hasattr(toy, "LENGTH")


def test_a_function_keeps_its_name_beside_a_file_of_that_name(package: str) -> None:
    importlib.import_module("lazy_toy.measure")  # Python sets lazy_toy.measure to the file
    namespace: dict[str, object] = {}
    exec("from lazy_toy import *", namespace)
    assert namespace["measure"]() == namespace["SIZE"] == 3  # type: ignore[operator]


@pytest.mark.parametrize("name", ["corrigenda", "eval", "locate"])
def test_all_that_is_exported_is_there(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__all__
    for exported in module.__all__:
        assert not isinstance(getattr(module, exported), type(sys))
