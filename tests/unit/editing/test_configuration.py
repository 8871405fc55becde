import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from composed import CONF, composed
from editors_parts import configured, shipped
from hydra.utils import instantiate
from omegaconf import OmegaConf

from editing import EDITORS
from editing.registry import declaration, presets
from locate.neurons.locator import Neurons

FREE = [name for name in EDITORS.declared if not declaration(EDITORS[name]).choices and name != "saved"]
"""Editors whose configuration needs nothing of another group."""


@pytest.mark.parametrize("name", FREE)
def test_a_configuration_makes_the_class_with_its_defaults(name: str) -> None:
    assert shipped(name) == EDITORS[name]()  # type: ignore[call-arg]
    names = {field.name for field in dataclasses.fields(EDITORS[name])}  # type: ignore[arg-type]
    assert names == set(configured(name)) - {"_target_"}


def values(content: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The values that a file gives, by dotted path."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from values(value, f"{path}{key}.")
        elif key != "defaults":
            yield f"{path}{key}", value


@pytest.mark.parametrize(("name", "base"), presets().items())
def test_a_preset_names_only_what_differs(name: str, base: str) -> None:
    begins = dict(values(_plain(base)))
    said = dict(values(yaml.safe_load((CONF / "editor" / f"{name}.yaml").read_text(encoding="utf-8"))))
    assert [key for key, value in said.items() if value == begins[key]] == []
    assert dict(values(_plain(name))) == begins | said


def _plain(name: str) -> dict[str, Any]:
    found: Any = OmegaConf.to_container(configured(name))
    return dict(found)


@pytest.mark.parametrize("name", ["suppress", "enhance", "update_neurons", "erase_neurons"])
def test_locator_and_editor_come_together(name: str) -> None:
    assert shipped(name) == EDITORS[name](find=Neurons())  # type: ignore[call-arg]


def test_choices_inside_an_editor() -> None:
    assert configured("random").like.value.steps == 20
    assert composed("editor=random", "editor@editor.like=memit_blue").editor.like.ends_only
    found = composed("editor=suppress", "editor.find.steps=3").editor
    assert (found.find._target_, found.find.steps) == ("locate.Neurons", 3)
    assert instantiate(composed("editor=enhance", "editor.find=null", "editor.neurons=[[1,3]]").editor).neurons
