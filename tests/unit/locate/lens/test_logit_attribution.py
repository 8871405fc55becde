from dataclasses import replace

import pytest
import tiny
import torch
from malformed_parts import refused
from transformers import AutoConfig, AutoModelForCausalLM

from corrigenda import LanguageModel
from corrigenda.errors import UnsupportedModelError
from corrigenda.forward.interventions import Read, intervene
from corrigenda.forward.recording import forward_logits
from corrigenda.models.families import FAMILIES
from corrigenda.models.sites import Site, through
from locate.lens.logit_attribution import logit_attribution
from locate.lens.parts import frozen, parts_of
from locate.lens.words import UnknownTokenError, final_norm, norm_weight, token_id

PROMPT = "the tower of Paris is located in"


def shaken(family: str) -> LanguageModel:
    """A tiny model in whose norms and biases nothing is one or zero."""
    lm = tiny.build(family)
    generator = torch.Generator().manual_seed(3)
    for parameter in lm.model.parameters():
        if parameter.ndim == 1:
            parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return lm


@pytest.mark.parametrize(
    ("family", "double"), [*((f, True) for f in tiny.DECODERS), *((f, False) for f in tiny.DECODER_KINDS)]
)
def test_the_parts_sum_to_the_logit(family: str, double: bool) -> None:
    lm = shaken(family)
    if family == "gemma2":
        lm.model.config.final_logit_softcapping = None
    if double:
        lm.model.double()
    with torch.no_grad():
        logits = forward_logits(lm, lm.batch([lm.tokens(PROMPT)]))[0, -1]
    rome = token_id(lm, "Rome")
    found = logit_attribution(lm, PROMPT, "Rome")
    # float32: some 200 terms of size 1; float64: the same, in a precision a billion times finer.
    close = 1e-9 if double else 1e-4
    assert found.total == pytest.approx(float(logits[rome]), rel=0, abs=close)
    assert found.logit == pytest.approx(float(logits[rome]), rel=0, abs=close)
    assert not found.capped
    difference = logit_attribution(lm, PROMPT, "Rome", "piano")
    assert difference.total == pytest.approx(float(logits[rome] - logits[token_id(lm, "piano")]), rel=0, abs=close)


