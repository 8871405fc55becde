import pytest
import tiny
import torch
from by_hooks import leaving, logits

from corrigenda import Fact, LanguageModel
from editing import Shift

FACT = Fact("Danielle Darrieux", "the mother tongue of {} is the", "English")


@pytest.mark.parametrize("family", ["gpt2", "llama", "opt"])
def test_the_update_by_hand(family: str) -> None:
    lm = tiny.build(family)
    memory = lm.memory(1)
    ids, token = lm.tokens(FACT.statement), lm.tokens("English")[0]
    block = lm.architecture.block
    with leaving(block(1)) as below, leaving(block(3)) as last, memory.capture() as seen:
        logits(lm, ids)
    x = last[0][0, -1].double().requires_grad_()
    norm, head = lm.architecture.final_norm, lm.model.get_output_embeddings()
    if family == "llama":
        normed = x / (x.square().mean() + norm.variance_epsilon).sqrt() * norm.weight.double()
    else:
        normed = (x - x.mean()) / (x.var(unbiased=False) + norm.eps).sqrt() * norm.weight.double() + norm.bias.double()
    [gradient] = torch.autograd.grad(normed @ head.weight[token].double(), x)
    d = gradient / gradient.norm()
    m = seen.coefficients[0, -1].double()
    wanted = 0.3 * below[0][0, -1].double().norm() / (m @ m) * torch.outer(m, d)
    edit = Shift(layer=1, strength=0.3).edit(lm, [FACT])
    assert torch.allclose(edit.delta(1).double(), wanted, atol=1e-6)


@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_it_makes_the_object_more_likely(family: str) -> None:
    lm = tiny.build(family)
    fact = Fact("Danielle Darrieux", "the mother tongue of {} is the", "English German")
    edit = Shift(layer=-1, strength=2.0).edit(lm, [fact, Fact("Big Ben", "{} stands in", "Paris")])
    assert edit.factors[3][0].shape[1] == 3  # a rank for each token of the objects
    ids = torch.tensor([lm.tokens(FACT.statement)])
    english = lm.tokens("English")[0]
    with torch.no_grad():
        plain = lm.model(input_ids=ids).logits[0, -1].log_softmax(-1)[english]
        with edit.applied(lm):
            edited = lm.model(input_ids=ids).logits[0, -1].log_softmax(-1)[english]
    assert float(edited) > float(plain)


def test_the_default_layer_is_the_papers_share_of_the_depth(lm: LanguageModel) -> None:
    assert Shift().edit(lm, [FACT]).touched == (round(35 / 48 * 4),)
