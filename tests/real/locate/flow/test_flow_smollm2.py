"""Flow and edits in words on the real model: what the papers find of it, on one fact that it knows."""

from contextlib import ExitStack

import pytest
import torch

from corrigenda import Fact, LanguageModel
from corrigenda.forward.knockout import knocked_out
from editing import Shift
from locate import attention_knockout, backward_lens, edit_lens

FACT = Fact("The Eiffel Tower", "{} is located in the city of", "Rome", "Paris")


def test_knockout_equals_whole_forwards_and_takes_the_answer_away(smollm2: LanguageModel) -> None:
    found = attention_knockout(smollm2, FACT)
    ids = smollm2.tokens(FACT.statement)
    n, paris = len(ids), found.answer_ids[0]
    end = n - len(smollm2.tokenizer(" is located in the city of", add_special_tokens=False)["input_ids"])
    edges = torch.zeros(1, n, n, dtype=torch.bool)
    edges[0, -1, :end] = True
    for centre in (0, 12, 20):
        with torch.no_grad(), ExitStack() as stack:
            for layer in range(max(0, centre - 4), centre + 5):
                stack.enter_context(knocked_out(smollm2, layer, edges))
            logits = smollm2.model(input_ids=torch.tensor([ids])).logits[0, -1]
        wanted = float(logits.log_softmax(-1)[paris])
        assert float(found.probabilities[0, centre].log()) == pytest.approx(wanted, abs=1e-4)
    assert float(found.changes[0].min()) < -0.5


def test_a_gradient_and_a_shift_say_the_target(smollm2: LanguageModel) -> None:
    gradient = backward_lens(smollm2, FACT)
    last = gradient.predicting[0]
    assert int(gradient.ranks[-1, last]) == 0
    edit = Shift(layer=-1).edit(smollm2, [FACT])
    reading = edit_lens(smollm2, edit)
    assert reading.facts[0].weights_ranks[0] < 200  # of 49,152; what raises a logit also has to mind the norm
