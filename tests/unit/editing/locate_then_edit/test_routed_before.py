"""Edits that are computed where an edit is applied that looks for the prompt's end: the object is no part of it."""

import tiny
import torch

from corrigenda import CoefficientEdit, Fact, Origin
from corrigenda.forward.recording import forward_logits
from editing import Shift
from editing.locate_then_edit.prompts import build_prompts

FACT = Fact("Danielle Darrieux", "the mother tongue of {} is the", "French and German")


def test_the_objects_probability_is_that_of_what_is_generated() -> None:
    lm = tiny.build("llama")
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
