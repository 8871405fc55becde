"""The configurations of editors: a file says of a class's defaults nothing else than the class does."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf

from editing import EDITORS

CONF = Path(__file__).parents[3] / "conf" / "editor"
FILES = sorted(path.stem for path in CONF.glob("*.yaml"))


def read(name: str) -> dict[str, Any]:
    """A file's own keys; ``???`` (to be given) and ``${...}`` (from another group) are what no class could say."""
    content: dict[str, Any] = yaml.safe_load((CONF / f"{name}.yaml").read_text(encoding="utf-8"))
    return content


def base_of(name: str) -> str | None:
    """The file that a preset starts from; None for a file of its own. Other groups (``/locate``) are none."""
    bases = [entry for entry in read(name).get("defaults", []) if isinstance(entry, str)]
    return bases[0] if bases else None


def own_values(content: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The values that a file gives, by dotted path."""
    for key, value in content.items():
        if key in ("_target_", "defaults"):
            continue
        if isinstance(value, Mapping):
            yield from own_values(value, f"{path}{key}.")
        elif not (isinstance(value, str) and (value.startswith("${") or value == "???")):
            yield f"{path}{key}", value


def default(cls: type, path: str) -> Any:
    """The class's own value of a field, or of a field of the object that is its default."""
    first, _, rest = path.partition(".")
    [field] = [field for field in dataclasses.fields(cls) if field.name == first]
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    for name in filter(None, rest.split(".")):
        value = getattr(value, name)
    return value


def plain(value: Any) -> str:
    """As a file would have it: tuples are lists."""
    return json.dumps(value)


@pytest.mark.parametrize("name", [name for name in FILES if base_of(name) is None])
def test_every_value_of_a_file_is_the_classs_own(name: str) -> None:
    """The keys stand in the file so that the command line can set them (editor.layer=6); their values are defaults."""
    content = read(name)
    cls = get_class(content["_target_"])
    assert EDITORS[name] is cls
    differ = {key: value for key, value in own_values(content) if plain(value) != plain(default(cls, key))}
    assert not differ, f"conf/editor/{name}.yaml says otherwise than {cls.__name__}: {differ}"


@pytest.mark.parametrize("name", [name for name in FILES if base_of(name) is not None])
def test_a_preset_names_only_what_differs(name: str) -> None:
    base = str(base_of(name))
    assert EDITORS.base(name) == base
    cls = EDITORS[name]
    same = {key: value for key, value in own_values(read(name)) if plain(value) == plain(default(cls, key))}
    assert not same, f"conf/editor/{name}.yaml names defaults of {cls.__name__}: {same}"


@pytest.mark.parametrize(
    "name", [name for name in FILES if base_of(name) is None and not read(name).get("defaults") and name != "saved"]
)
def test_a_file_makes_the_class_with_its_defaults(name: str) -> None:
    cls = EDITORS[name]
    config = OmegaConf.create({"seed": 0, "editor": read(name)})
    assert instantiate(config.editor, _convert_="all") == cls()


def test_the_two_names_of_fine_tuning_are_one() -> None:
    assert list(own_values(read("ft_m"))) == []
    assert base_of("ft_m") == "finetune"
