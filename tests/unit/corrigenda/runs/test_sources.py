import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml

import corrigenda
import editing
from corrigenda import Edit, Fact
from corrigenda.data import FactSet, embedded
from corrigenda.forward import partial
from corrigenda.moments.text import Text
from corrigenda.runs.ids import code_version, targets
from corrigenda.runs.sources import NO_FIGURES, PACKAGES, Sources
from eval import EvalSettings, evaluate

ROOT = Path(corrigenda.__file__).resolve().parents[1]
EVALUATION = ("corrigenda.load", "eval.EvalSettings", "eval.evaluate")


def file_of(thing: Any) -> str:
    return Path(inspect.getfile(thing)).resolve().relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources(ROOT)


# -- of the project


def test_an_editor_uses_its_own_files_and_no_other_editors(sources: Sources) -> None:
    rome, wise, grace = (set(sources.closure([f"editing.{name}"])) for name in ("Rome", "Wise", "Grace"))
    assert file_of(editing.Rome) in rome
    assert {file_of(editing.Grace), file_of(editing.Wise), file_of(editing.FineTune)} & rome == set()
    assert not any("wise" in name for name in rome)
    assert file_of(editing.Wise) in wise
    assert file_of(editing.Grace) not in wise
    assert file_of(editing.Rome) not in grace
    for found in (rome, wise, grace):
        assert file_of(partial) in found
        assert not any(name.startswith(("eval/", "locate/", "jobs/")) or name in PACKAGES for name in found)
        assert "editing/__init__.py" not in found  # it passes names on
        assert "corrigenda/__init__.py" not in found


def test_an_editor_that_applies_saved_edits_uses_every_kind_of_edit(sources: Sources) -> None:
    found = set(sources.closure(["editing.Saved"]))
    assert {file_of(kind) for kind in Edit.kinds.values()} <= found
    assert file_of(editing.RandomUpdate) not in set(sources.closure(["editing.NoEdit", "editing.InContext"]))


def test_a_reader_of_data_makes_no_run_new(sources: Sources) -> None:
    found = sources.closure(["jobs.edit.job", "editing.Rome", "eval.EvalSettings"])
    assert file_of(FactSet) in found
    assert "corrigenda/data/mquake.py" not in found


def test_texts_count_with_the_module_that_reads_them(sources: Sources) -> None:
    found = sources.closure(EVALUATION)
    assert file_of(embedded) in found
    assert {f"corrigenda/data/held_out_{kind}.txt" for kind in ("prose", "code", "dialogue")} <= set(found)
    assert not any("leaderboard" in name or name.startswith(("editing/", "locate/")) for name in found)
    assert "corrigenda/data/zsre.py" not in found  # what it reads has a fingerprint of its own


def test_every_configured_editor_has_files(sources: Sources) -> None:
    configured = sorted((ROOT / "conf" / "editor").glob("*.yaml"))
    assert configured
    for path in configured:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "_target_" in config:  # otherwise it changes another one's settings
            assert any(name.startswith("editing/") for name in sources.closure([config["_target_"]])), path
        assert all(sources.closure([name]) for name in targets(config)), path


def test_what_shows_figures_is_there_and_stays_out(sources: Sources) -> None:
    for name in NO_FIGURES:
        assert (ROOT / name).exists(), f"{name} was moved: say where to in NO_FIGURES"
    assert not any(name.startswith(NO_FIGURES) for name in sources.closure(["eval", "eval.leaderboard"]))


EDITORS: dict[str, Callable[[], Any]] = {
    "FineTune": lambda: editing.FineTune(layer=1, steps=2, epochs=2),
    "Grace": lambda: editing.Grace(layer=1, steps=2),
    "InContext": lambda: editing.InContext(),
    "Rome": lambda: editing.Rome(layer=1, prefix_lengths=((3, 2),), text=Text(tokens=640, length=16)),
}


@pytest.mark.parametrize("name", EDITORS)
def test_no_file_is_executed_that_does_not_count(
    sources: Sources, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path))
    lm = tiny.build("llama")
    editor = EDITORS[name]()
    facts = [Fact("Big Ben", "{} is in", "Rome", "London", paraphrases=("Big Ben stands in",))]
    executed: set[str] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            executed.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        with editor.edit(lm, facts).applied(lm):
            evaluate(lm, facts, EvalSettings(max_new_tokens=2, perplexity_windows=3, perplexity_window=16))
    finally:
        sys.setprofile(None)
    ours = {Path(path).resolve() for path in executed if not path.startswith("<")}
    names = {path.relative_to(ROOT).as_posix() for path in ours if path.is_relative_to(ROOT)}
    names = {path for path in names if path.startswith(tuple(f"{package}/" for package in PACKAGES))}
    found = set(sources.closure([f"editing.{name}", *EVALUATION]))
    assert file_of(type(editor)) in names
    assert names - found - {path for path in names if path.startswith(NO_FIGURES)} == set()


# -- of made-up files


def write(root: Path, files: dict[str, str]) -> Sources:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Sources(root)


