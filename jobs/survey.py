"""``job=survey``: runs a locator over facts. `jobs.trace` and `jobs.neurons` are this, with averages of their own.

A locator from outside needs no code here: ``corrigenda survey job.locator._target_=mine.Locator``. A configuration can
give it a name, and the class that reads its results where the locator does not:

    # conf/job/mine.yaml                      corrigenda --config-dir conf job=mine
    defaults: [survey]
    locator: {_target_: mine.Locator}
    result: mine.Result
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from hydra.utils import get_class
from omegaconf import DictConfig
from rich.console import Console, RenderableType

from corrigenda import Fact, LanguageModel
from corrigenda.errors import SettingsError
from corrigenda.runs.folder import RunFolder
from corrigenda.settings.checked import AtLeastOne, checked
from corrigenda.system.progress import counted
from jobs.shared import job
from jobs.shared.base import load_model, say, take_up
from jobs.shared.data import read_data
from jobs.shared.registry import register
from jobs.shared.settings import check, instantiate, instantiate_editor, workers_of
from locate.survey import survey


@dataclass(frozen=True)
@checked
class LocateSettings:
    """What all jobs that run locators over facts have in ``job``.

    Attributes:
        facts: so many that the model knows; None: all of the data.
        answer: as the locator takes it.
        picture: the suffix of pictures: .png, .pdf, .svg.
    """

    group: ClassVar[str] = "job"

    facts: AtLeastOne | None = None
    answer: str | None = None
    picture: str = ".png"

    def __post_init__(self) -> None:
        if not self.picture.startswith(".") or "/" in self.picture:
            raise SettingsError(f"job.picture={self.picture!r} must be the suffix of a file: .png, for example")


@dataclass(frozen=True)
@checked
class SurveySettings(LocateSettings):
    """``job=survey``.

    Attributes:
        locator: its class (module.Class); its settings stand beside that: +job.locator.NAME=VALUE.
        result: the dotted path of the class that reads what the locator saved, by load(folder); None: the locator's
            attribute ``result``.
    """

    result: str | None = None


@dataclass(frozen=True)
@checked
class ChangeSettings(SurveySettings):
    """``job=circuit`` and ``job=features``.

    Attributes:
        change: whether each fact is edited, too, by what ``editor=`` names, and looked at again.
    """

    change: bool = False


@dataclass(frozen=True)
class _Changing:
    """A locator that looks at a fact by a job's own way, which may look again after an edit."""

    locator: Any
    find: Callable[[LanguageModel, Fact, str | None], Any]

    def check(self, lm: LanguageModel) -> None:
        self.locator.check(lm)


def changing(config: DictConfig, find: Callable[..., Any], *more: Any) -> Mapping[str, Any]:
    """The locator of a job with `ChangeSettings`, by the name that its results get.

    `find`, a function of a module, looks at a fact by (locator, editor, *more, lm, fact, answer), the editor None where
    nothing is changed.
    """
    locator = instantiate(config.job.locator)
    editor = instantiate_editor(config.editor) if check(ChangeSettings, config.job).change else None
    return {str(config.job.name): _Changing(locator, partial(find, locator, editor, *more))}


@register(
    "survey",
    SurveySettings,
    aim="run a locator over facts",
    parts={"_target_": "jobs.survey.Job", "locator": {"_target_": "???"}},
)
class Job(job.Job):
    """Runs locators over the facts of a run: a result and a picture each, and what they come to together."""

    settings: ClassVar[type[LocateSettings]] = LocateSettings
    """What ``config.job`` has to be."""
    what: ClassVar[str] = "fact"
    """What a result is about."""
    mean_name: ClassVar[str] = "together"
    """What `mean` is called, as a file and in `summary.json`."""

    def facts(self, config: DictConfig) -> tuple[Sequence[Any], str]:
        """What is asked about, in order, and its fingerprint."""
        found = read_data(config.data)
        return found, found.fingerprint

    def locators(self, config: DictConfig) -> Mapping[str, Any]:
        """The locators, by the names that their results get."""
        return {str(config.job.name): instantiate(config.job.locator)}

    def load(self, config: DictConfig) -> Callable[[Path], Any]:
        """What reads a result of theirs that was saved."""
        cls, named = get_class(config.job.locator._target_), config.job.get("result")
        result: Any = get_class(named) if named else getattr(cls, "result", None)
        if result is None:
            raise ValueError(f"job.result has no value, and {cls.__qualname__} names no class of results (result)")
        return result.load

    def mean(self, results: Sequence[Any]) -> Any:
        """One result made of those of the one locator, of which there are some; None for nothing."""
        return None

    def together(
        self, config: DictConfig, folder: RunFolder, results: Mapping[str, Sequence[Any]]
    ) -> tuple[dict[str, Any], list[RenderableType]]:
        """What the results come to together, for `summary.json` and for the terminal; its pictures are written."""
        found, name = next(iter(results.values())), self.mean_name
        mean = self.mean(found) if found else None
        if mean is None:
            return {}, []
        mean.save(folder.path / name)
        mean.plot(folder.path / f"{name}{config.job.picture}")
        return {name: mean.summary()}, [mean.table()]

    def run(self, config: DictConfig, folder: RunFolder) -> None:
        """Runs the locators, or goes on with it."""
        asked = check(self.settings, config.job)
        locators = self.locators(config)
        with folder.held():
            facts, fingerprint = self.facts(config)
            lm = load_model(config)
            take_up(self, config, folder, model_fingerprint=lm.fingerprint, data_fingerprint=fingerprint)
            read, workers = self.load(config), workers_of(config)
            found = survey(lm, facts, locators, read, folder, asked.facts, asked.answer, asked.picture, workers)
            for why, ids in (("does not know", found.unknown), ("could not be asked about", found.failed)):
                if ids:
                    say(f"{lm.name} {why} {counted(len(ids), self.what)}, passed over: {', '.join(ids)}")
            summary, tables = self.together(config, folder, found.results)
            folder.finish(found.summary() | summary)
        printer = Console()
        for table in tables:
            printer.print(table)
        say(f"results and pictures in {folder.path}")
