import pytest
import tiny
import torch

from corrigenda import Fact, LanguageModel
from corrigenda.forward.recording import forward_logits
from locate import (
    knowledge_neurons,
    logit_lens,
    sub_updates,
)

FACT = Fact(subject="the Eiffel tower", prompt="{} is located in the city of", target_new="Rome", target_true="Paris")


def logits_of(lm: LanguageModel) -> torch.Tensor:
    """Of the answer's first token, (vocabulary,)."""
    batch = lm.batch([lm.tokens(FACT.statement)])
    return forward_logits(lm, batch, batch.lengths - 1)[0]


@pytest.mark.parametrize("family", ["mbart", "pegasus", "t5", "t5-gated"])
def test_the_lens_reads_the_decoder(family: str) -> None:
    lm = tiny.build(family)
    logits = logits_of(lm)
    grid = logit_lens(lm, FACT.statement)
    assert grid.top_ids.shape == (tiny.DEPTH, 1)  # where the answer begins
    assert int(grid.top_ids[-1, 0]) == int(logits.argmax())
    assert float(grid.top_probabilities[-1, 0]) == pytest.approx(float(logits.softmax(-1).max()), abs=1e-5)
    found = sub_updates(lm, FACT.statement, k=3, words=2)
    assert found.token_id == int(logits.argmax())
    layer, place = 1, int(found.dominant[1, 0])
    with lm.memory(layer).capture() as seen:
        logits_of(lm)
    assert float(seen.coefficients[0, -1, place]) == pytest.approx(float(found.coefficients[layer, 0]), rel=1e-4)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_knowledge_neurons_are_the_decoders(family: str) -> None:
    lm = tiny.build(family)
    layer = 2
    found = knowledge_neurons(lm, FACT, answer="Rome", layers=(layer,), steps=200)
    [place] = found.question.predicting
    at = torch.tensor([place])
    token = found.question.answer_ids[0]
    batch = lm.batch([found.question.ids])
    whole = float(forward_logits(lm, batch, at).softmax(-1)[0, token])
    with lm.memory(layer).scale(0.0, at):
        none = float(forward_logits(lm, batch, at).softmax(-1)[0, token])
    assert float(found.attributions.sum()) == pytest.approx(whole - none, abs=0.02 * abs(whole - none) + 1e-6)
