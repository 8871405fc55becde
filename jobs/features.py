"""``job=features``: which features of a dictionary fire at facts, and which an edit of each adds and removes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from omegaconf import DictConfig

from corrigenda import Fact, LanguageModel
from corrigenda.settings.checked import checked
from editing.editor import Editor
from jobs import survey
from jobs.shared.registry import register
from jobs.shared.settings import check, instantiate, instantiate_editor
from locate.features.facts import FactFeatures, Features
from locate.features.over_facts import FeatureSurvey


@dataclass(frozen=True)
@checked
class FeaturesSettings(survey.SurveySettings):
    """``job=features``.

    Attributes:
        change: whether each fact is edited, too, by what ``editor=`` names, and looked at again.
    """

    change: bool = False


class _Edited:
    """A locator that also looks at what an editor makes of each fact."""

    def __init__(self, locator: Features, editor: Editor) -> None:
        self.locator, self.editor = locator, editor

    def check(self, lm: LanguageModel) -> None:
        self.locator.check(lm)

    def find(self, lm: LanguageModel, fact: Fact, answer: str | None = None) -> FactFeatures:
        return self.locator.find(lm, fact, answer, self.editor.edit(lm, [fact]))


@register(
    "features",
    FeaturesSettings,
    aim="features of a dictionary that fire at facts, in words, and what an edit makes of them",
    parts={"_target_": "jobs.features.Job", "locator": Features()},
)
class Job(survey.Job):
    """Looks for the features of facts: a result and a picture each, and what facts share."""

    settings: ClassVar[type[survey.LocateSettings]] = FeaturesSettings

    def locators(self, config: DictConfig) -> Mapping[str, Any]:
        """The locator, with the editor where it is asked for."""
        locator = instantiate(config.job.locator)
        edited = check(FeaturesSettings, config.job).change
        return {str(config.job.name): _Edited(locator, instantiate_editor(config.editor)) if edited else locator}

    def mean(self, results: Sequence[Any]) -> Any:
        """The features that facts share, and those that edits add."""
        return FeatureSurvey.of(results)
