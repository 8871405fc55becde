"""``job=circuit``: the circuits of facts, how faithful they are, and the mean over facts."""

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig

from corrigenda import Fact, LanguageModel
from jobs import survey
from jobs.shared.registry import register
from jobs.shared.settings import instantiate
from locate.circuits.circuit import Circuits
from locate.circuits.results import Circuit, CircuitSurvey


class _Among:
    """A locator that looks for counterfactuals among the data's facts first."""

    def __init__(self, locator: Circuits, others: Sequence[Fact]) -> None:
        self.locator, self.others = locator, others

    def check(self, lm: LanguageModel) -> None:
        self.locator.check(lm)

    def find(self, lm: LanguageModel, fact: Fact, answer: str | None = None) -> Circuit:
        return self.locator.find(lm, fact, answer, self.others)


@register(
    "circuit",
    survey.SurveySettings,
    aim="circuits of facts: which edges between heads, FFNs, embedding and logits carry them (Hanna et al. 2024)",
    parts={"_target_": "jobs.circuit.Job", "locator": Circuits()},
)
class Job(survey.Job):
    """Scores the edges of facts' circuits: a result and a picture each, and the faithfulness over facts."""

    def locators(self, config: DictConfig) -> Mapping[str, Any]:
        """The locator, with the facts of the data."""
        facts, _ = self.facts(config)
        return {str(config.job.name): _Among(instantiate(config.job.locator), facts)}

    def mean(self, results: Sequence[Any]) -> Any:
        """The faithfulness over facts, with intervals over subjects."""
        return CircuitSurvey.of(results)
