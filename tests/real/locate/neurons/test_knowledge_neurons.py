import pytest
import torch
from knowledge_neurons_parts import probability, tokens

from corrigenda import Fact, LanguageModel
from locate.neurons.knowledge_neurons import knowledge_neurons


def test_completeness_real(smollm2: LanguageModel) -> None:
    fact = Fact("The Eiffel Tower", "{} is located in the city of", "Rome", "Paris")
    found = knowledge_neurons(smollm2, fact, steps=100, layers=[0, 12, 29])
    row = tokens(smollm2, fact.statement, " Paris")
    for number, layer in enumerate(found.layers):
        with torch.no_grad():
            full, m = probability(smollm2, layer, row)
            baseline, _ = probability(smollm2, layer, row, torch.zeros_like(m))
        assert abs(float(full - baseline)) > 0.01
        assert float(found.by_layer()[number]) == pytest.approx(float(full - baseline), rel=0.01)
