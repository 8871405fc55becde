import pytest
import torch

from corrigenda import LanguageModel
from corrigenda.forward.recording import forward_logits
from locate import logit_attribution, logit_lens, sub_updates
from locate.lens.words import UnknownTokenError, token_id

PROMPT = "The Eiffel Tower is located in the city of"


def test_the_lens_ends_in_what_the_model_says(smollm2: LanguageModel) -> None:
    with torch.no_grad():
        own = forward_logits(smollm2, smollm2.batch([smollm2.tokens(PROMPT)]))[0, -1]
    grid = logit_lens(smollm2, PROMPT)
    assert grid.token == " Paris"
    assert grid.token_id == int(own.argmax()) == token_id(smollm2, "Paris") == token_id(smollm2, " Paris")
    assert float(grid.probabilities[-1, -1]) == pytest.approx(float(own.softmax(-1).max()), abs=1e-5)
    assert int(grid.ranks[0, -1]) > 100  # nothing is known of Paris after the first layer
    assert grid.saturation[-1] > smollm2.n_layers // 2


def test_heads_neurons_and_embedding_sum_to_the_logit(smollm2: LanguageModel) -> None:
    found = logit_attribution(smollm2, PROMPT, "Paris", "Rome")
    assert found.total == pytest.approx(found.logit, abs=1e-4)
    assert found.heads.shape == (30, 9)
    assert found.neurons.shape == (30, 1536)
    # The same by the other way: promotion and elimination are the neurons' parts without the final norm's scale.
    parts = sub_updates(smollm2, PROMPT, token="Paris")
    alone = logit_attribution(smollm2, PROMPT, "Paris")
    ratio = alone.ffn / parts.net
    assert torch.allclose(ratio, ratio.mean().expand(30), rtol=1e-2)


def test_a_token_of_several_parts_is_refused(smollm2: LanguageModel) -> None:
    with pytest.raises(UnknownTokenError, match="tokens of"):
        token_id(smollm2, "Tegucigalpa")
