"""``job=neurons``: knowledge neurons of facts, and in which layers they lie."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig
from rich.console import RenderableType

from corrigenda.runs.folder import RunFolder
from corrigenda.settings.checked import checked
from jobs import survey
from jobs.shared.registry import register
from jobs.shared.settings import Picture
from locate import average


@dataclass(frozen=True)
@checked
class NeuronsSettings(survey.LocateSettings):
    """``job=neurons``.

    Attributes:
        answer: None: the fact's true object; "top": what the model says; or a text.
    """

    picture: Picture = ".png"


@register(
    "neurons",
    NeuronsSettings,
    aim="knowledge neurons of facts, and in which layers they lie",
    choices={"locator": "/locate: neurons"},
)
class Job(survey.Job):
    """Finds facts' knowledge neurons: results and pictures of each, and in which layers they lie."""

    settings = NeuronsSettings

    def together(
        self, config: DictConfig, folder: RunFolder, results: Mapping[str, Sequence[Any]]
    ) -> tuple[dict[str, Any], list[RenderableType]]:
        """How many lie in each layer."""
        [found] = results.values()
        if not found:
            return {}, []
        counts = average(found)
        counts.plot(folder.path / f"layers{config.job.picture}")
        return counts.summary(), [counts.table()]
