"""Locators with an edit applied that looks for the prompt's end: an answer is no part of the prompt."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Literal

import pytest
import tiny
import torch
from tracing_parts import NOISE, brute_force

from corrigenda import CoefficientEdit, Fact, LanguageModel, Origin
from corrigenda.edits.codebook import CodebookEdit
from corrigenda.forward.interventions import Add, intervene
from corrigenda.forward.knockout import knocked_out
from corrigenda.forward.recording import forward_logits
from corrigenda.models.sites import Site
from locate import CausalTrace, attention_knockout, causal_trace, knowledge_neurons
from locate.flow.function import transplant
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


@pytest.fixture
def routed() -> tuple[LanguageModel, CodebookEdit]:
    """A model whose codebook answers after the fact's prompt, as long as its key in layer 2 is near what it was."""
    lm = tiny.build("llama", scale=8.0)
    memory, batch = lm.memory(2), lm.batch([lm.tokens(FACT.statement)])
    with memory.capture(batch.lengths - 1) as seen, torch.no_grad():
        forward_logits(lm, batch)
    value = 30 * torch.randn(1, memory.d_model, generator=torch.Generator().manual_seed(1))
    radius = 0.3 * seen.coefficients.norm()[None]
    origin = Origin(lm.name, lm.fingerprint, "test")
    return lm, CodebookEdit.of(memory, origin, seen.coefficients, value, radius)


@pytest.mark.parametrize("site", ["block", "attention"])
def test_what_is_restored_decides_whether_an_edit_answers(
    routed: tuple[LanguageModel, CodebookEdit], site: Literal["block", "attention"]
) -> None:
    lm, edit = routed
    settings = CausalTrace(site=site, window=2, noise=replace(NOISE, sigma=1.0))
    with edit.applied(lm):
        trace = settings.find(lm, FACT, "top")
        wanted = brute_force(lm, FACT, settings, list(trace.answer_ids))
    assert torch.allclose(trace.scores, wanted, atol=1e-6, rtol=1e-3)


def test_what_is_knocked_out_decides_whether_an_edit_answers(routed: tuple[LanguageModel, CodebookEdit]) -> None:
    lm, edit = routed
    with edit.applied(lm):
        found = attention_knockout(lm, FACT, "top", sources=["subject"], window=2 * lm.n_layers)
        n = found.answer_ids
        ids = torch.tensor([lm.tokens(FACT.statement)])
        edges = torch.zeros(1, ids.shape[1], ids.shape[1], dtype=torch.bool)
        edges[0, -1, [4, 5]] = True
        with torch.no_grad(), ExitStack() as stack:
            for layer in range(lm.n_layers):
                stack.enter_context(knocked_out(lm, layer, edges))
            wanted = lm.model(ids).logits[0, -1].softmax(-1)[list(n)]
    assert torch.allclose(found.probabilities[0], wanted.expand(lm.n_layers), atol=1e-6, rtol=1e-3)


def test_what_is_transplanted_decides_whether_an_edit_answers(routed: tuple[LanguageModel, CodebookEdit]) -> None:
    lm, edit = routed
    batch = lm.batch([lm.tokens(FACT.statement)])
    other = lm.batch([lm.tokens("the language of France is")])
    with edit.applied(lm), torch.no_grad():
        found = transplant(lm, "the language of France is", FACT.statement, "French")
        for layer in range(lm.n_layers):
            with lm.memory(layer).capture(other.lengths - 1) as seen:
                forward_logits(lm, other)
            with intervene(lm, Site("ffn", layer), Add(seen.output), batch.lengths - 1):
                logits = forward_logits(lm, batch, batch.lengths - 1)[0]
            wanted = logits.softmax(-1)[lm.tokens("French")]
            assert float(found.probabilities[layer]) == pytest.approx(float(wanted), rel=1e-3), layer