@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_what_is_no_heads_and_no_neurons_is_the_bias(family: str) -> None:
    lm = shaken(family)
    lm.model.double()
    one, other = logit_attribution(lm, PROMPT, "Rome"), logit_attribution(lm, "red piano", "Rome")
    if getattr(lm.architecture.attention_output(0), "bias", None) is None:
        assert float(one.attention_bias.abs().max()) < 1e-9
    else:
        assert float(one.attention_bias.abs().max()) > 1e-3
    if lm.memory(0).bias is None:
        assert float(one.ffn_bias.abs().max()) < 1e-9
    else:
        assert float(one.ffn_bias.abs().max()) > 1e-3
        # The same bias through norms of another scale.
        assert torch.allclose(one.ffn_bias / other.ffn_bias, (one.ffn_bias / other.ffn_bias)[0].expand(4), atol=1e-6)


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_a_neurons_part_is_the_one_by_hand(family: str) -> None:
    lm = shaken(family)
    lm.model.double()
    found = logit_attribution(lm, PROMPT, "Rome")
    batch, at = lm.batch([lm.tokens(PROMPT)]), torch.tensor([6])
    with torch.no_grad(), intervene(lm, Site("block", -1), Read(), at) as last, lm.memory(-1).capture(at) as seen:
        forward_logits(lm, batch)
    x, norm, part = last.value[0], lm.architecture.final_norm, seen.coefficients[0, 5] * lm.memory(-1).values[5]
    gamma = norm_weight(norm, len(x))
    centred = part if family == "llama" else part - part.mean()
    scale = (x.square().mean() + 1e-6 if family == "llama" else x.var(unbiased=False) + 1e-5).sqrt()
    by_hand = (gamma * centred / scale) @ lm.model.get_output_embeddings().weight[token_id(lm, "Rome")]
    # Llama's norm works in float32 in any model.
    assert float(found.neurons[-1, 5]) == pytest.approx(float(by_hand), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("family", [*tiny.DECODER_KINDS, "cohere", "granite"])
def test_a_heads_part_is_what_goes_with_it(family: str) -> None:
    lm = shaken(family)
    lm.model.double()
    found = logit_attribution(lm, PROMPT, "Rome")
    assert found.heads.shape == (4, 4)
    assert found.neurons.shape == (4, lm.memory(0).d_ffn)
    parts = parts_of(lm, lm.tokens(PROMPT))
    whole = parts.layers[2]
    weight = lm.architecture.attention_output(2)
    with torch.no_grad():
        only = torch.zeros_like(whole.heads)
        only[1] = whole.heads[1]
        given = weight(only.flatten()) - weight(torch.zeros_like(only.flatten()))
    norm = frozen(final_norm(lm), parts.last)
    direction = whole.attention_direction(norm.pull(lm.model.get_output_embeddings().weight[token_id(lm, "Rome")]))
    settings = lm.model.config.to_dict()  # what Cohere multiplies its logits by, and Granite divides them by
    slope = settings.get("logit_scale", 1.0) / settings.get("logits_scaling", 1.0)
    assert float(found.heads[2, 1]) == pytest.approx(slope * float(given @ direction), abs=1e-9)


def test_factors_before_the_parts_and_behind_the_head_are_found() -> None:
    sizes = {**tiny.CONFIGS["llama"], "residual_multiplier": 0.3, "logits_scaling": 4.0, "embedding_multiplier": 2.0}
    sizes.pop("head_dim")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model("granite", **sizes))
    for parameter in model.parameters():
        parameter.data.mul_(3 if parameter.ndim == 2 else 1)
    lm = LanguageModel(model, tiny.tokenizer(), "tiny-granite", FAMILIES["llama"])
    found = logit_attribution(lm, PROMPT, "Rome")
    assert found.total == pytest.approx(found.logit, abs=1e-4)
    assert not found.capped
    assert float((found.heads.sum(1) - found.attention).abs().max()) < 1e-5


def test_behind_a_soft_cap_the_sum_is_what_is_capped() -> None:
    lm = tiny.build("gemma2")
    lm.model.config.final_logit_softcapping = 0.5
    found = logit_attribution(lm, PROMPT, "Rome")
    assert found.capped
    assert found.logit == pytest.approx(0.5 * torch.tensor(found.total / 0.5).tanh().item(), abs=1e-5)


def test_the_most_likely_token_is_taken_by_default() -> None:
    lm = tiny.build("gpt2")
    found = logit_attribution(lm, PROMPT, position=2)
    with torch.no_grad():
        logits = forward_logits(lm, lm.batch([lm.tokens(PROMPT)]))[0, 2]
    assert found.token_id == int(logits.argmax())
    assert found.position == 2
    layer, neuron, value = found.top_neurons(1)[0]
    assert abs(value) == float(found.neurons.abs().max()) == abs(float(found.neurons[layer, neuron]))


def test_bad_input_is_refused(lm: LanguageModel) -> None:
    refused(UnknownTokenError, "Kyoto", logit_attribution, lm, PROMPT, "Kyoto")
    refused(IndexError, "position 20: the prompt has 7 tokens, 0 to 6", logit_attribution, lm, PROMPT, position=20)
    lm.architecture.family = replace(lm.architecture.family, final_norm=None)
    refused(UnsupportedModelError, "no final norm", logit_attribution, lm, PROMPT)


def test_a_layer_that_adds_something_else_is_refused(lm: LanguageModel) -> None:
    with (
        through(lm.architecture, Site("block", 1), lambda state: state + 1),
        pytest.raises(UnsupportedModelError, match="what layer 1 adds is not what its attention and its FFN give"),
    ):
        logit_attribution(lm, PROMPT)
