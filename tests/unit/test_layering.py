import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Which of the project's other top-level packages each one may import.
MAY_IMPORT: dict[str, set[str]] = {
    "corrigenda": set(),
    "locate": {"corrigenda"},
    "editing": {"corrigenda"},
    "eval": {"corrigenda"},
    "conf": set(),
    "hydra_plugins": set(),
    "jobs": {"corrigenda", "locate", "editing", "eval"},
    "run": {"jobs"},
}
# The command's file takes the project's names from its own installation, and starts the program.
THE_COMMAND = Path("corrigenda/__main__.py")
PROJECT = {*MAY_IMPORT, "tests", "benchmarks"}

# The floors of the core, from the ground up: a file or folder imports from the floors below it, not from its own.
FLOORS: list[set[str]] = [
    {"errors", "text"},
    {"intervals", "settings"},
    {"facts"},
    {"system"},
    {"data", "indices", "prompts", "serving"},
    {"models"},
    {"forward"},
    {"edits"},
    {"language_model", "runs"},
    {"disturbance"},
    {"dictionaries", "knowledge", "linear_relations", "loading", "moments"},
    {"__init__"},
    {"__main__"},
]


parsed = functools.cache(ast.parse)
"""Of a file's source; most tests here look at all files."""


def imported_modules(source: str) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every module, or name in one, that the source imports, wherever in the file it does so.

    Relative imports are left out: they cannot leave a top-level package, and `test_imports_are_absolute` finds them.
    Importing by a name that is put together at run time is not seen; by a literal name (`import_module("eval")`) it is.
    """
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args:
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = node.args[0]
            if function in ("import_module", "__import__") and isinstance(name, ast.Constant):
                yield node.lineno, str(name.value)


def forbidden_imports(package: str, source: str) -> list[tuple[int, str]]:
    """The imports in `source`, a file of `package`, that the layering does not allow."""
    allowed = MAY_IMPORT[package] | {package}
    return [
        (line, name)
        for line, name in imported_modules(source)
        if name.partition(".")[0] in PROJECT and name.partition(".")[0] not in allowed
    ]


def sources(package: str) -> list[Path]:
    """The Python files of a top-level package or module."""
    module = ROOT / f"{package}.py"
    return [module] if module.is_file() else sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_one_way(package: str) -> None:
    files = sources(package)
    assert files, f"no Python file found for '{package}'"
    found = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in files
        for line, name in forbidden_imports(package, path.read_text(encoding="utf-8"))
        if not (path.relative_to(ROOT) == THE_COMMAND and name == "run.main")
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("package", "source", "expected"),
    [
        ("corrigenda", "import locate", ["locate"]),
        ("corrigenda", "import torch, eval.metrics as m", ["eval.metrics"]),
        ("locate", "from editing import Rome", ["editing.Rome"]),
        ("editing", "def f():\n    from eval.metrics import score", ["eval.metrics.score"]),
        ("editing", "if TYPE_CHECKING:\n    import run", ["run"]),
        ("eval", "from jobs.shared.base import start", ["jobs.shared.base.start"]),
        ("eval", "import importlib\nimportlib.import_module('locate.tracing')", ["locate.tracing"]),
        ("eval", "__import__('editing')", ["editing"]),
        ("conf", "import corrigenda", ["corrigenda"]),
        ("run", "from tests.conftest import tiny", ["tests.conftest.tiny"]),
        ("locate", "from corrigenda import load\nfrom . import plots\nfrom locate.plots import draw", []),
        ("corrigenda", "import evaluate, runpy, conftest\nfrom .eval import x\neval('1 + 1')", []),
        ("jobs", "import locate, editing, eval, corrigenda", []),
        ("jobs", "import run", ["run"]),
    ],
)
def test_the_check_itself(package: str, source: str, expected: list[str]) -> None:
    assert [name for _, name in forbidden_imports(package, source)] == expected


def floor_of(module: str) -> int:
    """The floor of a module of the core, by its full name."""
    room = module.split(".")[1] if "." in module else "__init__"
    [floor] = [number for number, rooms in enumerate(FLOORS) if room in rooms] or [-1]
    assert floor >= 0, f"{module} is on no floor: FLOORS has to say where {room!r} belongs"
    return floor


def import_graph(root: Path, packages: list[str]) -> dict[str, set[str]]:
    """For each file of the packages, as a module, the ones that it imports, for type checkers only as well."""
    files: dict[str, Path] = {}
    for package in packages:
        for path in [root / f"{package}.py"] if (root / f"{package}.py").is_file() else (root / package).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        found = [name for _, name in imported_modules(path.read_text(encoding="utf-8"))]
        # `from a import b` imports the file a.b, if there is one, else something in a.
        graph[module] = {next((n for n in (name, name.rpartition(".")[0]) if n in files), module) for name in found}
        graph[module].discard(module)
    return graph


def circle_in(graph: dict[str, set[str]]) -> list[str]:
    """A circle, each module imported by the next; empty where there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_no_files_import_each_other() -> None:
    circle = circle_in(import_graph(ROOT, list(MAY_IMPORT)))
    assert not circle, " <- ".join(circle)


def test_imports_in_the_core_point_down() -> None:
    found = [
        f"{module} imports {name}"
        for module, names in import_graph(ROOT, ["corrigenda"]).items()
        for name in sorted(names)
        if not (floor_of(name) < floor_of(module) or module.split(".")[1:2] == name.split(".")[1:2])
    ]
    assert not found, "\n".join(found)


def test_imports_are_absolute() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in MAY_IMPORT
        for path in sources(package)
        for node in ast.walk(parsed(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not found, "\n".join(found)


def test_no_two_public_classes_share_a_name() -> None:
    found: dict[str, list[str]] = {}
    for path in (path for package in MAY_IMPORT for path in sources(package)):
        for node in parsed(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1 and name != "Job"} == {}


def test_a_circle_is_found_through_types_and_packages(tmp_path: Path) -> None:
    for name, text in {
        "a/__init__": "",
        "a/one": "if TYPE_CHECKING:\n    from a.two import Two",
        "a/two": "from a import three\nclass Two: pass",
        "a/three": "def f():\n    import a.one",
        "b": "from a import one",
    }.items():
        (tmp_path / f"{name}.py").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    graph = import_graph(tmp_path, ["a", "b"])
    assert graph == {"a": set(), "a.one": {"a.two"}, "a.two": {"a.three"}, "a.three": {"a.one"}, "b": {"a.one"}}
    assert set(circle_in(graph)) == {"a.one", "a.two", "a.three"}
    (tmp_path / "a/three.py").write_text("")
    assert not circle_in(import_graph(tmp_path, ["a", "b"]))
