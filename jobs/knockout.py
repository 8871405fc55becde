"""``job=knockout``: attention knockout of facts, and the mean over them."""

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig
from rich.console import RenderableType

from corrigenda.runs.folder import RunFolder
from jobs import survey
from jobs.shared.registry import register
from locate import AttentionKnockout, average


@register(
    "knockout",
    survey.SurveySettings,
    aim="attention knockout of facts: where the last token reads what the answer needs (Geva et al. 2023)",
    parts={"_target_": "jobs.knockout.Job", "locator": AttentionKnockout()},
)
class Job(survey.Job):
    """Knocks out attention in facts' prompts: results and pictures of each, and the mean relative changes."""

    def together(
        self, config: DictConfig, folder: RunFolder, results: Mapping[str, Sequence[Any]]
    ) -> tuple[dict[str, Any], list[RenderableType]]:
        """The mean changes with intervals over subjects."""
        [found] = results.values()
        if not found:
            return {}, []
        mean = average(found)
        mean.save(folder.path / "average")
        mean.plot(folder.path / f"average{config.job.picture}")
        return {"average": mean.summary()}, [mean.table()]
