"""What a job is, and how it is found by its name. This file is light: `run.py --help` must not wait for torch."""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corrigenda.settings.declarations import module_named
from corrigenda.system.plain_data import read_yaml
from corrigenda.text.names import alternatives
from jobs.shared.registry import classes
from jobs.shared.words import program

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from corrigenda.runs.folder import RunFolder


class Job(ABC):
    """A job that leaves a run: it works in a folder of its own, and goes on there when it was cut short.

    Its settings are ``config.job``. What all jobs share (the model, the facts, beginning a run) is in `jobs.shared`.
    """

    @abstractmethod
    def run(self, config: DictConfig, folder: RunFolder) -> float | None:
        """Does it.

        Args:
            config: the run's whole configuration; of a run that goes on, the one it was begun with.
            folder: where results go; it has a configuration already where the run goes on.

        Returns:
            The figure that a sweeper optimises, if there is one.
        """
        ...


class StoreJob(ABC):
    """A job that leaves no run: it only looks at the runs that there are, or works in a folder of its own."""

    @abstractmethod
    def run(self, config: DictConfig) -> None:
        """Does it."""
        ...


def require_job(setting: str, name: str) -> None:
    """Checks that a job has the name that a setting gives, or raises ValueError with the nearest names."""
    if name not in classes():
        raise ValueError(
            f"{setting}={name}: there is no such job; {alternatives(name, classes(), 'jobs')}; one from outside says "
            "job._target_=package.module.Class"
        )


def find_job(settings: Mapping[str, Any]) -> Job | StoreJob:
    """The job that ``config.job`` names: ``_target_``, a class from anywhere, else ``name`` (`jobs.shared.registry`).

    Raises ValueError: there is no such job, or what is named is none.
    """
    name, target = settings.get("name"), settings.get("_target_")
    if name is None:
        raise ValueError("job.name has no value: give the file of the job's configuration a line name: NAME")
    if target is None:
        require_job("job.name", name)
    module, _, attribute = (target or classes()[name]).rpartition(".")
    if not module:
        raise ValueError(f"job._target_={target}: this is not the dotted path of a class (package.module.Class)")
    asked = f"job.name={name}" if target is None else f"job._target_={target}"
    found = getattr(module_named(module, asked), attribute, None)
    if not (isinstance(found, type) and issubclass(found, (Job, StoreJob))):
        raise ValueError(
            f"job._target_={target}: {module} has no class {attribute} derived from jobs.Job or jobs.StoreJob"
        )
    return found()


def run_folder(resume: str | None, store: str, settings: Mapping[str, Any]) -> str:
    """Where a run goes (``${run_folder:...}`` in the configuration); what leaves no run gets no new folder.

    Raises FileNotFoundError: there is no run to go on with; ValueError: what is there is damaged; OSError: as
    `new_folder` says.
    """
    if isinstance(find_job(settings), StoreJob):
        return _for_logs(Path(store))
    if resume is None:
        return new_folder(store)
    path = Path(str(resume))
    stored_config(path, f"resume={resume}")  # before Hydra makes the folder, or puts a log there
    if not all(os.access(place, os.W_OK) for place in (path, *path.glob("*.log"))):
        raise PermissionError(f"resume={resume}: this folder cannot be written; go on with a copy of it")
    return str(resume)


def _interpolated(path: str, value: Any) -> str:
    """Where the first text stands that OmegaConf would put something else in the place of; empty where there is none.

    What a run was begun with was resolved before it was written.
    """
    if isinstance(value, dict):
        found = [
            _interpolated(f"{path}.{name}".lstrip("."), part) or _interpolated(path, name)
            for name, part in value.items()
        ]
    elif isinstance(value, list):
        found = [_interpolated(f"{path}[{number}]", part) for number, part in enumerate(value)]
    else:
        found = [path] if isinstance(value, str) and "${" in value else []
    return next(filter(None, found), "")


