"""What jobs share: how one is started or gone on with, the model, the run's folder, who is told of it.

torch and transformers are imported where a model is loaded: what only looks at the store does not need them.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from corrigenda.runs.folder import RunFolder
from corrigenda.runs.ids import code_version, files_named, targets
from corrigenda.runs.trackers import Tracker, tracker
from corrigenda.settings.documented import meanings
from corrigenda.system.files import cache_folder, expanded
from corrigenda.system.progress import stage
from corrigenda.system.workers import Workers
from corrigenda.text.display import printable
from editing.registry import EDITORS
from jobs.shared.errors import RunInterrupted
from jobs.shared.job import Job, StoreJob, find_job, stored_config
from jobs.shared.logs import remove_if_unused
from jobs.shared.outside import import_plugins
from jobs.shared.registry import classes, declaration
from jobs.shared.settings import CACHE, PluginSettings, check, check_shared
from jobs.shared.trust import require_trusted
from jobs.shared.tuned import take_tuned
from jobs.shared.words import OWN, setting

if TYPE_CHECKING:
    from corrigenda import LanguageModel

logger = logging.getLogger(__name__)
console = Console(stderr=True)


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning as the log has it: one meant for users as its text alone, others with the place in the code."""
    return str(message) if category is UserWarning else _WITH_PLACE(message, category, filename, lineno, line)


_WITH_PLACE = warnings.formatwarning


def code_of(config: DictConfig, *entry: str) -> str:
    """The version of the code of a run: some modules, the classes that its configuration names, what these use."""
    return code_version(entry=(*entry, *targets(OmegaConf.to_container(config, resolve=True))))


def code_since(folder: RunFolder, code: str, what: str) -> str:
    """The version of the code of a run that goes on: those before, and this one where it is another, which is said.

    So is another environment. `what` is there of both then: the run's cases, say.
    """
    if others := folder.go_on_in_this_environment():
        logger.warning("%s goes on with %s; its %s are of both", folder.path, ", ".join(others), what)
    begun = folder.identity.get("code", code)
    if begun.split("+")[-1] == code:
        return begun
    logger.warning("the code has changed since %s was begun; its %s are of two versions", folder.path, what)
    return f"{begun}+{code}"


def start(config: DictConfig) -> float | None:
    """Does the job that a configuration names, or goes on with the run that ``resume=`` names.

    Raises:
        ValueError: a setting is missing; or as the job says.
        RunInterrupted: it was interrupted.
    """
    logging.captureWarnings(True)
    warnings.formatwarning = _one_line
    _import_plugins(config)
    job = find_job(config.job)
    if isinstance(job, StoreJob):
        take_tuned(config, choices().get("editor", ""), override_names())
        require_settings(config)
        check_shared(config, vars(type(job)).get("declaration"))
        job.run(config)
        return None
    folder = RunFolder(HydraConfig.get().runtime.output_dir)
    try:
        take_tuned(config, choices().get("editor", ""), override_names())
        config = configuration(config, folder)
        _import_plugins(config)  # those of the run to go on with
        job = find_job(config.job)  # that of the run to go on with
        assert isinstance(job, Job)
        check_shared(config, vars(type(job)).get("declaration"))
        with interruptible(folder):
            return job.run(config, folder)
    finally:
        remove_if_unused(folder.path)


def _import_plugins(config: DictConfig) -> None:
    """Imports what ``plugins=`` names; runs of earlier versions have no such key."""
    import_plugins(check(PluginSettings, {"plugins": config.get("plugins") or []}).plugins)


@contextmanager
def interruptible(folder: RunFolder) -> Iterator[None]:
    """Says, where Ctrl-C ends the block, how to go on with the run in a folder.

    Raises:
        RunInterrupted: Ctrl-C was pressed.
    """
    try:
        yield
    except RunInterrupted:
        raise
    except KeyboardInterrupt:
        if folder.config is None:
            raise RunInterrupted("nothing was begun yet: give the same command again") from None
        raise RunInterrupted(f"what is finished is kept; go on with {setting('resume', folder.path)}") from None


