"""The names that ``job=`` takes, and how a job makes itself known.

    @register("ask", AskSettings, aim="Ask the model, without and with an edit")
    class Job(StoreJob): ...

The choices of ``job=``, their defaults and ``corrigenda help job=ask`` follow from this. This file is light: names are
listed without importing a job.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from corrigenda.settings.configuration import OF_THE_RUN, plain, taken_from, values
from corrigenda.settings.declarations import class_at, declared_classes

HERE = Path(__file__).parents[1]

J = TypeVar("J", bound=type)


@dataclass(frozen=True)
class JobDeclaration:
    """What a job says of itself.

    Attributes:
        name: as ``job=`` takes it.
        settings: the class of what stands in ``job``; its defaults are the configuration's, its docstring says what
            each setting is.
        aim: what the job does, in a line.
        parts: by dotted name what else stands there: objects, whose fields are the defaults.
        choices: by dotted name the choice of another group that is put there, as ``{"locator": "/locate: trace"}``.
        run: settings that are the run's own, as ``{"folder": "store"}``; every ``seed`` is.
        begins: choices of other groups that the job begins with, as ``{"editor": "emmet"}``.
        beside: keys that the job has beside ``job``, with their defaults.
    """

    name: str
    settings: type
    aim: str
    parts: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)
    run: Mapping[str, str] = field(default_factory=dict)
    begins: Mapping[str, str] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)

    @property
    def package(self) -> str | None:
        """Where Hydra puts the configuration: into ``job``, or at the top where it has more than that."""
        return "_global_" if self.begins or self.beside else None

    @property
    def names(self) -> set[str]:
        """What can stand in ``job``, at its top."""
        job = self.configuration if self.package is None else self.configuration["job"]
        return {"_target_", *(name.partition(".")[0] for name in (*job, *self.choices))} - {"defaults"}

    @property
    def configuration(self) -> dict[str, Any]:
        """What ``job=NAME`` stands for, as Hydra reads it."""
        run = OF_THE_RUN | {name: f"${{{key}}}" for name, key in self.run.items()}
        parts = {name: plain(part, seeded=True) for name, part in self.parts.items()}
        job = {"name": self.name, **parts, **values(self.settings, seeded=True, of_the_run=run)}
        begins = [{f"override /{group}": choice} for group, choice in self.begins.items()]
        defaults = [*begins, *taken_from(self.choices), "_self_"]
        if self.package is None:
            return {"defaults": defaults, **job}
        return {"defaults": defaults, "job": job, **self.beside}


def register(name: str, settings: type, *, aim: str, **others: Any) -> Callable[[J], J]:
    """Declares a job, above its class: ``@register("name", Settings, aim="...")``, with what `JobDeclaration` has."""

    def declare(cls: J) -> J:
        cls.declaration = JobDeclaration(name, settings, aim, **others)  # type: ignore[attr-defined]
        return cls

    return declare


@cache
def classes() -> Mapping[str, str]:
    """The dotted path of each job's class, by its name, read from the declarations without importing them."""
    found = declared_classes(HERE.parent, (*HERE.glob("*.py"), *HERE.glob("*/job.py")))
    return dict(sorted(found.items()))


def declaration(name: str) -> JobDeclaration:
    """What a job of this project says of itself. Raises KeyError: there is no such job."""
    declared: JobDeclaration = class_at(classes()[name]).declaration  # type: ignore[attr-defined]
    return declared