def stored_config(folder: Path, asked: str) -> DictConfig:
    """The configuration that the run in a folder was begun with; `asked` is what asked for it, for the message.

    Raises FileNotFoundError: there is none; ValueError: it is damaged, or that of something else.
    """
    from omegaconf import OmegaConf

    path = folder / "config.yaml"
    if not path.is_file():
        what = "this is a file" if folder.is_file() else "there is no run in this folder (no config.yaml)"
        raise FileNotFoundError(f"{asked}: {what}; name the folder of a run ({program()} runs lists them)")
    try:
        found = read_yaml(path)
    except ValueError as error:
        problem = str(error).splitlines()[0]
        raise ValueError(f"{asked}: config.yaml there is damaged ({problem}); begin a new run") from None
    missing = [key for key in _PARTS if not isinstance(found, dict) or key not in found]
    if missing:
        raise ValueError(
            f"{asked}: config.yaml there is cut off, or not that of a run (it lacks {', '.join(missing)}); "
            "begin a new run"
        )
    odd = [group for group in _GROUPS if not isinstance(found[group], dict)]
    if odd:
        raise ValueError(f"{asked}: config.yaml there: {', '.join(odd)} should hold named values; begin a new run")
    if place := _interpolated("", found):
        raise ValueError(
            f"{asked}: config.yaml there has ${{...}} in {place}, which no stored configuration has; begin a new run"
        )
    return OmegaConf.create(found)


_GROUPS = ("model", "data", "editor", "eval", "logger", "job", "choices")
"""Those of its parts that are named values."""
_PARTS = ("model", "data", "editor", "eval", "logger", "job", "mode", "seed", "choices")
"""What the configuration of every run has; the last stands at its end."""


def _for_logs(store: Path) -> str:
    """Where what leaves no run has its log: in the store, where there is one that can be written."""
    if store.exists() and not store.is_dir():
        raise NotADirectoryError(f"store={store}: this is a file; name the folder where runs are kept")
    logs = store / ".jobs"
    there = [path for path in (logs, *logs.glob("*.log")) if path.exists()]  # another user's, perhaps
    if store.is_dir() and all(os.access(path, os.W_OK) for path in (store, *there)):
        return str(logs)
    user = getattr(os, "getuid", int)()  # one for all would be the first user's; Windows has a place for each
    return str(Path(tempfile.gettempdir()) / f"corrigenda-jobs-{user}")


def new_folder(place: str) -> str:
    """A new folder, named after the day and the second (``${new_folder:...}``).

    It is made here: of two runs, or sweeps, that begin in the same second, one gets another name.

    Raises:
        OSError: it cannot be made there.
    """
    path = Path(place, datetime.now().strftime("%Y-%m-%d/%H-%M-%S"))
    for name in (path.name, *(f"{path.name}-{number}" for number in range(2, 1000))):
        try:
            path.with_name(name).mkdir(parents=True)
        except FileExistsError:
            if path.with_name(name).is_dir():
                continue
            raise NotADirectoryError(f"store={place}: {_file_in(path)} is a file, not a folder") from None
        except NotADirectoryError:
            raise NotADirectoryError(f"store={place}: {_file_in(path)} is a file, not a folder") from None
        except OSError as error:
            raise type(error)(
                f"store={place}: a run's folder cannot be made there ({error.strerror}); take another store="
            ) from None
        return str(path.with_name(name))
    raise FileExistsError(f"{path} and a thousand more folders like it exist; begin again in a second")


def require_folder(setting: str, path: Path) -> None:
    """Checks that a setting's path can be a folder. Raises NotADirectoryError: it, or a part of it, is a file."""
    if (file := _file_in(path)).is_file():
        raise NotADirectoryError(f"{setting}={path}: {file} is a file, not a folder; name another folder")


def _file_in(path: Path) -> Path:
    """The first part of a path that is a file."""
    return next((part for part in reversed((path, *path.parents)) if part.is_file()), path)
