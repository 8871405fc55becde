"""What a settings class says of its settings: names, defaults and meanings, from its fields and its docstrings."""

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import yaml


class Setting(NamedTuple):
    """A setting: its dotted name, its default as a configuration has it (empty of a group), what it is."""

    name: str
    default: str
    meaning: str


def settings(of: Any, before: str = "") -> Iterator[Setting]:
    """The settings of a dataclass, or of an object that is itself a default, with those of the objects in it.

    Names begin with `before`.
    """
    said = meanings(of if isinstance(of, type) else type(of))
    for field in dataclasses.fields(of):
        value, meaning = default(of, field), said.get(field.name, "")
        if dataclasses.is_dataclass(value):
            yield Setting(f"{before}{field.name}", "", meaning)
            yield from settings(value, f"{before}{field.name}.")
        else:
            yield Setting(
                f"{before}{field.name}", "to be given" if value is dataclasses.MISSING else as_yaml(value), meaning
            )


def default(of: Any, field: dataclasses.Field[Any]) -> Any:
    """A field's default: of a class its own, of an object what stands in it."""
    if not isinstance(of, type):
        return getattr(of, field.name)
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def meanings(cls: type) -> dict[str, str]:
    """What the docstrings of a class, and of those that it inherits from, say of each field, in a line."""
    found: dict[str, str] = {}
    for documented in cls.__mro__:
        text = inspect.cleandoc(vars(documented).get("__doc__") or "")
        section = re.search(r"^Attributes:\n((?:[ ]{4}.*\n?|\n)+)", text, re.MULTILINE)
        for entry in re.findall(r"^    (\w[\w, ]*): (.*(?:\n {8}.*)*)", section[1] if section else "", re.MULTILINE):
            for name in entry[0].split(", "):
                found.setdefault(name, " ".join(entry[1].split()))
    return found


def as_yaml(value: Any) -> str:
    """A value as a configuration has it, in one line: lists for tuples, null for None."""
    if isinstance(value, str) and "\n" in value:
        return json.dumps(value)  # which is YAML, too
    text: str = yaml.safe_dump(json.loads(json.dumps(value, default=str)), default_flow_style=True, width=1000)
    return text.strip().removesuffix("\n...")


def flat(content: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """What a configuration gives, by dotted name, each value as the file has it."""
    values: dict[str, str] = {}
    for key, value in content.items():
        name = f"{before}{key}"
        values |= flat(value, f"{name}.") if isinstance(value, Mapping) else {name: as_yaml(value)}
    return values
