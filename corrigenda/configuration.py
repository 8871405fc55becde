"""The configuration of a class of settings, which follows from its dataclass: every setting, with its default."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from corrigenda.declarations import exported

OF_THE_RUN = {"seed": "${seed}"}
"""Settings that are the run's own, unless they are given."""


def configuration(cls: type, choices: Mapping[str, str] | None = None, seeded: bool = False) -> dict[str, Any]:
    """What a choice that stands for a class is, as Hydra reads it.

    Args:
        cls: a dataclass.
        choices: by field the group and the choice, ``GROUP: CHOICE``, that its settings are taken from.
        seeded: whether the seeds of settings within settings are the run's own, too.
    """
    split = {field: choice.partition(": ") for field, choice in (choices or {}).items()}
    defaults = [{f"{group}@{field}": choice} for field, (group, _, choice) in split.items()]
    settings = {
        field.name: OF_THE_RUN.get(field.name, _plain(_default(field), seeded))
        for field in dataclasses.fields(cls)
        if field.name not in split
    }
    return {**({"defaults": [*defaults, "_self_"]} if defaults else {}), "_target_": exported(cls), **settings}


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _plain(value: Any, seeded: bool) -> Any:
    """A default as a configuration has it."""
    if value is dataclasses.MISSING:
        return "???"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        run = OF_THE_RUN if seeded else {}
        names = [field.name for field in dataclasses.fields(value)]
        parts = {name: run.get(name, _plain(getattr(value, name), seeded)) for name in names}
        return {"_target_": exported(type(value)), **parts}
    return [_plain(each, seeded) for each in value] if isinstance(value, tuple) else value
