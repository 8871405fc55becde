"""What a job is, and how it is found by its name. This file is light: `run.py --help` must not wait for torch."""

from __future__ import annotations

import difflib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from corrigenda.runs.folder import RunFolder


class Job(ABC):
    """A job that leaves a run: it works in a folder of its own, and goes on there when it was cut short.

    Its settings are ``config.job``. What all jobs share (the model, the facts, beginning a run) is in `jobs.base`.
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
    """A job that only looks at the runs that there are, and leaves no run."""

    @abstractmethod
    def run(self, config: DictConfig) -> None:
        """Does it."""
        ...


def job_names() -> list[str]:
    """The jobs that come with the project: the choices of ``job=``."""
    return sorted(path.stem for path in (Path(__file__).parents[1] / "conf" / "job").glob("*.yaml"))


def find_job(settings: Mapping[str, Any]) -> Job | StoreJob:
    """The job that a configuration names.

    Args:
        settings: the group ``job``. ``_target_``, a dotted path, names a class from anywhere; else ``name`` names the
            file: job "edit" is the class `Job` of ``jobs/edit.py``.

    Raises:
        ValueError: there is no such job, or what is named is none.
    """
    name, target = settings["name"], settings.get("_target_")
    known = job_names()
    if target is None and name not in known:
        near = difflib.get_close_matches(str(name), known, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(
            f"job.name={name}: there is no such job; {hint}The jobs are {', '.join(known)}; "
            "one from outside says job._target_=package.module.Class"
        )
    module, _, attribute = (target or f"jobs.{name}.Job").rpartition(".")
    if not module:
        raise ValueError(f"job._target_={target}: this is not the dotted path of a class (package.module.Class)")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the file is there, and something that it imports is not
        raise ValueError(
            f"job._target_={target}: there is no module {error.name!r}; is its folder on PYTHONPATH?"
        ) from None
    if not (isinstance(found, type) and issubclass(found, (Job, StoreJob))):
        raise ValueError(
            f"job._target_={target}: {module} has no class {attribute} derived from jobs.job.Job or StoreJob"
        )
    return found()


def new_folder(resume: str | None, store: str, settings: Mapping[str, Any]) -> str:
    """Where a run goes (``${run_folder:...}`` in the configuration); what leaves no run gets no new folder.

    A new folder is made here: of two runs that begin in the same second, one gets another name.

    Args:
        resume: the folder of a run to go on with.
        store: where runs are kept.
        settings: the group ``job``.
    """
    if isinstance(find_job(settings), StoreJob):
        return f"{store}/.jobs"
    if resume:
        return str(resume)
    path = Path(datetime.now().strftime(f"{store}/%Y-%m-%d/%H-%M-%S"))
    for name in (path.name, *(f"{path.name}-{number}" for number in range(2, 1000))):
        with suppress(FileExistsError):
            path.with_name(name).mkdir(parents=True)
            return str(path.with_name(name))
    raise FileExistsError(f"{path} and a thousand more folders like it exist; begin again in a second")
