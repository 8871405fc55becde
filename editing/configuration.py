"""The configuration of an editor, which follows from its dataclass: every setting, with its default."""

from __future__ import annotations

import dataclasses
from typing import Any

import yaml

from corrigenda.declarations import exported
from corrigenda.documented import flat
from editing.registry import EDITORS, PRESETS, declaration, presets

OF_THE_RUN = {"seed": "${seed}"}
"""Settings that are the run's own, unless they are given."""


def configuration(name: str) -> dict[str, Any]:
    """What ``editor=NAME`` stands for, as Hydra reads it.

    Args:
        name: of an editor, no preset's.
    """
    cls = EDITORS[name]
    choices = declaration(cls).choices
    defaults = [{f"{group}@{field}": choice} for field, (group, _, choice) in _split(choices).items()]
    settings = {
        field.name: OF_THE_RUN.get(field.name, _plain(_default(field)))
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if field.name not in choices
    }
    return {**({"defaults": [*defaults, "_self_"]} if defaults else {}), "_target_": exported(cls), **settings}


def preset_values(name: str) -> dict[str, str]:
    """What a preset's file gives, by dotted name, as the file has it; nothing of an editor that is no preset."""
    path = PRESETS / f"{name}.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8")) if name in presets() else {}
    return {key: value for key, value in flat(content).items() if key != "defaults"}


def _split(choices: Any) -> dict[str, tuple[str, str, str]]:
    return {field: choice.partition(": ") for field, choice in choices.items()}


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _plain(value: Any) -> Any:
    """A default as a configuration has it."""
    if value is dataclasses.MISSING:
        return "???"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"_target_": exported(type(value)), **parts}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