def require_settings(config: DictConfig) -> None:
    """Checks that every setting has a value, or raises ValueError."""
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        group, key = missing[0].split(".")[0], missing[0].removesuffix("._target_").split(".")[-1]
        chosen = choices().get(group)
        what = _meaning(group, str(chosen), key)
        name = key if group == "job" and key in OWN.get(str(chosen), {}) else missing[0]
        raise ValueError(f"{missing[0]} has no value: give {name}=...{f' ({what})' if what else ''}")


def _meaning(group: str, chosen: str, key: str) -> str:
    """What a setting is that has to be given; empty where nothing says it."""
    if group == "editor" and chosen in EDITORS:
        settings: type = EDITORS[chosen]
    elif group == "job" and chosen in classes():
        settings = declaration(chosen).settings
    else:  # a user's own
        return ""
    return meanings(settings).get(key, "").partition(";")[0].rstrip(".")


def load_model(config: DictConfig) -> LanguageModel:
    """The model of a run. Raises ValueError: none is named; or as `load` says."""
    model = config.model
    if model.name is None:
        raise ValueError(f"model={choices()['model']} names no model: give model.name=, a hub id, a folder or a .gguf")
    with stage(f"Loading {model.name}"):
        from transformers.utils import logging as transformers_logging

        from corrigenda import load

        transformers_logging.disable_progress_bar()
        return load(**OmegaConf.to_container(model))  # type: ignore[arg-type]


def kept_before(config: DictConfig) -> Path | None:
    """The folder where runs share what they measure of the unedited model, as ``before=`` says; None: none do."""
    from eval.protocols.pre_edit import shared_folder

    asked = config.get("before")  # runs of earlier versions have none
    if asked is None:
        return None
    folder = shared_folder() if asked == CACHE else expanded(asked)
    logger.info("what the unedited model does with the facts is kept in %s (before=null: nowhere)", folder)
    return folder


def read_beside(plain: Mapping[str, Any], lm: LanguageModel) -> str:
    """What figures depend on and no setting and no fingerprint says: how the model computes and reads, and files.

    The files are those that the editor's settings and the text of a fine-tuning name, and the model's gate or the
    network that was trained for it, where the editor names none.
    """
    editor, kept = plain["editor"], cache_folder()
    read = [editor, ((plain["job"].get("sequential") or {}).get("fine_tuning") or {}).get("text")]
    if editor.get("gate", "") is None:
        from editing.gate.kept import gate_file

        read.append(str(gate_file(lm) or ""))
    if editor.get("network", "") is None:
        name = getattr(get_class(editor["_target_"]), "name", "")
        read.append(str(kept / "hypernetworks" / lm.fingerprint / f"{name}.safetensors"))
    return f"{lm.answers_key}{files_named(read)}"


def choices() -> dict[str, str]:
    """What was chosen of each group of configurations."""
    found = HydraConfig.get().runtime.choices.items()
    return {group: str(choice) for group, choice in found if "hydra" not in group}


def begin(config: DictConfig, folder: RunFolder) -> RunFolder:
    """Writes down the configuration of a new run. Raises FileExistsError: the folder holds another run."""
    if folder.config is not None:  # another process was given the same folder, and began first
        raise FileExistsError(f"{folder.path} holds another run by now; begin this one in another folder")
    folder.begin(OmegaConf.to_yaml({**config, "choices": choices()}))
    return folder


def take_up(job: Job, config: DictConfig, folder: RunFolder, **identity: str) -> None:
    """Begins a run that has no id, or goes on with it: with what it was begun with, and by other code only said so.

    Raises:
        FileExistsError: the folder holds another run.
        ValueError: it works on something else.
    """
    if folder.config is None:
        begin(config, folder)
    folder.identify(**identity)
    folder.go_on_with(code=code_since(folder, code_of(config, type(job).__module__), "results"))


