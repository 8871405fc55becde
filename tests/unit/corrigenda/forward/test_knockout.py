import pytest
import tiny
import torch

from corrigenda import LanguageModel
from corrigenda.forward.knockout import knocked_out

TEXT = "the mother tongue of Danielle Darrieux is the"


def attend(lm: LanguageModel, kind: str) -> None:
    """Chooses how attention is computed. Falcon's refuses to change, and reads it from its configuration."""
    lm.model.set_attn_implementation(kind)
    lm.model.config._attn_implementation = kind


@pytest.mark.parametrize("family", [*tiny.CONFIGS, *tiny.MIXTURES])
def test_weights_of_edges_are_zero_and_the_others_share_what_they_had(family: str) -> None:
    lm = tiny.build(family)
    attend(lm, "eager")
    batch = lm.batch([lm.tokens(TEXT), lm.tokens(TEXT + " city of")])
    n = batch.input_ids.shape[1]
    edges = torch.zeros(2, n, n, dtype=torch.bool)
    edges[0, 7, [4, 5]] = True
    edges[1, 6, 5] = True
    layer = 2
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "output_attentions": True}
    plain = lm.model(**inputs).attentions
    with knocked_out(lm, layer, edges):
        changed = lm.model(**inputs).attentions
    gone = plain[layer].masked_fill(~edges[:, None], 0).sum(-1, keepdim=True)
    wanted = plain[layer].masked_fill(edges[:, None], 0) / (1 - gone)  # also where a sink has a share (gpt-oss)
    real = batch.attention_mask.bool()[:, None, :, None].expand_as(wanted)
    assert torch.allclose(changed[layer][real], wanted[real], atol=1e-6)
    assert not torch.allclose(changed[layer][real], plain[layer][real], atol=1e-3)
    assert torch.equal(changed[layer - 1], plain[layer - 1])
    assert torch.equal(lm.model(**inputs).attentions[layer], plain[layer])  # nothing is left on the model


@pytest.mark.parametrize("family", [*tiny.CONFIGS, *tiny.MIXTURES])
def test_fused_attention_does_as_eager_does(family: str) -> None:
    lm = tiny.build(family)
    batch = lm.batch([lm.tokens(TEXT)])
    n = batch.input_ids.shape[1]
    edges = torch.zeros(1, n, n, dtype=torch.bool)
    edges[0, 7, [4, 5]] = edges[0, 5, 1] = True
    found = []
    for kind in (lm.model.config._attn_implementation, "eager"):
        attend(lm, kind)
        with knocked_out(lm, 1, edges), knocked_out(lm, -1, edges):
            found.append(lm.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits)
    assert torch.allclose(*found, atol=1e-4)


def test_a_position_that_may_read_nothing_is_an_error(lm: LanguageModel) -> None:
    batch = lm.batch([lm.tokens(TEXT)])
    n = batch.input_ids.shape[1]
    edges = torch.zeros(1, n, n, dtype=torch.bool)
    edges[0, 0, 0] = True
    with pytest.raises(ValueError, match=r"position 0 .* nothing left to read"), knocked_out(lm, 0, edges):
        lm.model(input_ids=batch.input_ids)


def test_edges_of_another_shape_are_an_error() -> None:
    lm = tiny.build("gpt2")
    batch = lm.batch([lm.tokens(TEXT)])
    with pytest.raises(ValueError, match="edges of shape"), knocked_out(lm, 0, torch.zeros(1, 2, 2, dtype=torch.bool)):
        lm.model(input_ids=batch.input_ids)
