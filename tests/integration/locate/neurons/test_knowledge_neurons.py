import pytest
import tiny
import torch
from knowledge_neurons_parts import ANSWERS, PROMPT, brute_force, build, probability, quiet, tokens

from locate.neurons.knowledge_neurons import knowledge_neurons


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("family", tiny.KINDS)
def test_equals_plain_autograd(family: str, answer: str) -> None:
    lm = build(family)
    row = tokens(lm, PROMPT, ANSWERS[answer])
    with quiet():
        found = knowledge_neurons(lm, PROMPT, ANSWERS[answer], steps=3)
    assert found.attributions.shape == (tiny.DEPTH, lm.memory(0).d_ffn)
    with torch.no_grad():
        assert found.probability == pytest.approx(float(probability(lm, 0, row)[0]), rel=1e-4)
    for layer in range(tiny.DEPTH):
        expected = brute_force(lm, layer, row, [1 / 6, 3 / 6, 5 / 6])
        largest = float(expected.abs().max())
        assert largest > 0
        torch.testing.assert_close(found.attributions[layer], expected, atol=1e-3 * largest, rtol=0)
