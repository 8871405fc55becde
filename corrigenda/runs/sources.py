"""`Sources`: which of the project's files a computation uses, read from the imports and not from what was imported.

A package's ``__init__.py`` that only passes names on (``from editing import Rome``) stands for the file that defines
the name, and not for all that it passes on. Imports for type checkers alone do not count. What no import shows counts
by the texts in a file: the dotted name of a module or of a class in it, and the name of a data file of the project,
such as "held_out.txt". A file that asks which modules its package has (`pkgutil.iter_modules`) uses them all.
"""

import ast
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("corrigenda", "editing", "eval", "jobs", "locate")

# Files that show results but do not make them, and readers of data, whose outcome the fingerprint of the facts tells:
# a change there makes no run out of date.
NO_FIGURES = (
    "corrigenda/__main__.py",
    "corrigenda/data/counterfact.py",
    "corrigenda/data/csv_records.py",
    "corrigenda/data/fields.py",
    "corrigenda/data/knowedit.py",
    "corrigenda/data/known_facts.py",
    "corrigenda/data/mquake.py",
    "corrigenda/data/parts.py",
    "corrigenda/data/plain.py",
    "corrigenda/data/probes.py",
    "corrigenda/data/qaedit.py",
    "corrigenda/data/read.py",
    "corrigenda/data/repository.py",
    "corrigenda/data/ripple_edits.py",
    "corrigenda/data/schemas.py",
    "corrigenda/data/source.py",
    "corrigenda/data/wikibigedit.py",
    "corrigenda/data/zsre.py",
    "corrigenda/intervals.py",
    "corrigenda/system/plain_data.py",
    "corrigenda/system/progress.py",
    "corrigenda/runs/folder.py",
    "corrigenda/runs/ids.py",
    "corrigenda/runs/locks.py",
    "corrigenda/runs/records.py",
    "corrigenda/runs/sources.py",
    "corrigenda/runs/store.py",
    "corrigenda/runs/trackers.py",
    "eval/leaderboard",
    "eval/statistics",
)

_DOTTED = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:[.:][A-Za-z_]\w*)+")


