"""The configuration of a class of settings, which follows from its dataclass: every setting, with its default."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from corrigenda.settings.declarations import exported
from corrigenda.settings.documented import default

OF_THE_RUN = {"seed": "${seed}"}
"""Settings that are the run's own, unless they are given."""


def configuration(cls: type, choices: Mapping[str, str] | None = None, seeded: bool = False) -> dict[str, Any]:
    """What a choice that stands for a dataclass is, as Hydra reads it.

    `choices` has by field the group and the choice, ``GROUP: CHOICE``, that its settings are taken from. With `seeded`
    the seeds of settings within settings are the run's own, too.
    """
    choices = choices or {}
    own = {name: value for name, value in values(cls, seeded, OF_THE_RUN).items() if name not in choices}
    return {**({"defaults": [*taken_from(choices), "_self_"]} if choices else {}), "_target_": exported(cls), **own}


def taken_from(choices: Mapping[str, str]) -> list[dict[str, str]]:
    """The entries of a defaults list that put another group's choice, ``GROUP: CHOICE``, in a dotted place."""
    split = {place: chosen.partition(": ") for place, chosen in choices.items()}
    return [{f"{group}@{place}": choice} for place, (group, _, choice) in split.items()]


def values(of: Any, seeded: bool, of_the_run: Mapping[str, str]) -> dict[str, Any]:
    """The settings of a dataclass, or of an object that is itself a default, as a configuration has them.

    `of_the_run` has by setting what stands in the place of its default.
    """
    fields = dataclasses.fields(of)
    return {field.name: of_the_run.get(field.name, plain(default(of, field), seeded)) for field in fields}


def plain(value: Any, seeded: bool) -> Any:
    """A default as a configuration has it. Settings that say their group are read by that, others are instantiated."""
    if value is dataclasses.MISSING:
        return "???"
    if dataclasses.is_dataclass(value):
        target = {} if hasattr(value, "group") else {"_target_": exported(type(value))}
        return target | values(value, seeded, OF_THE_RUN if seeded else {})
    return [plain(each, seeded) for each in value] if isinstance(value, tuple) else value
