"""Packages whose names are loaded when they are first used, so that importing the package itself is quick (PEP 562).

Such a package says what it exports, and from where, once: in the ``if TYPE_CHECKING:`` block of its ``__init__.py``,
which type checkers and editors read as well:

    if TYPE_CHECKING:
        from package.file import Name as Name

    __all__ = lazily(__name__)
"""

import ast
import importlib
import pkgutil
import sys
from types import ModuleType
from typing import Any


class _LazyPackage(ModuleType):
    """A package that loads its names when they are asked for."""

    _homes: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        home = self.__dict__["_homes"].get(name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Python sets a package's attribute to each submodule that it imports; where the package exports a function of
        # that name (`eval.measure`), the name stays the function's.
        if not (isinstance(value, ModuleType) and name in self.__dict__["_homes"]):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__dict__["_homes"]})


def lazily(package: str) -> list[str]:
    """Makes a package lazy, in its ``__init__.py``; gives what it exports, for ``__all__``."""
    source = pkgutil.get_data(package, "__init__.py")
    assert source is not None, f"{package} is no package with a source"
    homes = {
        name.name: str(statement.module)
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for name in statement.names
    }
    module = sys.modules[package]
    module.__dict__["_homes"] = homes
    module.__class__ = _LazyPackage
    return sorted(homes)
