"""Whether located neurons matter: what scaling them does to an answer, beside as many other neurons.

The check of Dai et al. 2022, section 4.3: suppressing (or enhancing) a fact's knowledge neurons has to change the
answer's probability more than doing so to random neurons, or to those with the highest activation.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.recording import forward_logits
from corrigenda.models.alone import one_thread
from corrigenda.models.neurons import Neuron, as_neurons, in_model
from corrigenda.settings.checked import AtLeastOne, Seed, check_value
from locate.neurons.knowledge_neurons import KnowledgeNeuronsResult
from locate.neurons.plots import plot_bars
from locate.neurons.refine import NeuronsResult
from locate.question import Question
from locate.saving import SavedResult


@dataclass(frozen=True)
class ScalingCheck(SavedResult, file="scaling"):
    """What scaling neurons did to the probability of an answer, the mean over a fact's prompts.

    Attributes:
        neurons: the located ones.
        factor: what coefficients were multiplied by.
        before: the probability with nothing scaled.
        located: with the located neurons scaled.
        random: with as many random neurons of the same layers scaled, the mean over the draws.
        random_draws: with each of the draws.
        most_active: with as many neurons of the same layers scaled as are located there: those with the highest |m|.
        overlap: how many of the most active neurons are located ones themselves.
    """

    neurons: tuple[Neuron, ...]
    factor: float
    before: float
    located: float
    random: float
    random_draws: tuple[float, ...]
    most_active: float
    overlap: int

    def summary(self) -> dict[str, Any]:
        """The figures, as JSON values."""
        return {**vars(self), "neurons": [list(neuron) for neuron in self.neurons]}

    def table(self) -> Table:
        """A table for a terminal: the answer's probability with each set of neurons scaled."""
        table = Table("scaled", "P(answer)", title=f"{len(self.neurons)} neurons times {self.factor:g}")
        for name, probability in self._compared().items():
            table.add_row(name, f"{probability:.4f}")
        return table

    def plot(self, path: str | Path) -> None:
        """Draws the answer's probability with each set of neurons scaled, as PNG, PDF or SVG, by the path's suffix."""
        title = f"{len(self.neurons)} neurons times {self.factor:g}"
        plot_bars(path, self._compared(), title=title, label="P(answer)")

    def _compared(self) -> dict[str, float]:
        return {
            "nothing": self.before,
            "located": self.located,
            "random": self.random,
            "most active": self.most_active,
        }


@one_thread
def scaling_check(
    lm: LanguageModel,
    refined: NeuronsResult,
    factor: float = 0.0,
    draws: int = 5,
    seed: int = 0,
    neurons: Sequence[Neuron] | None = None,
) -> ScalingCheck:
    """Scales a fact's neurons, random ones and the most active ones, at every position, and compares.

    By a factor: 0 suppresses, 2 enhances. Random neurons are drawn `draws` times from the same layers, as many in each,
    and are none of the located ones, `refined.neurons` unless others are given. Raises ValueError: there is no neuron,
    `draws` is below 1, a layer has too few neurons to draw from, or was not looked at; IndexError: the model has no
    such neuron.
    """
    check_value("scaling_check", "factor", factor, float)
    check_value("scaling_check", "draws", draws, AtLeastOne)
    check_value("scaling_check", "seed", seed, Seed)
    located = _checked(lm, refined, refined.neurons if neurons is None else as_neurons(neurons))
    if not located:
        raise ValueError("no neuron to scale; locate some with a lower threshold or share")
    most_active = highest_activation(refined.results, located)
    sets = [(), located, most_active, *(random_neurons(lm, located, seed + draw) for draw in range(draws))]
    probabilities = torch.stack(
        [probabilities_scaled(lm, result.question, sets, factor) for result in refined.results]
    ).mean(0)
    before, with_located, with_active, *with_random = probabilities.tolist()
    return ScalingCheck(
        located,
        factor,
        before,
        with_located,
        fmean(with_random),
        tuple(with_random),
        with_active,
        len(set(most_active) & set(located)),
    )


def _checked(lm: LanguageModel, refined: NeuronsResult, neurons: Sequence[Neuron]) -> tuple[Neuron, ...]:
    """Each neuron once, its layer counted from the bottom."""
    places = in_model(lm, neurons)
    for layer, _ in places:
        if layer not in refined.layers:
            raise ValueError(f"layer {layer} was not looked at: the neurons were sought in {refined.layers}")
    return places


def random_neurons(lm: LanguageModel, neurons: Sequence[Neuron], seed: int = 0) -> tuple[Neuron, ...]:
    """As many other neurons of each layer, drawn at random. Raises ValueError: a layer has not so many others."""
    generator = torch.Generator().manual_seed(seed)
    drawn: list[Neuron] = []
    for layer, count in sorted(Counter(layer for layer, _ in neurons).items()):
        taken = {neuron for where, neuron in neurons if where == layer}
        order = torch.randperm(lm.memory(layer).d_ffn, generator=generator).tolist()
        others = [neuron for neuron in order if neuron not in taken][:count]
        if len(others) < count:
            raise ValueError(f"layer {layer} has only {len(others)} neurons beside the {len(taken)} located ones")
        drawn += [(layer, neuron) for neuron in others]
    return tuple(drawn)


def highest_activation(results: Sequence[KnowledgeNeuronsResult], neurons: Sequence[Neuron]) -> tuple[Neuron, ...]:
    """As many neurons of each layer: those whose |m|, the mean over the prompts, is highest there."""
    mean = torch.stack([result.activations for result in results]).mean(0)
    chosen: list[Neuron] = []
    for layer, count in sorted(Counter(layer for layer, _ in neurons).items()):
        order = mean[results[0].layers.index(layer)].argsort(descending=True, stable=True)
        chosen += [(layer, neuron) for neuron in order[:count].tolist()]
    return tuple(chosen)


@torch.no_grad()
def probabilities_scaled(
    lm: LanguageModel, question: Question, sets: Sequence[Sequence[Neuron]], factor: float
) -> Tensor:
    """The probability of a question's whole answer with each set of neurons scaled at every position, (set,).

    All sets run in one batch.
    """
    batch = question.batch(lm, len(sets))
    scales: dict[int, Tensor] = {}
    for row, neurons in enumerate(sets):
        for layer, neuron in neurons:
            if layer not in scales:
                scales[layer] = torch.ones(len(sets), 1, lm.memory(layer).d_ffn, device=batch.input_ids.device)
            scales[layer][row, 0, neuron] = factor
    with ExitStack() as stack:
        for layer, by in scales.items():
            stack.enter_context(lm.memory(layer).scale(by))
        logits = forward_logits(lm, batch, question.at(len(sets), batch.input_ids.device))
    return question.probabilities(logits).prod(1).cpu()
