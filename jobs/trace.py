"""``job=trace``: causal tracing of facts, and the average effects by the tokens' roles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import RenderableType

from corrigenda.runs.folder import RunFolder
from jobs import survey
from jobs.settings import TraceSettings, made
from locate import Trace, average, suggest_layers


class Job(survey.Job):
    """Traces facts at each of several sites: results and pictures of each, and the average over them."""

    settings = TraceSettings

    def locators(self, config: DictConfig) -> Mapping[str, Any]:
        """One for each site that is restored."""
        locator = made(config.job.locator)
        return {str(site): replace(locator, site=site) for site in config.job.sites}

    def load(self, config: DictConfig) -> Callable[[Path], Trace]:
        """What reads a trace."""
        return Trace.load

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
