"""Refining: the neurons that differently worded prompts of one fact have in common (Dai et al. 2022, section 3.3)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table

from corrigenda.models.neurons import Neuron, in_common
from corrigenda.text.joints import joined
from locate.neurons.knowledge_neurons import KnowledgeNeuronsResult
from locate.neurons.plots import plot_layers
from locate.saving import SavedResult

WANTED = (2, 5)
"""How many neurons the adaptive rule wants to keep, at least and at most."""

STEP = 0.05
"""By how much it moves the share at a time."""


@dataclass(frozen=True, eq=False)
class NeuronsResult(SavedResult, file="refined"):
    """The neurons that the prompts of one fact share, and what each prompt says.

    Attributes:
        neurons: those in more than `share` of the prompts' coarse sets; the most often found first, then the lower
            layer and number.
        counts: in how many of them each neuron of any coarse set is.
        share: the share that was used in the end.
        threshold: of the coarse sets.
        results: the prompts' attributions.
    """

    neurons: tuple[Neuron, ...]
    counts: Mapping[Neuron, int]
    share: float
    threshold: float
    results: tuple[KnowledgeNeuronsResult, ...]

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that were looked at."""
        return self.results[0].layers

    def by_layer(self) -> tuple[int, ...]:
        """How many neurons are left in each of `layers`."""
        found = Counter(layer for layer, _ in self.neurons)
        return tuple(found[layer] for layer in self.layers)

    def top(self, n: int) -> tuple[Neuron, ...]:
        """The n neurons with the largest attributions, each prompt's divided by its largest, the mean over prompts.

        A prompt of which no attribution is positive has no say, unless none has one that is.
        """
        positive = [result for result in self.results if float(result.attributions.max()) > 0]
        scaled = [result.attributions / result.attributions.abs().max().clamp(min=1e-30) for result in self.results]
        if positive:
            scaled = [result.attributions / result.attributions.max() for result in positive]
        order = torch.stack(scaled).mean(0).flatten().argsort(descending=True, stable=True)[:n].tolist()
        width = self.results[0].attributions.shape[1]
        return tuple((self.layers[place // width], place % width) for place in order)

    def summary(self) -> dict[str, Any]:
        """The main figures, as JSON values."""
        return {
            "neurons": [list(neuron) for neuron in self.neurons],
            "prompts": len(self.results),
            "share": self.share,
            "threshold": self.threshold,
            "coarse_mean": sum(self.counts.values()) / len(self.results),
            "by_layer": dict(zip(map(str, self.layers), self.by_layer(), strict=True)),
            "results": [result.summary() for result in self.results],
        }

    def table(self) -> Table:
        """A table for a terminal: the neurons that are left, and in how many prompts each is found."""
        question, n = self.results[0].question, len(self.results)
        title = f"{escape(question.prompt)} {escape(question.answer)}: more than {self.share:.0%} of {n} prompts"
        table = Table("layer", "neuron", "prompts", title=title)
        for layer, neuron in self.neurons:
            table.add_row(str(layer), str(neuron), f"{self.counts[layer, neuron]} of {n}")
        return table

    def plot(self, path: str | Path) -> None:
        """Draws by layer how many neurons are left, and the prompts' mean sum of attributions."""
        sums = sum((result.by_layer() for result in self.results[1:]), self.results[0].by_layer())
        first = self.results[0]
        plot_layers(
            path,
            self.layers,
            self.by_layer(),
            (sums / len(self.results)).tolist(),
            title=f"{joined(first.question.prompt, first.question.answer)} ({len(self.results)} prompts)",
            counts_label="neurons kept",
            sums_label="sum of attributions",
        )


def refine(
    results: Sequence[KnowledgeNeuronsResult], share: float = 0.7, threshold: float = 0.2, adaptive: bool = False
) -> NeuronsResult:
    """Keeps the neurons that more than `share` of differently worded prompts of a fact have in their coarse sets.

    The prompts may be those of a relation's facts; the threshold is of the coarse sets, as in
    `KnowledgeNeuronsResult.neurons`. `adaptive` moves the share p, down where fewer than 2 neurons are left and up
    where more than 5 are, by 0.05 at a time, until 2 to 5 are left. Where no p does that, the one nearest to it is
    taken, and of two that are equally near the one closer to the p given. Raises ValueError: there is no result, they
    are of different models or settings, or the share is not in [0, 1).
    """
    if not results:
        raise ValueError("no result to refine")
    if not 0 <= share < 1:
        raise ValueError(f"the share of prompts must lie in [0, 1), not {share}")
    first = results[0]
    for result in results[1:]:
        if (result.settings, result.attributions.shape) != (first.settings, first.attributions.shape):
            raise ValueError(
                f"the results are of different models or settings, and cannot be refined together: {first.settings} "
                f"and {result.settings}"
            )
    counts = Counter(neuron for result in results for neuron in result.neurons(threshold))
    if adaptive:
        share = _adapted(counts, len(results), share)
    return NeuronsResult(in_common(counts, len(results), share), dict(counts), share, threshold, tuple(results))


def _adapted(counts: Mapping[Neuron, int], n: int, share: float) -> float:
    least, most = WANTED

    def off(candidate: float) -> int:
        kept = len(in_common(counts, n, candidate))
        return max(least - kept, kept - most, 0)

    down = len(in_common(counts, n, share)) < least
    candidates = [share]
    while candidates[-1] > 0 if down else candidates[-1] + STEP < 1:
        candidates.append(max(round(candidates[-1] + (-STEP if down else STEP), 10), 0.0))
    return min(candidates, key=off)