FILES = {
    "corrigenda/__init__.py": "from corrigenda.facts import Fact\nfrom corrigenda.heavy import Heavy as Weight\n",
    "corrigenda/facts.py": '"""corrigenda.heavy"""\nTEXT = "held_out.txt"\n',
    "corrigenda/held_out.txt": "some text",
    "corrigenda/heavy.py": "from corrigenda.runs.store import x\n",
    "corrigenda/runs/store.py": "import corrigenda.shown\n",
    "corrigenda/shown.py": "",
    "corrigenda/late.py": "",
    "editing/__init__.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from editing.b import B\n"
        "from .a import A\nALL = {'b': 'editing.b:B'}\n"
    ),
    "editing/a.py": (
        "from __future__ import annotations\nimport typing\nfrom corrigenda import Fact\nfrom . import steps\n"
        "if typing.TYPE_CHECKING:\n    from corrigenda import Weight\n"
        "def f():\n    from corrigenda import late\n"
    ),
    "editing/b.py": "import corrigenda.heavy\nGROUP = 'corrigenda.editors'\n",
    "editing/steps.py": "",
    "eval/__init__.py": "",
    "eval/metrics/__init__.py": "import pkgutil\nALL = list(pkgutil.iter_modules(__path__))\n",
    "eval/metrics/one.py": "",
    "eval/measure.py": "from eval import metrics\n",
    "eval/broken.py": "def half(\n",
    "eval/registry.py": "CLASSES = {'b': 'editing.B', 'all': 'editing.ALL'}\n",
}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("editing.A", "corrigenda/facts.py corrigenda/held_out.txt corrigenda/late.py editing/a.py editing/steps.py"),
        ("editing.a", "corrigenda/facts.py corrigenda/held_out.txt corrigenda/late.py editing/a.py editing/steps.py"),
        ("editing.B", "corrigenda/heavy.py editing/b.py"),
        ("editing.b:B", "corrigenda/heavy.py editing/b.py"),
        ("corrigenda.Weight", "corrigenda/heavy.py"),
        (
            "editing.ALL",
            "corrigenda/facts.py corrigenda/heavy.py corrigenda/held_out.txt corrigenda/late.py editing/__init__.py "
            "editing/a.py editing/b.py editing/steps.py",
        ),
        ("eval.measure", "eval/measure.py eval/metrics/__init__.py eval/metrics/one.py"),
        ("eval.broken.half", "eval/broken.py"),
        (
            "eval.registry",
            "corrigenda/facts.py corrigenda/heavy.py corrigenda/held_out.txt corrigenda/late.py editing/__init__.py "
            "editing/a.py editing/b.py editing/steps.py eval/registry.py",
        ),
        ("corrigenda.runs.store", ""),
        ("torch.nn.Module", ""),
    ],
)
def test_closures(tmp_path: Path, entry: str, expected: str) -> None:
    assert write(tmp_path, FILES).closure([entry]) == expected.split()


def test_a_change_counts_where_it_is_used(tmp_path: Path) -> None:
    def version(*entry: str) -> str:
        return code_version(tmp_path, entry)

    write(tmp_path, FILES)
    a, b, every = version("editing.A"), version("editing.B"), version()
    assert len({a, b, every}) == 3
    assert version("editing.A", "editing.B") not in (a, b)
    write(tmp_path, {"editing/b.py": FILES["editing/b.py"] + "x = 1\n"})
    assert version("editing.A") == a
    assert version("editing.B") != b
    assert version() != every
    write(tmp_path, {"corrigenda/held_out.txt": "another text"})
    assert version("editing.A") != a
    write(tmp_path, FILES | {"corrigenda/runs/store.py": "x = 2"})
    assert (version("editing.A"), version("editing.B"), version()) == (a, b, every)


def test_a_file_that_was_changed_before_it_was_read_is_not_taken_for_another(tmp_path: Path) -> None:
    """What this process runs is the file as it was: its content is gone, but it must not pass for the new one."""
    begun = write(tmp_path, FILES)
    old = code_version(tmp_path, ["editing.A"])
    write(tmp_path, {"editing/steps.py": "changed = True\n"})
    assert begun.version(["editing.A"]) not in (old, code_version(tmp_path, ["editing.A"]))
    (tmp_path / "editing/steps.py").unlink()
    begun.version(["editing.B"])
    assert begun.version(["editing.A"]) == begun.version(["editing.A"])


@pytest.mark.parametrize("module", ["their_editor", "their_folder.their_editor"])  # the folder has no __init__.py
def test_an_editor_from_outside_counts_by_its_own_file(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    path, mine = tmp_path / f"{module.replace('.', '/')}.py", f"{module}.Mine"
    path.parent.mkdir(exist_ok=True)
    path.write_text("from editing import Grace\nclass Mine(Grace): pass\n")
    first = code_version(entry=[mine])
    assert first == code_version(entry=[mine]) != code_version(entry=["editing.Grace"])
    assert file_of(editing.Grace) in Sources(ROOT).closure([mine])
    path.write_text("from editing import Grace\nclass Mine(Grace): x = 1\n")
    assert code_version(entry=[mine]) != first


def test_an_editor_that_its_package_passes_on_counts_by_the_file_that_defines_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "their_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("from their_package.mine import Mine\n")
    (folder / "mine.py").write_text("from editing import Grace\nclass Mine(Grace): pass\n")
    first = code_version(entry=["their_package.Mine"])
    assert file_of(editing.Grace) in Sources(ROOT).closure(["their_package.Mine"])
    (folder / "mine.py").write_text("from editing import Grace\nclass Mine(Grace): x = 1\n")
    assert code_version(entry=["their_package.Mine"]) != first


def test_targets_at_any_depth() -> None:
    config = {"_target_": "b.B", "text": {"_target_": "a.A", "n": 1}, "many": [{"_target_": "c.C"}, 3, None]}
    assert targets(config) == ("a.A", "b.B", "c.C")
    assert targets({"layer": 3}) == targets("x") == ()
