"""The configurations of editors: a class's own defaults, and presets that name only what differs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from composed import CONF, composed
from hydra.utils import instantiate
from omegaconf import OmegaConf

from editing import EDITORS
from editing.registry import declaration, presets

FREE = [name for name in EDITORS.declared if not declaration(EDITORS[name]).choices and name != "saved"]
"""Editors whose configuration needs nothing of another group."""


@pytest.mark.parametrize("name", FREE)
def test_a_configuration_makes_the_class_with_its_defaults(name: str) -> None:
    config = composed(f"editor={name}", "seed=0").editor
    assert instantiate(config, _convert_="all") == EDITORS[name]()  # type: ignore[call-arg]
    assert {field.name for field in dataclasses.fields(EDITORS[name])} == set(config) - {"_target_"}  # type: ignore[arg-type]


def values(content: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The values that a file gives, by dotted path."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from values(value, f"{path}{key}.")
        elif key != "defaults":
            yield f"{path}{key}", value


@pytest.mark.parametrize(("name", "base"), presets().items())
def test_a_preset_names_only_what_differs(name: str, base: str) -> None:
    begins = dict(values(_plain(composed(f"editor={base}"))))
    said = dict(values(yaml.safe_load((CONF / "editor" / f"{name}.yaml").read_text(encoding="utf-8"))))
    assert [key for key, value in said.items() if value == begins[key]] == []
    assert dict(values(_plain(composed(f"editor={name}")))) == begins | said


def _plain(config: Any) -> dict[str, Any]:
    found: Any = OmegaConf.to_container(config.editor)
    return dict(found)


def test_a_random_update_is_like_any_editor() -> None:
    assert composed("editor=random").editor.like.value.steps == 20
    assert composed("editor=random", "editor@editor.like=memit_blue").editor.like.ends_only
    assert composed("editor=suppress").editor.find._target_ == "locate.Neurons"
