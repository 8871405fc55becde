"""``job=trace``: causal tracing of facts, and the average effects by the tokens' roles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from omegaconf import DictConfig
from rich.console import RenderableType

from corrigenda.errors import SettingsError
from corrigenda.runs.folder import RunFolder
from corrigenda.settings.checked import AtLeastOne, checked
from jobs import survey
from jobs.shared.registry import register
from jobs.shared.settings import Picture, instantiate
from locate import average, suggest_layers


@dataclass(frozen=True)
@checked
class TraceSettings(survey.LocateSettings):
    """``job=trace``.

    Attributes:
        sites: what is restored, one after another: block, ffn, attention.
        facts: of those the model knows, so many are traced; None: all.
        answer: None: the model's own, which has to be right; "top": whatever it says; or a text.
    """

    facts: AtLeastOne | None = 3
    picture: Picture = ".png"
    sites: tuple[Literal["block", "ffn", "attention"], ...] = ("block", "ffn", "attention")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sites or len(set(self.sites)) < len(self.sites):
            raise SettingsError(f"job.sites={list(self.sites)} must name at least one site, and each once")


@register(
    "trace",
    TraceSettings,
    aim="causal tracing of facts: a heat map each, and the average effects by the tokens' roles",
    choices={"locator": "/locate: trace"},
)
class Job(survey.Job):
    """Traces facts at each of several sites: results and pictures of each, and the average over them."""

    settings = TraceSettings

    def locators(self, config: DictConfig) -> Mapping[str, Any]:
        """One for each site that is restored."""
        locator = instantiate(config.job.locator)
        return {str(site): replace(locator, site=site) for site in config.job.sites}

    def together(
        self, config: DictConfig, folder: RunFolder, results: Mapping[str, Sequence[Any]]
    ) -> tuple[dict[str, Any], list[RenderableType]]:
        """The averages by role, and the layers that they suggest for an edit."""
        averages = {site: average(traces) for site, traces in results.items() if traces}
        for site, mean in averages.items():
            mean.save(folder.path / "averages" / site)
            mean.plot(folder.path / f"average-{site}{config.job.picture}")
        # Where every prompt ends with its subject there is no last subject token apart from the last one.
        found_there = "ffn" in averages and not bool(averages["ffn"].layer_scores().isnan().any())
        suggested = suggest_layers(averages["ffn"]) if found_there else None
        tables: list[RenderableType] = [mean.table() for mean in averages.values()]
        if suggested:
            tables.append(f"layer {suggested[0]}: where restored FFN windows recover most at the last subject token")
        sites = {site: mean.summary() for site, mean in averages.items()}
        return {"averages": sites, "suggested_layers": suggested}, tables
