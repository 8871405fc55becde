"""``job=features``: which features of a dictionary fire at facts, and which an edit of each adds and removes."""

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from corrigenda import Fact, LanguageModel
from editing.editor import Editor
from jobs import survey
from jobs.shared.registry import register
from locate.features.facts import FactFeatures, Features
from locate.features.over_facts import FeatureSurvey


@register(
    "features",
    survey.ChangeSettings,
    aim="features of a dictionary that fire at facts, in words, and what an edit makes of them",
    parts={"_target_": "jobs.features.Job", "locator": Features()},
)
class Job(survey.Job):
    """Looks for the features of facts: a result and a picture each, and what facts share."""

    settings = survey.ChangeSettings

    def locators(self, config: DictConfig) -> Mapping[str, Any]:
        """The locator, with the editor where it is asked for."""
        return survey.changing(config, _find)

    def mean(self, results: Sequence[Any]) -> Any:
        """The features that facts share, and those that edits add."""
        return FeatureSurvey.of(results)


def _find(locator: Features, editor: Editor | None, lm: LanguageModel, fact: Fact, answer: str | None) -> FactFeatures:
    return locator.find(lm, fact, answer, None if editor is None else editor.edit(lm, [fact]))
