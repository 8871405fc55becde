"""Edits that are computed where an edit is applied that looks for the prompt's end: the object is no part of it."""

import dataclasses

import pytest
import tiny
import torch
from edits_parts import Make, drawn, origin, scoped, set_where_predicting
from torch import Tensor

from corrigenda import CodebookEdit, CoefficientEdit, Edit, Fact, LanguageModel, Origin, ScopedEdit
from corrigenda.forward.interventions import Read, intervene
from corrigenda.forward.recording import forward_logits
from corrigenda.models.sites import Site
from editing import Shift
from editing.locate_then_edit.passes import SubjectRows
from editing.locate_then_edit.prompts import build_prompts
from editing.locate_then_edit.replay import replayed
from editing.shared.training_rows import RowsForward, SideLayer, target_rows

FACT = Fact("Danielle Darrieux", "the mother tongue of {} is the", "French and German")
TOWER = Fact("the Eiffel tower", "{} is located in the city of", "Rome .")
BEHIND = Fact("the river", "located in {}", "Rome .")
FACTS = [FACT, TOWER, BEHIND]
PREFIXES = ["", "the city ."]


def book(lm: LanguageModel, seed: int) -> Edit:
    """Its value stands at all tokens of a prompt that ends in one of two ways: in "the", or in the subject."""
    memory = lm.memory(1)
    ends = []
    for text in (FACT.statement, TOWER.subject):
        with memory.capture() as seen, torch.no_grad():
            lm.model(torch.tensor([lm.tokens(text)]))
        ends.append(seen.coefficients[0, -1])
    values = 3 * drawn(seed, 2, memory.d_model)
    return CodebookEdit.of(memory, origin(lm), torch.stack(ends), values, torch.full((2,), 1e-3), replace="all")


def gated(lm: LanguageModel, seed: int) -> Edit:
    """It speaks at the prompts of the tower and of the river, by what enters layer 1."""
    edit = scoped(lm, seed)
    assert isinstance(edit, ScopedEdit)
    asks = edit.gate.of_prompts(lm, lm.batch([lm.tokens(fact.statement) for fact in (TOWER, BEHIND)]))
    names = ("Eiffel tower",), ("river",)
    return dataclasses.replace(edit, keys=asks, entries=torch.tensor([0, 1]), names=names, threshold=0.99)


def test_the_objects_probability_is_that_of_what_is_generated(lm: LanguageModel) -> None:
    edit = CoefficientEdit.of(lm, Origin(lm.name, lm.fingerprint, "test"), {(1, 3): 5.0}, "predicting", "add")
    prompt, answer, wanted = lm.tokens(FACT.statement), lm.tokens(str(FACT.target_new)), []
    with edit.applied(lm), torch.no_grad():
        ids, given = torch.tensor([prompt]), None
        for token in answer:  # token by token: the cache knows the prompt
            output = lm.model(ids, past_key_values=given, use_cache=True)
            wanted.append(output.logits[0, -1])
            ids, given = torch.tensor([[token]]), output.past_key_values
        prompts = build_prompts(lm, [FACT], ["", "the city ."], "{} is a", "subject")
        found = forward_logits(lm, prompts.batch, prompts.predicts)[: len(answer)]
        with lm.memory(2).capture() as seen:
            lm.model(torch.tensor([prompt]))
        left, _ = Shift(layer=2).edit(lm, [FACT]).factors[2]
    assert torch.allclose(found, torch.stack(wanted), atol=1e-4)
    assert torch.allclose(left[:, 0], seen.coefficients[0, -1], atol=1e-5)


@pytest.mark.parametrize("make", [book, gated, set_where_predicting])
def test_keys_and_outputs_are_those_of_whole_prompts(make: Make) -> None:
    lm, weights = tiny.build("llama"), torch.tensor([0.25, 0.75])
    with make(lm, 1).applied(lm), torch.no_grad():
        prompts = build_prompts(lm, FACTS, PREFIXES, "{} is a", "subject")
        rows = SubjectRows(lm, [prompts])
        (first, keys), bare = (by_hand(lm, "coefficients", layer, weights) for layer in (2, 3)), torch.eye(2)[0]
        aims = {layer: by_hand(lm, "block", layer, bare) for layer in (1, 2)}
        for layer, expected in ((2, first), (3, keys)):  # the second from what the first has run
            found, outputs = rows.measured(lm, layer, layer, "block", weights)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(outputs, by_hand(lm, "block", layer, bare), atol=1e-5, rtol=1e-4)
        again = replayed(lm, [prompts], [1, 2], aims[1], "block")  # of a target that is what is there already
        torch.testing.assert_close(again[2], aims[2], atol=1e-5, rtol=1e-4)


def by_hand(lm: LanguageModel, part: str, layer: int, weights: Tensor) -> Tensor:
    """What is there at the subjects' last tokens, in the mean over the contexts; each prompt by itself, whole."""
    found = []
    for fact in FACTS:
        texts = [f"{prefix} {fact.statement}".strip() for prefix in PREFIXES]
        ends = [len(lm.tokens(text[: text.index(fact.subject) + len(fact.subject)])) - 1 for text in texts]
        each = []
        for text, end in zip(texts, ends, strict=True):
            with intervene(lm, Site(part, layer), Read()) as seen:  # type: ignore[arg-type]
                lm.model(torch.tensor([lm.tokens(text)]))
            each.append(seen.value[0, end])
        found.append(weights @ torch.stack(each))
    return torch.stack(found)


def test_rows_that_start_above_a_gate_go_the_way_of_whole_ones(lm: LanguageModel) -> None:
    with gated(lm, 1).applied(lm), torch.no_grad():
        side = SideLayer(lm, 1)
        asked = [target_rows(lm, fact, end=False) for fact in FACTS]
        rows = side.run(asked)
        found = RowsForward(side, rows.pick([1, 0]) + rows.pick([2])).nll()
        for number, place in ((1, 0), (0, 1), (2, 2)):
            ids, prompt = asked[number]
            batch = lm.batch([ids], [prompt])
            log_probs = forward_logits(lm, batch)[0, prompt - 1 : -1].log_softmax(-1)
            expected = -log_probs.gather(1, batch.input_ids[0, prompt:, None]).mean()
            torch.testing.assert_close(found[place], expected, atol=1e-5, rtol=1e-4)
