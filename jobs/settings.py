"""What the command line's settings have to be that belong to no editor, locator or evaluation of their own.

Each class has the keys of one group of the configuration, and says their types and ranges; `check` reads them from a
configuration. Keys that a run of an older version does not have keep the defaults.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from corrigenda.errors import SettingsError
from corrigenda.nearest import did_you_mean
from corrigenda.settings import AtLeastOne, Count, Seed, ShareAboveZero, checked
from corrigenda.workers import Workers

S = TypeVar("S")


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
    tuned_on: str | None = None


@dataclass(frozen=True)
@checked
class AutoLayerSettings:
    """``job.auto_layer``: how many facts are traced for ``editor.layer=auto``, and how many layers they suggest."""

    group: ClassVar[str] = "job.auto_layer"

    facts: AtLeastOne = 3
    layers: AtLeastOne = 3


@dataclass(frozen=True)
@checked
class LocalitySettings:
    """``job.locality``: the fixed prompts that a sequence scores at every T."""

    group: ClassVar[str] = "job.locality"

    path: str | None = None
    schema: str = "auto"
    offset: Count = 0
    limit: Count = 30


@dataclass(frozen=True)
@checked
class SurveySettings:
    """What all jobs that run locators over facts have in ``job``."""

    group: ClassVar[str] = "job"

    facts: AtLeastOne | None = None
    answer: str | None = None
    picture: str = ".png"

    def __post_init__(self) -> None:
        if not self.picture.startswith(".") or "/" in self.picture:
            raise SettingsError(f"job.picture={self.picture!r} must be the suffix of a file: .png, for example")


Picture = Literal[".png", ".pdf", ".svg"]
"""The suffixes that the project's own pictures can have."""


@dataclass(frozen=True)
@checked
class NeuronsSettings(SurveySettings):
    """``job`` where it is ``neurons``."""

    picture: Picture = ".png"


@dataclass(frozen=True)
@checked
class TraceSettings(SurveySettings):
    """``job`` where it is ``trace``."""

    picture: Picture = ".png"
    sites: tuple[Literal["block", "ffn", "attention"], ...] = ("block", "ffn", "attention")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise SettingsError(f"job.sites={list(self.sites)} must name at least one site, and each once")


@dataclass(frozen=True)
@checked
class LensSettings:
    """``job`` where it is ``lens``."""

    group: ClassVar[str] = "job"

    parts: tuple[str, ...] = ("values", "triggers", "sensitivity", "agreement", "aggregation", "sub_updates")
    triggers: AtLeastOne = 25
    neurons: AtLeastOne = 10
    removed_from: AtLeastOne = 3
    texts: AtLeastOne = 1000
    holding: ShareAboveZero = 0.9
    events: AtLeastOne = 200
    examples: Count = 10
    seed: Seed = 0
    picture: Picture = ".png"


@dataclass(frozen=True)
@checked
class LeaderboardSettings:
    """``job`` where it is ``leaderboard``."""

    group: ClassVar[str] = "job"

    folder: str = "outputs"
    file: str = "leaderboard"
    min_facts: AtLeastOne = 30
    about: str = ""


@dataclass(frozen=True)
@checked
class MeasureAgainSettings:
    """``job`` where it is ``measure_again``: a run that kept its edits, and one of its checkpoints."""

    group: ClassVar[str] = "job"

    run: str | None = None
    t: AtLeastOne | None = None


@dataclass(frozen=True)
@checked
class BuildSettings:
    """``job`` where it is ``build``; its rules of acceptance are `jobs.building.acceptance.AcceptSettings`."""

    group: ClassVar[str] = "job"

    folder: str
    how: str | None = None
    dry: bool = False


@dataclass(frozen=True)
@checked
class AskSettings:
    """``job`` where it is ``ask``."""

    group: ClassVar[str] = "job"

    prompt: str | tuple[str, ...] = ""
    edit: str | tuple[str, ...] | None = None
    max_new_tokens: AtLeastOne = 20

    def __post_init__(self) -> None:
        if not self.prompt or not all(map(str.strip, [self.prompt] if isinstance(self.prompt, str) else self.prompt)):
            raise SettingsError(f"job.prompt={self.prompt!r} must not be empty")


@dataclass(frozen=True)
@checked
class FactsSettings:
    """``job`` where it is ``facts``."""

    group: ClassVar[str] = "job"

    folder: str
    subject: str | None = None
    text: str | None = None
    id: str | None = None


@dataclass(frozen=True)
@checked
class ExportSettings:
    """``job`` where it is ``export``."""

    group: ClassVar[str] = "job"

    edit: str | tuple[str, ...] | None = None
    to: str = ""
    form: Literal["model", "adapter"] = "model"

    def __post_init__(self) -> None:
        if not self.to.strip():
            raise SettingsError(f"job.to={self.to!r} must name a folder")
        if self.form == "adapter" and (self.edit is None or not isinstance(self.edit, str)):
            raise SettingsError(f"job.edit={self.edit}: an adapter is made of one edit; name its folder")


@dataclass(frozen=True)
@checked
class PageSettings:
    """``job`` where it is ``explain``; how far its parts go is `jobs.explaining.settings.ExplainSettings`."""

    group: ClassVar[str] = "job"

    file: str = "fact.html"
    data: str | None = None


def check(cls: type[S], config: Mapping[str, Any]) -> S:
    """Reads a class of settings from the group of the configuration that has its keys.

    Args:
        cls: the class.
        config: the group; what else it holds is passed over.

    Raises:
        SettingsError: a value is not what it has to be.
    """
    plain: Any = OmegaConf.to_container(config, resolve=True) if isinstance(config, DictConfig) else dict(config)
    names = {each.name for each in dataclasses.fields(cls)}  # type: ignore[arg-type]
    return cls(**{str(key): value for key, value in plain.items() if key in names})


def check_shared(config: DictConfig) -> None:
    """Checks what all jobs share: the keys without a group, the model, the data and the workers.

    Raises:
        SettingsError: a value is not what it has to be.
    """
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


def made(config: DictConfig) -> Any:
    """What a configuration with a ``_target_`` stands for; lists are Python's, not a configuration's own kind.

    Raises:
        SettingsError: a setting is not what it has to be, or there is none of that name.
        Exception: what else its class raises, as it is.
    """
    try:
        return instantiate(config, _convert_="all")
    except InstantiationException as error:
        cause = error.__cause__
        if isinstance(cause, TypeError) and "unexpected keyword argument" in str(cause):
            raise SettingsError(_unknown(config, str(cause))) from None
        if isinstance(cause, (ValueError, TypeError, OSError)):
            raise cause from None
        raise


def made_editor(config: DictConfig) -> Any:
    """The editor that a configuration stands for.

    Raises:
        SettingsError: what it names has not what an editor has (`editing.Editor`); or as `made` says.
    """
    editor = made(config)
    lacking = [part for part in ("name", "edit") if not hasattr(editor, part)]
    if lacking:
        raise SettingsError(
            f"editor._target_={config.get('_target_')}: this is no editor; it lacks {' and '.join(lacking)} "
            "(an editor has a name, and edit(lm, facts), which gives an Edit)"
        )
    return editor


def _unknown(config: DictConfig, said: str) -> str:
    """What to say of a setting that a class does not have: `said` is Python's "... argument 'name'"."""
    name = said.rsplit("argument ", 1)[1].split("'")[1]
    known = [str(key) for key in config if not str(key).startswith("_") and key != name]
    hint = did_you_mean(name, known, most=1)
    return f"{config.get('_target_')} has no setting {name}" + (f"; {hint}" if hint else "")
