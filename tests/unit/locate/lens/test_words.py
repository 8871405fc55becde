from dataclasses import replace

import pytest
import tiny
import torch
from malformed_parts import refused

from corrigenda import LanguageModel
from corrigenda.errors import UnsupportedModelError
from corrigenda.forward.interventions import Read, intervene
from corrigenda.forward.recording import forward_logits
from corrigenda.models.sites import Site
from locate.lens import words


def last_states(lm: LanguageModel) -> tuple[torch.Tensor, torch.Tensor]:
    """The states after the last block, and the model's logits, of two rows of different length."""
    batch = lm.batch([[4, 9, 12, 30, 7], [5, 6, 8]])
    at = batch.attention_mask.bool()
    with torch.no_grad(), intervene(lm, Site("block", -1), Read(), at) as seen:
        logits = forward_logits(lm, batch, at)
    return seen.value, logits


def test_a_soft_cap_is_the_models_own() -> None:
    lm = tiny.build("gemma2")
    lm.model.config.final_logit_softcapping = None
    states, plain = last_states(lm)
    lm.model.config.final_logit_softcapping = 0.5
    assert torch.allclose(words.read_states(lm, states), 0.5 * (plain / 0.5).tanh(), atol=1e-5)


def test_many_states_are_read_in_parts(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    states, logits = last_states(lm)
    monkeypatch.setattr(words, "ROWS", 3)
    assert torch.allclose(words.read_states(lm, states), logits, atol=1e-5)
    assert words.read_states(lm, states[:0]).shape == (0, logits.shape[-1])


def test_a_float64_model_is_read_in_float64() -> None:
    lm = tiny.build("qwen2")
    lm.model.double()
    states, logits = last_states(lm)
    assert words.read_states(lm, states).dtype == torch.float64
    assert torch.allclose(words.read_states(lm, states), logits, atol=1e-12)
    assert words.read_static(lm, states).dtype == torch.float64


@pytest.mark.parametrize("family", tiny.DECODERS)
def test_static_scores_are_the_plain_product(family: str) -> None:
    lm = tiny.build(family)
    norm, draw = lm.architecture.final_norm, torch.Generator().manual_seed(0)
    gamma = torch.ones(tiny.WIDTH)
    if family != "olmo":  # whose norm has no weight
        norm.weight.data.copy_(1 + 0.3 * torch.randn(tiny.WIDTH, generator=draw))
        gamma = norm.weight + (1.0 if family.startswith("gemma") else 0.0)  # Gemma's norms keep gamma - 1
    vectors = torch.randn(2, 3, tiny.WIDTH, generator=draw)
    expected = (vectors * gamma) @ lm.model.get_output_embeddings().weight.T
    found = words.read_static(lm, vectors)
    assert torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()))
    assert torch.allclose(words.read_static(lm, -2 * vectors), -2 * found, atol=1e-4)


def test_static_scores_of_a_lower_precision_are_taken_some_tokens_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny.build("llama")
    lm.model.bfloat16()
    monkeypatch.setattr(words, "COLUMNS", 7)
    vectors = torch.randn(2, 3, tiny.WIDTH, generator=torch.Generator().manual_seed(0))
    gamma = lm.architecture.final_norm.weight.float()
    expected = (vectors * gamma) @ lm.model.get_output_embeddings().weight.float().T
    found = words.read_static(lm, vectors)
    assert found.dtype == torch.float32
    assert torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()))


def test_what_is_changed_in_the_blocks_changes_no_reading(lm: LanguageModel) -> None:
    states, _ = last_states(lm)
    before = words.read_states(lm, states)
    with lm.memory(3).scale(5.0), lm.memory(0).scale(5.0):
        assert torch.equal(words.read_states(lm, states), before)
    assert torch.equal(last_states(lm)[0], states)


def test_top_and_bottom_and_ranks(lm: LanguageModel) -> None:
    scores = torch.zeros(tiny.VOCABULARY)
    scores[words.token_id(lm, "Paris")] = 3.0
    scores[words.token_id(lm, "Rome")] = 2.0
    scores[words.token_id(lm, "piano")] = -4.0
    best = words.top(lm, scores, 2)
    assert best == words.Words(best.ids, ("Paris", "Rome"), (3.0, 2.0))
    assert words.bottom(lm, scores, 1).texts == ("piano",)
    assert words.bottom(lm, scores, 1).scores == (-4.0,)
    assert str(best) == "'Paris', 'Rome'"
    assert len(best) == 2
    assert int(words.rank_of(scores, best.ids[0])) == 0
    assert int(words.rank_of(scores, best.ids[1])) == 1
    assert int(words.rank_of(scores, words.token_id(lm, "piano"))) == tiny.VOCABULARY - 1
    both = words.rank_of(torch.stack([scores, -scores]), torch.tensor([best.ids[0], best.ids[1]]))
    assert both.tolist() == [0, tiny.VOCABULARY - 2]
    assert len(words.top(lm, scores, 10_000)) == tiny.VOCABULARY
    refused(ValueError, "k=0", words.top, lm, scores, 0)
    refused(ValueError, "one row of scores", words.top, lm, scores[None])


def test_a_sign_is_the_token_that_it_is_behind_a_word(lm: LanguageModel) -> None:
    lm.tokenizer = tiny.space_before()
    assert [words.token_id(lm, text) for text in (".", " .", "Paris", " Paris")] == [2, 1, 3, 3]


def test_a_token_is_named_by_its_text_or_number(lm: LanguageModel) -> None:
    paris = lm.tokenizer.convert_tokens_to_ids("Paris")
    assert words.token_id(lm, "Paris") == words.token_id(lm, " Paris") == words.token_id(lm, paris) == paris
    with pytest.raises(
        words.UnknownTokenError, match=r"'Eiffel tower' is 2 tokens of tiny-llama \('Eiffel', 'tower'\)"
    ):
        words.token_id(lm, "Eiffel tower")
    refused(words.UnknownTokenError, "does not know the token 'Kyoto'", words.token_id, lm, "Kyoto")
    refused(words.UnknownTokenError, "empty", words.token_id, lm, "")
    refused(words.UnknownTokenError, "no token 5000: its tokens are 0 to", words.token_id, lm, 5000)
    refused(TypeError, r"1\.5", words.token_id, lm, 1.5)


def test_what_cannot_be_read_is_refused() -> None:
    bert, llama = tiny.build("bert"), tiny.build("llama")
    vectors = torch.zeros(1, tiny.WIDTH)
    for read in (words.read_states, words.read_static):
        refused(UnsupportedModelError, "is an encoder", read, bert, vectors)
        refused(ValueError, r"shape \(1, 5\)", read, llama, torch.zeros(1, 5))
    llama.architecture.family = replace(llama.architecture.family, final_norm=None)
    refused(UnsupportedModelError, "no final norm", words.read_states, llama, vectors)
