"""What jobs share: how one is started or gone on with, the model, the run's folder, who is told of it.

torch and transformers are imported where a model is loaded: what only looks at the store does not need them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from corrigenda.progress import stage
from corrigenda.runs.folder import RunFolder
from corrigenda.runs.trackers import Tracker, tracker
from jobs.job import Job, StoreJob, find_job
from jobs.settings import check_shared

if TYPE_CHECKING:
    from corrigenda import LanguageModel

console = Console(stderr=True)


def start(config: DictConfig) -> float | None:
    """Does the job that a configuration names, or goes on with the run that ``resume=`` names."""
    logging.captureWarnings(True)
    job = find_job(config.job)
    if isinstance(job, Job):
        folder = RunFolder(HydraConfig.get().runtime.output_dir)
        config = configuration(config, folder)
        job = find_job(config.job)  # that of the run to go on with
    check_shared(config)
    if isinstance(job, StoreJob):
        job.run(config)
        return None
    return job.run(config, folder)


def load_model(config: DictConfig) -> LanguageModel:
    """The model of a run.

    Raises:
        ValueError: none is named; or as `load` says.
    """
    model = config.model
    if model.name is None:
        raise ValueError(f"model={choices()['model']} names no model: give model.name=, a hub id, a folder or a .gguf")
    with stage(f"Loading {model.name}"):
        from transformers.utils import logging as transformers_logging

        from corrigenda import load

        transformers_logging.disable_progress_bar()
        return load(**OmegaConf.to_container(model))  # type: ignore[arg-type]


def choices() -> dict[str, str]:
    """What was chosen of each group of configurations."""
    found = HydraConfig.get().runtime.choices.items()
    return {group: str(choice) for group, choice in found if "hydra" not in group}


def begin(config: DictConfig, folder: RunFolder) -> RunFolder:
    """Writes down the configuration of a new run.

    Raises:
        FileExistsError: the folder holds another run.
    """
    if folder.config is not None:  # another process was given the same folder, and began first
        raise FileExistsError(f"{folder.path} holds another run by now; begin this one in another folder")
    folder.begin(OmegaConf.to_yaml({**config, "choices": choices()}))
    return folder


def configuration(config: DictConfig, folder: RunFolder) -> DictConfig:
    """The configuration of this run; for a resumed run, the one it was begun with.

    Raises:
        FileNotFoundError: there is no run to go on with.
        FileExistsError: the folder holds a run, and is not to be gone on with.
        ValueError: the command line asks for something else than the run was begun with.
    """
    chosen = choices()
    if config.resume is None:
        if folder.config is not None:
            raise FileExistsError(
                f"{folder.path} holds a run; go on with it (resume={folder.path}) or use another folder"
            )
        OmegaConf.resolve(config)
        return config
    if folder.config is None:
        raise FileNotFoundError(f"resume={config.resume}: there is no run in this folder (no config.yaml)")
    stored = OmegaConf.create(folder.config)
    assert isinstance(stored, DictConfig)
    for override in HydraConfig.get().overrides.task:
        key = override.lstrip("+~").split("=", 1)[0]
        if key in ("resume", "store"):
            continue
        if key == "before":
            stored.before = config.before
            continue
        asked = chosen[key] if key in chosen else OmegaConf.select(config, key)
        begun = stored.choices.get(key) if key in chosen else OmegaConf.select(stored, key)
        if asked != begun:
            raise ValueError(
                f"resume={config.resume}: the run was begun with {key}={begun}, not {asked}; "
                "leave the override out, or begin a new run"
            )
    return OmegaConf.masked_copy(stored, [str(key) for key in stored if key != "choices"])


def begin_tracker(config: DictConfig, folder: RunFolder) -> Tracker:
    """The tracker that ``logger=`` names."""
    plain: Any = OmegaConf.to_container(config)
    settings: Any = OmegaConf.to_container(config.logger)
    several = HydraConfig.get().mode == RunMode.MULTIRUN
    return tracker(settings, folder.path, plain, HydraConfig.get().sweep.dir if several else None)


def say(text: str) -> None:
    """Writes a line to standard output, not broken at a pipe's 80 columns."""
    Console().print(text, highlight=False, soft_wrap=True)


def wide_console() -> Console:
    """For wide tables, which are cut to a pipe's 80 columns otherwise."""
    return Console(width=None if Console().is_terminal else 200)
