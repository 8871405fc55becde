from contextlib import ExitStack

import pytest
import tiny
import torch
from by_hooks import changed_input, logits

from corrigenda import Fact, LanguageModel
from locate.neurons.knowledge_neurons import KnowledgeNeuronsResult
from locate.neurons.suppression import highest_activation, probabilities_scaled, random_neurons
from locate.question import Question, ask

FACT = Fact("Danielle Darrieux", "the mother tongue of {} is", "Dutch", "French", paraphrases=("Danielle speaks",))
NEURONS = ((1, 4), (1, 9), (3, 0))


def scaled_by_hand(lm: LanguageModel, question: Question, neurons: set[tuple[int, int]], factor: float) -> float:
    with ExitStack() as stack:
        for layer, neuron in neurons:
            scale = torch.ones(lm.memory(layer).d_ffn)
            scale[neuron] = factor
            stack.enter_context(changed_input(lm.architecture.values(layer), scale.mul))
        said = logits(lm, question.ids)[list(question.predicting)]
    return float(said.softmax(-1).gather(1, torch.tensor(question.answer_ids)[:, None]).prod())


@pytest.mark.parametrize("family", ["gpt2", "llama", "opt"])
@pytest.mark.parametrize("factor", [0.0, 2.0])
def test_scaling_is_what_it_says(family: str, factor: float) -> None:
    lm = tiny.build(family)
    question = ask(lm, FACT, "French , Dutch")
    many = tuple((layer, neuron) for layer in (1, 3) for neuron in range(0, 48, 2))
    sets = [(), NEURONS, many, ((0, 3),)]
    found = probabilities_scaled(lm, question, sets, factor)
    for neurons, p in zip(sets, found.tolist(), strict=True):
        assert p == pytest.approx(scaled_by_hand(lm, question, set(neurons), factor), rel=1e-4)
    assert abs(float(found[2] / found[0]) - 1) > 0.01


def test_random_neurons(lm: LanguageModel) -> None:
    drawn = random_neurons(lm, NEURONS, seed=1)
    assert sorted(layer for layer, _ in drawn) == [1, 1, 3]
    assert not set(drawn) & set(NEURONS)
    assert len(set(drawn)) == 3
    assert drawn == random_neurons(lm, NEURONS, seed=1)
    assert drawn != random_neurons(lm, NEURONS, seed=2)
    with pytest.raises(ValueError, match="layer 1 has only 18 neurons"):
        random_neurons(lm, [(1, n) for n in range(30)])


def test_highest_activation() -> None:
    question = Question("x", (7,), 1, (0, 1), "y", (4,), (0,))
    tables = [[[1.0, 5.0, 2.0], [0.0, 3.0, 1.0]], [[1.0, 0.0, 9.0], [8.0, 3.0, 1.0]]]  # means 1, 2.5, 5.5 and 4, 3, 1
    results = [
        KnowledgeNeuronsResult(question, (1, 3), one, one, 0.5, "activation", 1, "midpoint", "x")
        for one in map(torch.tensor, tables)
    ]
    assert highest_activation(results, [(1, 0), (1, 1), (3, 2)]) == ((1, 2), (1, 1), (3, 0))
