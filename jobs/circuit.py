"""``job=circuit``: the circuits of facts, how faithful they are, and the mean over facts; before and after an edit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import DictConfig
from rich.console import RenderableType

from corrigenda import Fact, LanguageModel
from corrigenda.runs.folder import RunFolder
from corrigenda.settings.checked import checked
from editing.editor import Editor
from jobs import survey
from jobs.shared.registry import register
from jobs.shared.settings import check, instantiate, instantiate_editor
from locate import Circuit, CircuitChange, Circuits
from locate.circuits.results import CircuitSurvey
from locate.lens.by_layer import mean_of


@dataclass(frozen=True)
@checked
class CircuitSettings(survey.SurveySettings):
    """``job=circuit``.

    Attributes:
        change: whether each fact is edited, by what ``editor=`` names, and its circuit found before and after that: of
            its old object, and of its new one (of an erasure: of what the model then says).
    """

    change: bool = False


class _Among:
    """A locator that looks for counterfactuals among the data's facts first; with an editor for the change."""

    def __init__(self, locator: Circuits, others: Sequence[Fact], editor: Editor | None) -> None:
        self.locator, self.others, self.editor = locator, others, editor

    def check(self, lm: LanguageModel) -> None:
        self.locator.check(lm)

    def find(self, lm: LanguageModel, fact: Fact, answer: str | None = None) -> Circuit | CircuitChange:
        before = self.locator.find(lm, fact, answer, self.others)
        if self.editor is None:
            return before
        with self.editor.edit(lm, [fact]).applied(lm):
            return self.locator.after(lm, before, fact.target_new or "top", self.others)


@register(
    "circuit",
    CircuitSettings,
    aim="circuits of facts: which edges between heads, FFNs, embedding and logits carry them (Hanna et al. 2024)",
    parts={"_target_": "jobs.circuit.Job", "locator": Circuits()},
)
class Job(survey.Job):
    """Scores the edges of facts' circuits: a result and a picture each, and the faithfulness over facts."""

    settings: ClassVar[type[survey.LocateSettings]] = CircuitSettings

    def locators(self, config: DictConfig) -> Mapping[str, Any]:
        """The locator, with the facts of the data."""
        facts, _ = self.facts(config)
        editor = instantiate_editor(config.editor) if _changes(config) else None
        return {str(config.job.name): _Among(instantiate(config.job.locator), facts, editor)}

    def load(self, config: DictConfig) -> Callable[[Path], Any]:
        """What reads a circuit, or how one changed."""
        return CircuitChange.load if _changes(config) else super().load(config)

    def mean(self, results: Sequence[Any]) -> Any:
        """The faithfulness over facts, with intervals over subjects; of changes that with the edit."""
        return CircuitSurvey.of([one.after if isinstance(one, CircuitChange) else one for one in results])

    def together(
        self, config: DictConfig, folder: RunFolder, results: Mapping[str, Sequence[Any]]
    ) -> tuple[dict[str, Any], list[RenderableType]]:
        """The faithfulness; and how much of its first edges a circuit has in common with itself before the edit."""
        summary, tables = super().together(config, folder, results)
        [found] = results.values()
        overlap = mean_of([one.overlap for one in found if isinstance(one, CircuitChange)], shares=True)
        return summary | ({"overlap": overlap.summary()} if overlap is not None else {}), tables


def _changes(config: DictConfig) -> bool:
    return check(CircuitSettings, config.job).change
