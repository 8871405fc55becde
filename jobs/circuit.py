"""``job=circuit``: the circuits of facts, how faithful they are, and the mean over facts; before and after an edit."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import RenderableType

from corrigenda import Fact, LanguageModel
from corrigenda.runs.folder import RunFolder
from editing.editor import Editor
from jobs import survey
from jobs.shared.registry import register
from jobs.shared.settings import check
from locate import Circuit, CircuitChange, Circuits
from locate.circuits.results import CircuitSurvey
from locate.lens.by_layer import mean_of


@register(
    "circuit",
    survey.ChangeSettings,
    aim="circuits of facts: which edges between heads, FFNs, embedding and logits carry them (Hanna et al. 2024)",
    parts={"_target_": "jobs.circuit.Job", "locator": Circuits()},
)
class Job(survey.Job):
    """Scores the edges of facts' circuits: a result and a picture each, and the faithfulness over facts."""

    settings = survey.ChangeSettings

    def locators(self, config: DictConfig) -> Mapping[str, Any]:
        """The locator, with the facts of the data, and the editor where it is asked for."""
        facts, _ = self.facts(config)
        return survey.changing(config, _find, facts)

    def load(self, config: DictConfig) -> Callable[[Path], Any]:
        """What reads a circuit, or how one changed."""
        return CircuitChange.load if check(survey.ChangeSettings, config.job).change else super().load(config)

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


def _find(
    locator: Circuits,
    editor: Editor | None,
    others: Sequence[Fact],
    lm: LanguageModel,
    fact: Fact,
    answer: str | None,
) -> Circuit | CircuitChange:
    """The circuit, with counterfactuals among the data's facts first; with an editor its change.

    That is to the circuit of the new object; of an erasure, of what the model then says.
    """
    before = locator.find(lm, fact, answer, others)
    if editor is None:
        return before
    with editor.edit(lm, [fact]).applied(lm):
        return locator.after(lm, before, fact.target_new or "top", others)
