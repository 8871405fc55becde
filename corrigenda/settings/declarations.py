"""Classes that declare themselves by a decorator, found without importing them, and paths to classes."""

import ast
import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType


def declared_classes(root: Path, paths: Iterable[Path]) -> dict[str, str]:
    """The dotted path of each class with ``@register("name", ...)`` above it in some files, by that name."""
    declared = {}
    for path in sorted(paths):
        source = path.read_text(encoding="utf-8")
        if "\n@register(" not in source:
            continue
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for node in ast.parse(source).body:
            for mark in node.decorator_list if isinstance(node, ast.ClassDef) else ():
                match mark:
                    case ast.Call(func=ast.Name(id="register"), args=[ast.Constant(value=str(name)), *_]):
                        declared[name] = f"{module}.{node.name}"  # type: ignore[attr-defined]
    return declared


def module_named(name: str, asked: str) -> ModuleType:
    """The module that a user names; `asked` is what asked for it. Raises ValueError: there is none."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the file is there, and something that it imports is not
        raise ValueError(f"{asked}: there is no module {error.name!r}; is its folder on PYTHONPATH?") from None


def class_at(path: str) -> type:
    """The class with a dotted path."""
    module, _, name = path.rpartition(".")
    found: type = getattr(importlib.import_module(module), name)
    return found


def exported(cls: type) -> str:
    """The shortest path by which a class can be imported: from the topmost package that exports it."""
    parts = cls.__module__.split(".")
    packages = (".".join(parts[:length]) for length in range(1, len(parts)))
    package = next((name for name in packages if getattr(sys.modules.get(name), cls.__name__, None) is cls), None)
    return f"{cls.__module__}.{cls.__qualname__}" if package is None else f"{package}.{cls.__name__}"
