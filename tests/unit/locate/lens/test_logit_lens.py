import pytest
import tiny
import torch

from corrigenda.forward.interventions import Read, intervene
from corrigenda.forward.recording import forward_logits
from corrigenda.models.sites import Site
from locate.lens.logit_lens import LogitLensResult, logit_lens
from locate.lens.words import UnknownTokenError, token_id

PROMPT = "the tower of Paris is located in"


@pytest.mark.parametrize("family", [*tiny.DECODERS, *tiny.MIXTURES])
def test_the_last_row_is_the_models_own_distribution(family: str) -> None:
    """TransformerLens#693, #828: soft caps, scales and norms between the last state and the logits were left out."""
    lm = tiny.build(family)
    grid = logit_lens(lm, PROMPT, "Rome")
    with torch.no_grad():
        own = forward_logits(lm, lm.batch([lm.tokens(PROMPT)]))[0].softmax(-1)
    rome = token_id(lm, "Rome")
    assert grid.top_ids.shape == (tiny.DEPTH, 7)
    assert torch.allclose(grid.probabilities[-1], own[:, rome], atol=1e-5)
    assert torch.equal(grid.top_ids[-1], own.argmax(-1))
    assert torch.allclose(grid.top_probabilities[-1], own.amax(-1), atol=1e-5)
    assert torch.equal(grid.ranks[-1], (own > own[:, [rome]]).sum(1))


def test_a_cell_is_the_state_through_norm_and_unembedding() -> None:
    """TransformerLens#1076: each layer's state was normalised with the size of the last one's."""
    lm = tiny.build("gpt2")
    grid = logit_lens(lm, PROMPT)
    with torch.no_grad(), intervene(lm, Site("block", 1), Read()) as seen:
        forward_logits(lm, lm.batch([lm.tokens(PROMPT)]))
    x = seen.value[0, 3]
    norm = lm.model.transformer.ln_f
    normed = (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt() * norm.weight + norm.bias
    expected = (lm.model.lm_head.weight @ normed).softmax(-1)
    assert int(grid.top_ids[1, 3]) == int(expected.argmax())
    assert float(grid.top_probabilities[1, 3]) == pytest.approx(float(expected.max()), abs=1e-6)
    assert grid.words[1][3] == lm.tokenizer.decode([int(expected.argmax())])
    assert grid.token_id == int(grid.top_ids[-1, -1])
    assert int(grid.ranks[-1, -1]) == 0


def test_saturation_is_the_first_layer_of_the_final_top_token() -> None:
    grid = logit_lens(tiny.build("gpt2"), PROMPT)
    made = LogitLensResult(**{**grid.__dict__, "top_ids": torch.tensor([[1, 2, 9], [1, 3, 4], [1, 2, 9], [1, 2, 4]])})
    assert made.saturation == (0, 2, 3)


def test_bad_input_is_refused() -> None:
    lm = tiny.build("llama")
    with pytest.raises(UnknownTokenError, match="'Big Ben' is 2 tokens"):
        logit_lens(lm, PROMPT, "Big Ben")
    with pytest.raises(ValueError, match="tokens, and tiny-llama reads at most 64"):
        logit_lens(lm, "the " * 80)
