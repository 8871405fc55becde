import pytest
import tiny
import torch
from by_hooks import entering
from edits_parts import codebook
from malformed_parts import refused
from torch import Tensor
from transformers import T5ForConditionalGeneration

from corrigenda import LanguageModel
from corrigenda.errors import UnsupportedModelError
from corrigenda.forward.interventions import Add, Read, intervene
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import forward_logits, record
from corrigenda.models.sites import SITES, Site
from corrigenda.prompts import TokenBatch, encode_target

PROMPTS = ["the Eiffel tower is in", "the capital of the country France is the city of"]
TARGETS = ["Rome Paris London", "Berlin"]
LAYER = 2
ATOL = 1e-4
"""float32, and logits up to some tens: hundreds of roundings of 1e-6 each."""

families = pytest.mark.parametrize("family", tiny.ENCODER_DECODERS)


def rows_of(lm: LanguageModel) -> list[tuple[list[int], list[int]]]:
    """The tokens of the prompts and of their targets."""
    return [(lm.tokens(p), encode_target(lm.tokenizer, p, t)) for p, t in zip(PROMPTS, TARGETS, strict=True)]


def a_batch(lm: LanguageModel) -> TokenBatch:
    rows = rows_of(lm)
    return lm.batch([prompt + target for prompt, target in rows], [len(prompt) for prompt, _ in rows])


def parts_of(lm: LanguageModel, row: list[int]) -> tuple[list[int], list[int]]:
    """By hand, what the encoder reads of a row and what the decoder does."""
    place = row.index(lm.parts.border)
    return row[:place], [lm.model.config.decoder_start_token_id, *row[place + 1 :]]


def own_logits(lm: LanguageModel, row: list[int]) -> Tensor:
    """transformers' own logits of a row alone, (decoder's position, vocabulary)."""
    encoder, decoder = parts_of(lm, row)
    return lm.model(input_ids=torch.tensor([encoder]), decoder_input_ids=torch.tensor([decoder])).logits[0]


@families
def test_logits_are_those_of_the_decoder(family: str) -> None:
    lm = tiny.build(family)
    batch = a_batch(lm)
    logits = forward_logits(lm, batch)
    last = forward_logits(lm, batch, batch.lengths - 1)
    for number, (prompt, target) in enumerate(rows_of(lm)):
        own = own_logits(lm, prompt + target)
        encoder, _ = parts_of(lm, prompt)
        torch.testing.assert_close(logits[number, len(encoder) : len(encoder) + len(own)], own, atol=ATOL, rtol=ATOL)
        torch.testing.assert_close(last[number], own[-1], atol=ATOL, rtol=ATOL)
        assert len(own) == len(target) + (2 if family == "bart" else 1)  # BART's first token is fixed


@families
def test_what_is_generated_is_what_transformers_generates(family: str) -> None:
    lm = tiny.build(family, seed=3)
    found = lm.generate(PROMPTS, 8)
    for text, (prompt, _) in zip(found, rows_of(lm), strict=True):
        encoder, begun = parts_of(lm, prompt)
        own = lm.model.generate(
            input_ids=torch.tensor([encoder]), max_new_tokens=8 + len(begun) - 1, do_sample=False, num_beams=1
        )
        assert text == tiny.tokenizer().decode(own[0], skip_special_tokens=True)


def test_a_routed_edit_refuses_calls_that_are_no_rows() -> None:
    """Of as many tokens of the decoder as of the encoder it would take the wrong one for the prompt's last."""
    lm = tiny.build("t5")
    ids = torch.tensor([[5, 6, 7]])
    with codebook(lm, 0).applied(lm):
        for apart in ({"decoder_input_ids": ids}, {"labels": ids}):
            refused(ValueError, "the encoder's tokens and the decoder's apart", lm.model, input_ids=ids, **apart)
        refused(ValueError, "call the generate of LanguageModel", lm.model.generate, input_ids=ids, max_new_tokens=2)
        assert lm.generate(PROMPTS[0], 2)


