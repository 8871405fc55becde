import pytest
import tiny
import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from locate.lens.backward import BackwardLens, backward_lens
from locate.lens.words import read_static

FACT = Fact("Danielle Darrieux", "the mother tongue of {} is the", "English")
ANSWER = "French German"


def by_autograd(lm: LanguageModel, answer: str) -> list[Tensor]:
    """The gradient of -log P, the mean over the target's tokens, for the values of every layer, (d_ffn, d_model)."""
    prompt, target = lm.tokens(FACT.statement), lm.tokens(answer)
    weights = [lm.memory(layer).weight.requires_grad_() for layer in range(lm.n_layers)]
    logits = lm.model(input_ids=torch.tensor([[*prompt, *target[:-1]]]), use_cache=False).logits[0, len(prompt) - 1 :]
    loss = -logits.log_softmax(-1)[range(len(target)), target].mean()
    gradients = torch.autograd.grad(loss, weights)
    for weight in weights:
        weight.requires_grad_(False)
    return [g if lm.memory(n).transposed else g.T for n, g in enumerate(gradients)]


@pytest.mark.parametrize("answer", ["French", ANSWER])
@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_the_outer_products_sum_to_the_gradient(family: str, answer: str) -> None:
    lm = tiny.build(family)
    # gpt_neo and gptj compute their attention in float32 whatever the model is in, and so do some norms.
    lm.model.double()
    found = backward_lens(lm, FACT, answer)
    assert found.factors["gradients"].dtype == torch.float64
    for layer, wanted in enumerate(by_autograd(lm, answer)):
        assert float(wanted.norm()) > 0
        exact = family not in ("gpt_neo", "gptj")
        assert torch.allclose(found.gradient(layer), wanted, rtol=0, atol=1e-9 if exact else 1e-5), (family, layer)


def test_each_factor_is_read_in_words(lm: LanguageModel) -> None:
    found = backward_lens(lm, FACT, ANSWER, layers=(-1, 0), words=3)
    assert found.layers == (3, 0)
    assert found.predicting == (7, 8)
    assert len(found.tokens) == 9
    delta = found.factors["gradients"][0, 7]
    gamma, matrix = lm.model.model.norm.weight, lm.model.lm_head.weight
    scores = matrix @ (gamma * -delta)
    best = scores.topk(3).indices.tolist()
    assert found.shift[0][7] == tuple(lm.tokenizer.decode([token]) for token in best)
    french = lm.tokens("French")[0]
    assert int(found.ranks[0, 7]) == int((scores > scores[french]).sum())
    # Where the target is predicted, a step at the last layer says the target itself.
    assert int(found.ranks[0, 7]) == 0
    said = read_static(lm, found.factors["outputs"][1, 2]).topk(3).indices.tolist()
    assert found.output[1][2] == tuple(lm.tokenizer.decode([token]) for token in said)


@pytest.mark.parametrize("family", ["gpt2", "llama", "opt", "phi3"])
def test_the_imprint_is_what_enters_the_network(family: str) -> None:
    lm = tiny.build(family)
    found = backward_lens(lm, FACT, "French", layers=(1,))
    inputs = found.factors["inputs"][0]
    memory = lm.memory(1)
    scores = inputs @ memory.keys.T
    bias = getattr(lm.architecture.keys(1), "bias", None)
    scores = scores if bias is None else scores + bias
    act = lm.model.config.to_dict().get("hidden_act") or lm.model.config.to_dict().get("activation_function")
    function = {"silu": torch.nn.functional.silu, "relu": torch.relu}.get(
        str(act), lambda x: torch.nn.functional.gelu(x, approximate="tanh")
    )
    m = function(scores) if memory.gates is None else function(inputs @ memory.gates.T) * scores
    assert torch.allclose(m, found.factors["coefficients"][0], atol=1e-4)


def test_the_new_object_is_taken_by_default() -> None:
    lm = tiny.build("gpt2")
    found = backward_lens(lm, FACT)  # of its new object
    assert (found.fact, found.target) == (FACT, "English")
    with pytest.raises(ValueError, match="layer 9 is not among"):
        found.gradient(9)


def test_a_space_alone_before_the_target_is_not_what_is_ranked() -> None:
    lm = tiny.build_byte_level()
    found = backward_lens(lm, tiny.NUMBER, layers=(1,))
    assert lm.tokenizer.decode(found.target_ids) == " 1949"
    scores = read_static(lm, -found.factors["gradients"][0])
    one = scores[:, found.target_ids[1], None]
    assert torch.equal(found.ranks[0], (scores > one).sum(-1))


def test_what_cannot_be_asked() -> None:
    with pytest.raises(IndexError, match="layer 9"):
        backward_lens(tiny.build("gpt2"), FACT, layers=(9,))


def test_no_layer_is_refused_when_it_is_named() -> None:
    with pytest.raises(ValueError, match=r"BackwardLens: layers=\(\) names no layer"):
        BackwardLens(layers=())