FREE = (
    *("before", "force", "resume", "store", "workers"),
    *(f"workers.{field.name}" for field in fields(Workers)),
    *("job.most_failures", "job.trials", "job.minutes", "job.model", "job.conf"),
)
"""Settings that may be others when a run goes on: they change no figure of it."""


def configuration(config: DictConfig, folder: RunFolder) -> DictConfig:
    """The configuration of this run; for one that goes on, the one it was begun with.

    A run goes on where ``resume=`` names it, and where the same is asked for in the same folder again, as a sweep does
    that is started anew with the same ``hydra.sweep.dir``.

    Raises:
        FileNotFoundError: there is no run to go on with.
        FileExistsError: the folder holds another run.
        ValueError: a setting has no value, the command line asks for something else than the run was begun with, or
            the run's configuration would run code that the command line does not name.
    """
    several = HydraConfig.get().mode == RunMode.MULTIRUN
    if config.resume is not None and several:
        raise ValueError(f"resume={config.resume}: it goes on with one run; leave -m out, or leave resume= out")
    if folder.config is None and config.resume is None:
        OmegaConf.resolve(config)
        require_settings(config)
        return config
    stored = stored_config(folder.path, str(folder.path) if config.resume is None else f"resume={config.resume}")
    if config.resume is None:
        OmegaConf.resolve(config)
        if config.force or _comparable(config) != _comparable(stored):
            raise FileExistsError(
                f"{folder.path} holds a run; use another folder, or go on with it: {setting('resume', folder.path)}"
            )
    else:
        require_trusted(stored, config, f"resume={config.resume}")
        _require_same(config, stored)
    for key in override_names():
        if key in FREE and key != "resume":
            OmegaConf.update(stored, key, OmegaConf.select(config, key), force_add=True)
    return OmegaConf.masked_copy(stored, [str(key) for key in stored if key != "choices"])


def override_names() -> list[str]:
    """The settings that the command line names."""
    return [override.lstrip("+~").split("=", 1)[0] for override in HydraConfig.get().overrides.task]


def _comparable(config: DictConfig) -> dict[str, Any]:
    """A configuration without what may be another when the run goes on."""
    plain: Any = OmegaConf.to_container(config)
    plain["job"] = {key: value for key, value in plain["job"].items() if f"job.{key}" not in FREE}
    kept = {key: value for key, value in plain.items() if key not in (*FREE, "choices")}
    return {key: value for key, value in kept.items() if value or key != "plugins"}  # earlier versions had none


def _require_same(config: DictConfig, stored: DictConfig) -> None:
    """Checks that the command line asks for nothing else than a run was begun with."""
    chosen = choices()
    for key in override_names():
        if key in FREE:
            continue
        asked = chosen[key] if key in chosen else OmegaConf.select(config, key)
        begun = stored.choices.get(key) if key in chosen else OmegaConf.select(stored, key)
        if asked != begun:
            raise ValueError(
                f"resume={config.resume}: the run was begun with {key}={begun}, not {asked}; "
                "leave the override out, or begin a new run"
            )


def begin_tracker(config: DictConfig, folder: RunFolder) -> Tracker:
    """The tracker that ``logger=`` names."""
    plain: Any = OmegaConf.to_container(config)
    settings: Any = OmegaConf.to_container(config.logger)
    several = HydraConfig.get().mode == RunMode.MULTIRUN
    return tracker(settings, folder.path, plain, HydraConfig.get().sweep.dir if several else None)


def say(text: str) -> None:
    """Writes a line to standard output as it is, not broken at a pipe's 80 columns."""
    Console().print(printable(text), markup=False, highlight=False, soft_wrap=True)


def wide_console() -> Console:
    """For wide tables, which are cut to a pipe's 80 columns otherwise."""
    return Console(width=None if Console().is_terminal else 200)