@families
def test_the_memory_is_the_decoders(family: str) -> None:
    """FFN(x) = m V + b, by hand from the views, and m from the keys (and the gate), at the decoder's positions."""
    lm = tiny.build(family)
    memory, batch = lm.memory(LAYER), a_batch(lm)
    assert lm.n_layers == tiny.DEPTH
    assert "decoder" in memory.path
    with entering(lm.architecture.keys(LAYER)) as inputs, memory.capture() as seen:
        forward_logits(lm, batch)
    there = torch.zeros_like(batch.input_ids, dtype=torch.bool)
    for number, (prompt, target) in enumerate(rows_of(lm)):
        there[number, len(prompt) - 1 : len(prompt) + len(target)] = True
    bias = 0 if memory.bias is None else memory.bias
    torch.testing.assert_close(
        seen.output[there], seen.coefficients[there] @ memory.values + bias, atol=ATOL, rtol=ATOL
    )
    key_bias = getattr(lm.architecture.keys(LAYER), "bias", None)
    sums = inputs[0].view(*seen.output.shape)[there] @ memory.keys.T + (0 if key_bias is None else key_bias)
    activate = lm.model.get_decoder().layers[0].activation_fn if hasattr(lm.model.get_decoder(), "layers") else None
    if memory.gates is not None:
        gate = inputs[0][there] @ memory.gates.T
        made = torch.nn.functional.gelu(gate, approximate="tanh") * sums
    else:
        made = sums.relu() if activate is None else activate(sums)
    torch.testing.assert_close(seen.coefficients[there], made, atol=ATOL, rtol=ATOL)
    assert (memory.gates is not None) == (family in ("mt5", "t5-gated", "umt5"))


@families
def test_every_site_is_read_and_changed(family: str) -> None:
    lm = tiny.build(family)
    batch = lm.batch([prompt for prompt, _ in rows_of(lm)])
    at = batch.lengths - 1
    plain = forward_logits(lm, batch, at)
    for name in SITES:
        if name == "embeddings":  # the encoder's and the decoder's are one module
            continue
        site = Site(name, None if name == "before_head" else LAYER)
        with intervene(lm, site, Read(), at) as seen:
            read = forward_logits(lm, batch, at)
        torch.testing.assert_close(read, plain, atol=ATOL, rtol=ATOL)
        assert seen.value.shape[0] == len(batch)
        assert seen.value.isfinite().all()
        delta = torch.randn(seen.value[0].shape, generator=torch.Generator().manual_seed(0))
        with intervene(lm, site, Add(delta), at):
            changed = forward_logits(lm, batch, at)
        assert not torch.allclose(changed, plain, atol=1e-4), name
    assert torch.equal(forward_logits(lm, batch, at), plain)


@families
def test_a_partial_forward_equals_the_full_one(family: str) -> None:
    lm = tiny.build(family)
    batch = a_batch(lm)
    recording = record(lm, batch, [LAYER])
    at = batch.lengths - 1
    start = torch.tensor([len(prompt) - 1 for prompt, _ in rows_of(lm)])
    partial = PartialForward(lm, recording, LAYER, start)
    delta = torch.randn(lm.memory(LAYER).d_model, generator=torch.Generator().manual_seed(0))
    with lm.memory(LAYER).add(delta, at):
        full = forward_logits(lm, batch, at)
    with lm.memory(LAYER).add(delta, partial.local(at)):
        part = partial.logits(partial.local(at))
    torch.testing.assert_close(part.log_softmax(-1), full.log_softmax(-1), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(part, forward_logits(lm, batch, at), atol=1e-3)


def test_a_tokenizer_that_two_models_share_is_left_alone() -> None:
    first = tiny.build("t5")
    tokenizer = tiny.tokenizer()
    lm = LanguageModel(first.model, tokenizer)
    assert lm.tokens(PROMPTS[0]) == [*tokenizer(PROMPTS[0])["input_ids"], lm.parts.border]
    assert LanguageModel(tiny.build("llama").model, tokenizer).tokens(PROMPTS[0]) == tokenizer(PROMPTS[0])["input_ids"]


def test_a_plain_text_is_refused() -> None:
    lm = tiny.build("t5")
    with pytest.raises(UnsupportedModelError, match="running text"):
        forward_logits(lm, lm.batch([[5, 6, 7]]))


def test_the_models_own_calls_go_through() -> None:
    lm = tiny.build("t5")
    plain = T5ForConditionalGeneration(lm.model.config).eval()
    plain.load_state_dict(lm.model.state_dict())
    ids, labels = torch.tensor([[5, 6, 7]]), torch.tensor([[8, 9]])
    with torch.no_grad():
        assert torch.equal(lm.model(input_ids=ids, labels=labels).loss, plain(input_ids=ids, labels=labels).loss)


def test_an_answer_without_a_known_beginning_is_refused() -> None:
    model = tiny.build("t5").model
    model.config.decoder_start_token_id = None
    model.generation_config.decoder_start_token_id = None
    with pytest.raises(UnsupportedModelError, match="decoder_start_token_id"):
        LanguageModel(model, tiny.tokenizer())