class Sources:
    """The project's files under a root as they are now; those that change later are known by what they were.

    Nothing is read before it is asked for. The time and the size of each file are noted at once, so that a file that
    was changed before it was read is never taken for the one that this process runs.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stamps = {path.relative_to(root).as_posix(): _stamp(path) for path in _files(root)}
        self._data: dict[str, list[str]] = {}
        for name in self._stamps:
            if not name.endswith((".py", "py.typed")):
                self._data.setdefault(name.rpartition("/")[2], []).append(name)
        self._contents: dict[str, bytes] = {}
        self._trees: dict[str, ast.Module] = {}
        self._used: dict[str, frozenset[str]] = {}

    def closure(self, entry: Iterable[str]) -> list[str]:
        """The files that modules, or what is defined in them, use, by dotted names; relative to the root, sorted.

        What is not of the project has no file here, and no file that uses it says so.
        """
        entry = tuple(entry)
        waiting = {file for name in entry for file in self._defining(name.replace(":", "."))}
        for name in entry:
            for path in _outside(name):
                waiting |= self._uses_of(ast.parse(path.read_bytes()), "")
        found: set[str] = set()
        while waiting:
            file = waiting.pop()
            if file not in found and not file.startswith(NO_FIGURES):
                found.add(file)
                waiting |= self._uses(file)
        return sorted(found)

    def version(self, entry: Iterable[str] = ()) -> str:
        """A hash, 16 hex digits, of the files that some modules use; without `entry`, of all that make figures.

        Of a name outside the project its own file counts, or its package's, and what these use of the project.
        """
        entry = tuple(entry)
        names = self.closure(entry) or [name for name in sorted(self._stamps) if not name.startswith(NO_FIGURES)]
        digest = hashlib.sha256()
        for name in names:
            digest.update(f"{name}\0".encode() + self._content(name) + b"\0")
        for name in sorted(set(entry)):
            for path in _outside(name):
                digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
        return digest.hexdigest()[:16]

    def _content(self, name: str) -> bytes:
        """What a file held when this object was made; of one that was changed before it was read, what tells it."""
        if name not in self._contents:
            path = self._root / name
            content = path.read_bytes() if path.is_file() else b""
            changed = _stamp(path) != self._stamps[name]
            self._contents[name] = f"as of {self._stamps[name]}".encode() if changed else content
        return self._contents[name]

    def _tree(self, name: str) -> ast.Module:
        if name not in self._trees:
            path = self._root / name
            self._trees[name] = ast.Module([], [])
            with suppress(SyntaxError):  # somebody is at work on it: what this process runs was another file
                self._trees[name] = ast.parse(path.read_bytes() if path.is_file() else b"")
        return self._trees[name]

    def _uses(self, file: str) -> frozenset[str]:
        if file not in self._used:
            found = self._uses_of(self._tree(file), file) if file.endswith(".py") else frozenset()
            self._used[file] = found
        return self._used[file]

    def _uses_of(self, tree: ast.Module, file: str) -> frozenset[str]:
        """The files that a module names; `file` is its own, for imports relative to it."""
        found: set[str] = set()
        for node in _running(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    found |= self._defining(alias.name)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    found |= self._defining(_absolute(node, file), alias.name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.update(self._data.get(node.value.rpartition("/")[2], ()))
                if _DOTTED.fullmatch(node.value):
                    found |= self._meant(node.value.replace(":", "."))
            elif _name(node) in ("iter_modules", "walk_packages"):
                folder = file.rpartition("/")[0] + "/"
                found.update(name for name in self._stamps if name.startswith(folder) and name.endswith(".py"))
        return frozenset(found)

    def _defining(self, module: str, name: str | None = None) -> set[str]:
        """The file of a module, or of what a module calls by a name."""
        if name is not None and (submodule := self._file(f"{module}.{name}")):
            return {submodule}
        file = self._file(module)
        if file is None:
            outer, _, last = module.rpartition(".")
            return self._defining(outer, last) if outer and name is None else set()
        if name is not None and file.endswith("/__init__.py"):
            passed_on = _passed_on(self._tree(file), file)
            if name in passed_on:
                return self._defining(*passed_on[name])
        return {file}

    def _meant(self, text: str) -> set[str]:
        """The file of what a text names; none where it only looks like a name, as "corrigenda.editors" does."""
        package, _, name = text.rpartition(".")
        file = self._file(package)
        if self._file(text) is None and file is not None and file.endswith("/__init__.py"):
            tree = self._tree(file)
            if name not in _passed_on(tree, file) and name not in map(_name, ast.walk(tree)):
                return set()
        return self._defining(text)

    def _file(self, module: str) -> str | None:
        path = module.replace(".", "/")
        return next((name for name in (f"{path}.py", f"{path}/__init__.py") if name in self._stamps), None)


def _files(root: Path) -> Iterator[Path]:
    for package in PACKAGES:
        for place, folders, names in os.walk(root / package):
            folders[:] = [name for name in folders if name != "__pycache__"]
            yield from (Path(place, name) for name in names if not name.endswith(".pyc"))


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return (0, 0, 0)
    return (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def _running(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a module without what only a type checker reads, and without what documents it."""
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            nodes += node.orelse
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            nodes += ast.iter_child_nodes(node)


def _name(node: ast.AST) -> str:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return node.name
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _passed_on(tree: ast.Module, file: str) -> dict[str, tuple[str, str]]:
    """By the name in a package: the module that it is taken from, and its name there."""
    return {
        alias.asname or alias.name: (_absolute(node, file), alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _absolute(node: ast.ImportFrom, file: str) -> str:
    if not node.level:
        return node.module or ""
    package = file.split("/")[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def _outside(name: str) -> list[Path]:
    """The file of a class that is not of the project: the innermost module of its dotted name that there is.

    Of a package, which may pass on what its modules define, all files that lie in its folder.
    """
    parts = re.split(r"[.:]", name)
    found: list[Path] = []
    if parts[0] not in PACKAGES:
        with suppress(ImportError, ValueError):
            for length in range(1, len(parts) + 1):
                spec = find_spec(".".join(parts[:length]))
                if spec is None:
                    break
                if spec.origin is not None:  # a folder without an __init__.py has no file of its own
                    file = Path(spec.origin)
                    found = [file] if spec.submodule_search_locations is None else sorted(file.parent.glob("*.py"))
                if spec.submodule_search_locations is None:
                    break
    return found
