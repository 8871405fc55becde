import importlib
from pathlib import Path

from corrigenda import errors

ROOT = Path(__file__).parents[3]
OWN = {"ReachedError"}
"""Raised and caught inside, never seen."""


def test_every_error_is_of_one_base() -> None:
    for package in ("corrigenda", "editing", "locate", "eval", "jobs"):
        for path in (ROOT / package).rglob("*.py"):
            if "Error(" not in path.read_text(encoding="utf-8"):
                continue
            module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
            for name, cls in vars(module).items():
                if getattr(cls, "__module__", "") == module.__name__ and isinstance(cls, type) and name not in OWN:
                    assert not issubclass(cls, Exception) or issubclass(cls, errors.CorrigendaError), name


def test_each_is_a_built_in_error_too() -> None:
    children = errors.CorrigendaError.__subclasses__()
    assert len(children) >= 15
    for child in children:
        assert any(base.__module__ == "builtins" and base is not object for base in child.__mro__[2:-3]), child
