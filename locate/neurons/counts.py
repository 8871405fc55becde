"""`NeuronCounts`: in which layers the knowledge neurons of many facts lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from corrigenda.intervals import interval
from corrigenda.system.progress import counted
from locate.neurons.plots import plot_layers
from locate.neurons.refine import NeuronsResult
from locate.question import Question
from locate.saving import SavedResult
from locate.suggest import suggest_layers


@dataclass(frozen=True, eq=False)
class NeuronCounts(SavedResult, file="counts"):
    """Refined neurons and attributions by layer, over facts.

    Attributes:
        layers: the layers that were looked at.
        per_fact: how many neurons each fact has in each of them, (fact, layer).
        attribution: the mean over the facts' prompts of the attributions summed in each layer, (layer,).
        subjects: what the intervals are drawn over: each fact's subject, by its tokens.
    """

    layers: tuple[int, ...]
    per_fact: tuple[tuple[int, ...], ...]
    attribution: Tensor
    subjects: tuple[str, ...]

    @classmethod
    def of(cls, results: Sequence[NeuronsResult]) -> NeuronCounts:
        """The counts of some facts' neurons.

        Raises:
            ValueError: there is no result, or they are of different models or settings.
        """
        kinds = {str(result.results[0].settings | {"threshold": result.threshold}) for result in results}
        if len(kinds) != 1:
            raise ValueError(
                f"neurons are counted together where all were found alike, got {len(kinds)} kinds: {sorted(kinds)}"
            )
        prompts = [torch.stack([each.by_layer() for each in result.results]).mean(0) for result in results]
        return cls(
            layers=results[0].layers,
            per_fact=tuple(result.by_layer() for result in results),
            attribution=torch.stack(prompts).mean(0),
            subjects=tuple(_subject(result.results[0].question) for result in results),
        )

    def layer_scores(self) -> Tensor:
        """The mean attribution of each layer, (layer,)."""
        return self.attribution

    def mean(self, place: int) -> tuple[float, tuple[float, float] | None]:
        """The mean number of neurons a fact has in the layer at a place of `layers`, and its 95 % interval."""
        counts = [float(row[place]) for row in self.per_fact]
        return fmean(counts), interval([counts], self.subjects)

    def suggested(self, n: int = 1) -> list[int]:
        """The n layers with the largest attributions."""
        return suggest_layers(self, n)

    def summary(self) -> dict[str, Any]:
        """The figures in plain values."""
        counted = {
            str(layer): self.mean(place)[0]
            for place, layer in enumerate(self.layers)
            if any(row[place] for row in self.per_fact)
        }
        return {
            "neurons_per_fact": fmean(sum(row) for row in self.per_fact),
            "neurons_per_fact_by_layer": counted,
            "suggested_layers": self.suggested(),
        }

    def table(self) -> Table:
        """A table for a terminal: the layers that have neurons."""
        n = len(self.per_fact)
        title = f"{fmean(sum(row) for row in self.per_fact):.1f} knowledge neurons a fact, {counted(n, 'fact')}"
        table = Table("layer", "neurons a fact", "95 % interval", "mean attribution", title=title)
        for place, layer in enumerate(self.layers):
            mean, bounds = self.mean(place)
            if mean:
                inside = "" if bounds is None else f"{bounds[0]:.2f} to {bounds[1]:.2f}"
                table.add_row(str(layer), f"{mean:.2f}", inside, f"{float(self.attribution[place]):.3f}")
        return table

    def plot(self, path: str | Path) -> None:
        """Draws neurons a fact and attribution by layer, as PNG, PDF or SVG, by the path's suffix."""
        plot_layers(
            path,
            self.layers,
            [self.mean(place)[0] for place in range(len(self.layers))],
            self.attribution.tolist(),
            title=counted(len(self.per_fact), "fact"),
            counts_label="neurons a fact",
            sums_label="attribution",
        )


def _subject(question: Question) -> str:
    begin, end = question.subject
    return str(question.ids[begin:end])
