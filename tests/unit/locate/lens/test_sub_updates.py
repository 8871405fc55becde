import pytest
import tiny
import torch
from malformed_parts import refused

from corrigenda.forward.recording import forward_logits
from locate.lens.parts import parts_of
from locate.lens.sub_updates import sub_updates
from locate.lens.words import UnknownTokenError, read_static, token_id

PROMPT = "the tower of Paris is located in"


@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_promotion_and_elimination_sum_to_what_the_layer_adds(family: str) -> None:
    lm = tiny.build(family)
    lm.model.double()
    found = sub_updates(lm, PROMPT, position=4, token="Rome")
    rome = token_id(lm, "Rome")
    for layer, one in enumerate(parts_of(lm, lm.tokens(PROMPT), 4).layers):
        added, bias = one.ffn, lm.memory(layer).bias
        if bias is not None:
            added = added - bias
        if one.ffn_norm is not None:
            added = added * one.ffn_norm.gain
        assert float(found.net[layer]) == pytest.approx(float(read_static(lm, added)[rome]), abs=1e-9)
        assert float(found.promotion[layer]) >= 0 >= float(found.elimination[layer])


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_dominant_ones_are_those_by_hand(family: str) -> None:
    lm = tiny.build(family)
    found = sub_updates(lm, PROMPT, k=3, words=4)
    with torch.no_grad(), lm.memory(2).capture() as seen:
        forward_logits(lm, lm.batch([lm.tokens(PROMPT)]))
    m, values = seen.coefficients[0, -1], lm.memory(2).values
    sizes = torch.stack([(m[i] * values[i]).norm() for i in range(len(m))])
    order = sizes.argsort(descending=True)[:3]
    assert found.dominant[2].tolist() == order.tolist()
    assert torch.allclose(found.coefficients[2], m[order])
    assert torch.allclose(found.sizes[2], sizes[order])
    assert float(found.share[2]) == pytest.approx(float(sizes[order].sum() / sizes.sum()), abs=1e-5)
    scores = read_static(lm, m[order[1]] * values[order[1]])
    assert found.promoted[2][1].ids == tuple(scores.topk(4).indices.tolist())
    assert found.eliminated[2][1].ids == tuple((-scores).topk(4).indices.tolist())
    assert float(found.scores[2, 1]) == pytest.approx(float(scores[found.token_id]), abs=1e-4)


def test_saturation() -> None:
    found = sub_updates(tiny.build("gemma2"), PROMPT)
    settled = {found.top_tokens[-1]}
    assert found.saturation == next(n for n in range(tiny.DEPTH) if {*found.top_tokens[n:]} == settled)


def test_bad_input_is_refused() -> None:
    lm = tiny.build("llama")
    refused(UnknownTokenError, "Kyoto", sub_updates, lm, PROMPT, token="Kyoto")
    refused(IndexError, "position 7: the prompt has 7 tokens", sub_updates, lm, PROMPT, position=7)
    refused(ValueError, "k=0", sub_updates, lm, PROMPT, k=0)


def test_of_a_layer_that_says_nothing_the_share_of_the_dominant_ones_is_none() -> None:
    lm = tiny.build("opt")  # its ReLU gives zeros
    lm.architecture.keys(1).bias.data.fill_(-1e4)
    assert float(sub_updates(lm, "the city of").share[1]) == 0
