import importlib.metadata
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import hydra
import pytest
import tiny
import torch
from composed import CONF, composed
from hydra.core.global_hydra import GlobalHydra

import editing
from corrigenda import Fact, LanguageModel, LowRankEdit
from editing import FineTune, Rome, editor_class
from editing.registry import EDITORS, EditorRegistry, declaration, presets

TOY = '''
from dataclasses import dataclass
from typing import ClassVar

import torch

from corrigenda import LowRankEdit, Origin


@dataclass(frozen=True)
class Toy:
    """Adds a constant to the values of a layer."""

    name: ClassVar[str] = "toy"
    layer: int = 1
    size: float = 0.5

    def edit(self, lm, facts):
        memory = lm.memory(self.layer)
        factors = torch.full((memory.d_ffn, 1), self.size), torch.ones(1, memory.d_model)
        return LowRankEdit.of(lm, Origin.of(lm, self, facts), {self.layer: factors})
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """One file with an editor, in a folder outside the repository from which Python imports."""
    (tmp_path / "toy_editor_file.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(EDITORS, "_found", dict(EDITORS._found))  # what a test registers is gone after it
    yield tmp_path
    GlobalHydra.instance().clear()


def test_names_are_those_of_declarations_and_presets() -> None:
    assert {"rome", "memit", "wise_whitened", "none"} <= set(EDITORS.declared)
    assert set(presets()) == {path.stem for path in (CONF / "editor").glob("*.yaml")}
    assert len(EDITORS) == len(list(EDITORS)) == len(EDITORS.declared) + len(presets())


@pytest.mark.parametrize("name", EDITORS.declared)
def test_an_editor_says_what_it_is_for(name: str) -> None:
    said = declaration(EDITORS[name])
    assert said.name == name
    assert said.aim
    assert said.paper or name in ("none", "in_context", "random", "saved", "scoped")


@pytest.mark.parametrize("name", list(EDITORS))
def test_every_name_stands_for_a_class(name: str) -> None:
    found = EDITORS[name]
    assert inspect.isclass(found)
    assert callable(found.edit)
    assert found.name == EDITORS.base(name)
    assert editor_class(name) is found


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("roem", "did you mean rome"),
        ("fine_tune", "did you mean finetune"),
        ("FT_M", ""),
        ("wise_whitened_retreive", "wise_whitened_ret"),
    ],
)
def test_a_name_that_no_editor_has(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=f"editor={name}: there is no such editor") as error:
        editor_class(name)
    assert nearest in str(error.value)
    assert "The editors are adalora, " in str(error.value)
    with pytest.raises(KeyError):
        EDITORS[name]
    assert name not in EDITORS
    assert EDITORS.get(name) is None


def test_the_package_exports_what_it_did() -> None:
    assert {"EDITORS", "Editor", "EditRefusedError", "Rome", "ValueSettings", "Unrelated", "prepare"} <= set(
        dir(editing)
    )
    for name in editing.__all__:
        assert getattr(editing, name) is not None
    with pytest.raises(AttributeError, match="Nothing"):
        _ = editing.Nothing


# -- from outside the package


def test_an_editor_from_outside_is_one_file(toy: Path) -> None:
    from toy_editor_file import Toy

    for _ in range(2):  # once more is no matter
        assert editing.register("toy")(Toy) is Toy
    assert "toy" in EDITORS
    assert EDITORS["toy"] is editor_class("toy") is Toy
    assert "toy" in list(EDITORS)
    edit = EDITORS["toy"]().edit(tiny.build("llama"), [Fact("Rome", "{} is in", "France")])  # type: ignore[call-arg]
    assert isinstance(edit, LowRankEdit)
    assert torch.equal(edit.delta(1), torch.full((48, tiny.WIDTH), 0.5))
    with pytest.raises(ValueError, match="did you mean toy"):
        editor_class("toyy")


def test_what_cannot_be_registered(toy: Path) -> None:
    with pytest.raises(ValueError, match=r"'rome' is registered already, as Rome"):
        editing.register("rome")(FineTune)
    with pytest.raises(ValueError, match=r"'ft_l' is registered already"):
        editing.register("ft_l")(Rome)
    with pytest.raises(TypeError, match="no method edit"):
        editing.register("number")(int)  # type: ignore[type-var]
    assert EDITORS["rome"] is Rome


def test_an_installed_package_names_its_editor(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        SimpleNamespace(name="toy", value="toy_editor_file:Toy"),
        SimpleNamespace(name="rome", value="toy_editor_file:Toy"),  # ours is not hidden
    ]
    asked: list[str] = []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: (asked.append(group), points)[1])
    registry = EditorRegistry()
    assert registry["toy"].__name__ == "Toy"
    assert registry["rome"] is Rome
    assert asked == ["corrigenda.editors"]  # looked for once


def test_on_the_command_line_it_takes_one_configuration(lm: LanguageModel, toy: Path) -> None:
    (toy / "editor").mkdir()
    (toy / "editor" / "toy.yaml").write_text("_target_: toy_editor_file.Toy\nlayer: 2\n")
    touched = sorted(path.name for path in toy.rglob("*") if path.is_file())
    assert touched == ["toy.yaml", "toy_editor_file.py"]
    config = composed(f"hydra.searchpath=[file://{toy}]", "editor=toy", "editor.layer=3")
    editor = hydra.utils.instantiate(config.editor)
    assert (editor.name, editor.layer, editor.size) == ("toy", 3, 0.5)
    with editor.edit(lm, [Fact("Rome", "{} is in", "France")]).applied(lm):
        assert len(lm.edits) == 1
