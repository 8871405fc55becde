"""Whether located neurons matter: what scaling them does to an answer, beside as many other neurons.

Dai et al. 2022, section 4.3: suppressing (or enhancing) a fact's knowledge neurons has to change the answer's
probability more than doing so to random neurons, or to those with the highest activation.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.recording import forward_logits
from corrigenda.models.neurons import Neuron
from locate.neurons.knowledge_neurons import KnowledgeNeuronsResult
from locate.question import Question


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
