"""What comes from outside the project: a user's own files, and installed packages.

The editors, jobs and evaluations of this project and the entry points of installed packages become choices on the
command line, as if each had a file in ``conf/``:

    group of entry points    choice                  names
    corrigenda.editors       editor=NAME             a class of editors
    corrigenda.locators      job=NAME                a class of locators, with the class of its results as `result`
    corrigenda.jobs          job=NAME                a class of jobs
    corrigenda.data          data.schema=NAME        a function from a record to a fact (`corrigenda.data.schemas`)
    corrigenda.metrics       (measured always)       a module or function that registers metrics (`eval.metrics`)

Nothing of a package is imported for this. This file is light: it is imported before anything is done.
"""

import importlib.metadata
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore

from corrigenda.settings.configuration import configuration as of_class
from corrigenda.settings.declarations import class_at, module_named
from editing.registry import EDITORS, ENTRY_POINTS
from jobs.shared.registry import classes, declaration

LOCATORS = "corrigenda.locators"
JOBS = "corrigenda.jobs"
METRICS = "corrigenda.metrics"

CLASSES = {
    ("eval", "full"): "eval.EvalSettings",
    ("eval/real_use", "questions"): "eval.RealUse",
    ("locate", "causal_trace"): "locate.CausalTrace",
    ("locate", "neurons"): "locate.Neurons",
}
"""Classes of settings that are choices, by group and choice. What else a group has are presets, files in ``conf/``."""


@contextmanager
def importable_last(folder: Path) -> Iterator[None]:
    """In the block Python finds modules in a folder, after everything else.

    So that ``editor._target_=my_editor.Mine`` finds ``my_editor.py`` where the command is given, and no file there
    stands in for a library. (``python -m`` puts that folder first.) Python's own switch for this, PYTHONSAFEPATH, is
    respected: then the folder is left out.
    """
    before = list(sys.path)
    place = str(folder)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[:] = [each for each in before if each not in ("", place)] + [place]
    try:
        yield
    finally:
        sys.path[:] = before


def add_choices(names_alone: bool = False) -> None:
    """Makes editors, jobs, and what installed packages add, choices of Hydra; a file in ``conf/`` comes first.

    With `names_alone` choices can be listed and not used, and nothing need be imported.
    """
    groups: tuple[tuple[str, str, Callable[[str, str], dict[str, Any]]], ...] = (
        (ENTRY_POINTS, "editor", _editor),
        (LOCATORS, "job", _locator),
        (JOBS, "job", _job),
    )
    from editing.configuration import configuration

    store = ConfigStore.instance()
    store.store("own", _editor("own", "???"), "editor", provider="corrigenda")  # editor=own editor._target_=my.Class
    store.store("own", _job("own", "???"), "job", provider="corrigenda")  # job=own job._target_=my.Class
    for name in EDITORS.declared:
        node = _editor(name, "???") if names_alone else configuration(name)
        store.store(name, node, "editor", provider="corrigenda")
    for (group, name), path in CLASSES.items():
        node = _editor(name, path) if names_alone else of_class(class_at(path), seeded=group == "locate")
        store.store(name, node, group, provider="corrigenda")
    for name in classes():
        if names_alone:
            store.store(name, {"name": name}, "job", provider="corrigenda")
        else:
            job = declaration(name)
            store.store(name, job.configuration, "job", job.package, provider="corrigenda")
    for entry_points, group, config in groups:
        for point in importlib.metadata.entry_points(group=entry_points):
            if group == "editor" or point.name not in classes():
                store.store(point.name, config(point.name, point.value.replace(":", ".")), group, provider=entry_points)


def _editor(name: str, target: str) -> dict[str, Any]:
    return {"_target_": target}


def _locator(name: str, target: str) -> dict[str, Any]:
    survey = {"_target_": "jobs.survey.Job", "locator": {"_target_": target}}
    return {"defaults": ["survey", "_self_"], "name": name, **survey}


def _job(name: str, target: str) -> dict[str, Any]:
    return {"name": name, "_target_": target}


def measuring(plugins: Iterable[str] | None) -> tuple[str, ...]:
    """What measures besides this project: the modules that ``plugins=`` names, and what installed packages name."""
    installed = importlib.metadata.entry_points(group=METRICS)
    return (*(plugins or ()), *sorted(point.value for point in installed))


def import_plugins(names: Iterable[str]) -> None:
    """Imports the modules that ``plugins=`` names: what they register (metrics, editors) is known from then on.

    Raises:
        ValueError: there is no such module.
    """
    for name in names:
        module_named(name, f"plugins={name}")
