"""A script of a folder beside the packages (docs/reports, benchmarks), imported for one test."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def script(name: str, folder: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as when it is started: it and its neighbours are imported anew. After the test all is as before.

    Folders have scripts of the same names, and a test that left its own behind would hand them to the next one.
    """
    for path in (ROOT / folder).glob("*.py"):
        monkeypatch.setitem(sys.modules, path.stem, ModuleType(path.stem))  # what was there, or nothing, comes back
        del sys.modules[path.stem]
    monkeypatch.syspath_prepend(str(ROOT / folder))
    return importlib.import_module(name)
