"""What the command line's settings have to be that belong to no editor, locator or evaluation of their own.

Each class has the keys of one group of the configuration, and says their types and ranges; `check` reads them from a
configuration. Keys that a run of an older version does not have keep the defaults.
"""

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import hydra.utils
from hydra.errors import InstantiationException
from omegaconf import DictConfig, OmegaConf

from corrigenda.errors import SettingsError
from corrigenda.settings.checked import AtLeastOne, Count, Seed, checked
from corrigenda.system.files import expanded
from corrigenda.system.workers import Workers
from corrigenda.text.names import did_you_mean
from jobs.shared.job import require_folder
from jobs.shared.registry import JobDeclaration

logger = logging.getLogger(__name__)

S = TypeVar("S")

CACHE = "cache"
"""The word of ``before=`` for the folder that all runs share."""


@dataclass(frozen=True)
@checked
class RunSettings:
    """The keys that stand in no group."""

    group: ClassVar[str] = ""

    mode: Literal["single", "batch", "sequential"] = "single"
    seed: Seed = 0
    resume: str | None = None
    save_edits: bool = True
    store: str = "outputs"
    force: bool = False
    before: str | None = None
    objective: str | None = None

    def __post_init__(self) -> None:
        if self.before not in (None, CACHE):
            require_folder("before", expanded(self.before))


@dataclass(frozen=True)
@checked
class PluginSettings:
    """``plugins``: modules of the user's that are imported first, for what they register."""

    group: ClassVar[str] = ""

    plugins: tuple[str, ...] = ()


@dataclass(frozen=True)
@checked
class ModelSettings:
    """The group ``model``: what `corrigenda.load` takes."""

    group: ClassVar[str] = "model"

    name: str | None = None
    dtype: str = "float32"
    device: str | Count | None = None
    device_map: str | Mapping[str, Any] | None = None
    revision: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True)
@checked
class DataSettings:
    """The group ``data``."""

    group: ClassVar[str] = "data"

    path: str | None = None
    schema: str = "auto"
    split: str | None = "train"
    config: str | None = None
    offset: Count = 0
    limit: AtLeastOne | None = None
    on_error: Literal["raise", "skip"] = "raise"
    part: str | None = None
    disjoint_from: str | None = None
    order: Seed | None = None
    other_subjects: Count = 0
    tuned_on: str | None = None


Picture = Literal[".png", ".pdf", ".svg"]
"""The suffixes that the project's own pictures can have."""


def check(cls: type[S], config: Mapping[str, Any]) -> S:
    """Reads a class of settings from the group of the configuration that has its keys; other keys are passed over.

    Raises SettingsError: a value is not what it has to be.
    """
    plain: Any = OmegaConf.to_container(config, resolve=True) if isinstance(config, DictConfig) else dict(config)
    names = {each.name for each in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return cls(**{str(key): value for key, value in plain.items() if key in names})


def check_shared(config: DictConfig, declared: JobDeclaration | None) -> None:
    """Checks what all jobs share: the keys without a group, the model, the data and the workers.

    What nothing reads of the data, the workers and a job of this project, as `declared`, is said: it may be there for
    an interpolation.

    Raises:
        SettingsError: a value is not what it has to be, or the model has one that `corrigenda.load` does not take.
    """
    classes: Mapping[str, Any] = {"model": ModelSettings, "data": DataSettings, "workers": Workers}
    known = {group: {each.name for each in dataclasses.fields(cls)} for group, cls in classes.items()}
    if declared is not None:
        known["job"] = declared.names
    for group, names in known.items():
        for name in sorted({*map(str, config.get(group) or ())} - names):
            hint = did_you_mean(name, sorted(names), most=1)
            said = f"{group}.{name}: there is no such setting" + (f"; {hint}" if hint else "")
            if group == "model":
                raise SettingsError(said)
            logger.warning(said)
    check(RunSettings, {str(key): config[key] for key in config if not isinstance(config[key], DictConfig)})
    check(ModelSettings, config.model)
    check(DataSettings, config.data)
    workers_of(config)


def workers_of(config: DictConfig) -> Workers:
    """The processes that a run's facts are spread over; runs of earlier versions have none.

    Raises:
        SettingsError: a value is not what it has to be.
    """
    return check(Workers, config.get("workers") or {})


def instantiate(config: DictConfig) -> Any:
    """What a configuration with a ``_target_`` stands for; lists are Python's, not a configuration's own kind.

    Raises:
        SettingsError: a setting is not what it has to be, or there is none of that name.
        Exception: what else its class raises, as it is.
    """
    try:
        return hydra.utils.instantiate(config, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, TypeError) and "unexpected keyword argument" in str(cause):
            raise SettingsError(_unknown(config, str(cause))) from None
        if isinstance(cause, (ValueError, TypeError, OSError)):
            raise cause from None
        raise


def instantiate_editor(config: DictConfig) -> Any:
    """The editor that a configuration stands for.

    Raises:
        SettingsError: what it names has not what an editor has (`editing.Editor`); or as `instantiate` says.
    """
    editor = instantiate(config)
    missing = [part for part in ("name", "edit") if not hasattr(editor, part)]
    if missing:
        raise SettingsError(
            f"editor._target_={config.get('_target_')}: this is no editor; it lacks {' and '.join(missing)} "
            "(an editor has a name, and edit(lm, facts), which gives an Edit)"
        )
    return editor


def _unknown(config: DictConfig, said: str) -> str:
    """What to say of a setting that a class does not have: `said` is Python's "... argument 'name'"."""
    name = said.rsplit("argument ", 1)[1].split("'")[1]
    known = [str(key) for key in config if not str(key).startswith("_") and key != name]
    hint = did_you_mean(name, known, most=1)
    return f"{config.get('_target_')} has no setting {name}" + (f"; {hint}" if hint else "")
