"""Locators with an edit applied that looks for the prompt's end: an answer is no part of the prompt."""

from collections.abc import Callable

import pytest
import torch

from corrigenda import CoefficientEdit, Fact, LanguageModel, Origin
from locate import attention_knockout, causal_trace, knowledge_neurons
from locate.neurons.suppression import probabilities_scaled
from locate.question import ask

FACT = Fact("Danielle Darrieux", "the mother tongue of {} is the", "English")
ANSWER = "French and German"

LOCATORS: dict[str, Callable[[LanguageModel], float]] = {
    "trace": lambda lm: causal_trace(lm, FACT, ANSWER).p_clean,
    "knockout": lambda lm: attention_knockout(lm, FACT, ANSWER).p_clean,
    "neurons": lambda lm: knowledge_neurons(lm, FACT, ANSWER, steps=1).probability,
    "suppression": lambda lm: float(probabilities_scaled(lm, ask(lm, FACT, ANSWER), [[(0, 0)]], 1.0)[0]),
}


@pytest.mark.parametrize("name", LOCATORS)
def test_the_answers_probability_is_that_of_what_is_generated(lm: LanguageModel, name: str) -> None:
    edit = CoefficientEdit.of(lm, Origin(lm.name, lm.fingerprint, "test"), {(1, 3): 50.0}, "predicting", "add")
    prompt, answer = lm.tokens(FACT.statement), lm.tokens(ANSWER)
    plain = LOCATORS[name](lm)
    with edit.applied(lm), torch.no_grad():
        # Token by token: the cache knows the prompt.
        ids, given, wanted = torch.tensor([prompt]), None, 1.0
        for token in answer:
            output = lm.model(ids, past_key_values=given, use_cache=True)
            wanted *= float(output.logits[0, -1].softmax(-1)[token])
            ids, given = torch.tensor([[token]]), output.past_key_values
        found = LOCATORS[name](lm)
    assert found == pytest.approx(wanted, rel=1e-4)
    assert found != pytest.approx(plain, rel=1e-2)
