import warnings

import pytest
import tiny
import torch
from interventions_parts import AT, LAYER, ROWS, a_batch, hooks, seen_at, site, width
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.interventions import Add, Apply, Read, Replace, Scale, intervene
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import forward_logits, record
from corrigenda.models.sites import SITES, WITHOUT_LAYER
from corrigenda.prompts import TokenBatch

IN_LAYERS = [name for name in SITES if name not in WITHOUT_LAYER]


def _again(lm: LanguageModel, batch: TokenBatch, last: Tensor, name: str, whole: Tensor) -> Tensor:
    """The full forward once more: its graph is gone after a gradient."""
    with intervene(lm, site(name), Add(whole), AT):
        return forward_logits(lm, batch, last)


@pytest.mark.parametrize("name", SITES)
@pytest.mark.parametrize("family", tiny.KINDS)
def test_each_action_by_hand(family: str, name: str) -> None:
    lm = tiny.build(family)
    plain, logits = seen_at(lm, name, None, None)
    value = torch.randn(3, *width(lm, name), generator=torch.Generator().manual_seed(1))
    chosen = plain[ROWS, AT]
    for action, expected in (
        (Add(value), chosen + value),
        (Replace(value), value),
        (Scale(-2.0), -2.0 * chosen),
        (Apply(lambda x: x.flip(0)), chosen.flip(0)),
    ):
        found, changed = seen_at(lm, name, action, AT)
        whole = plain.clone()
        whole[ROWS, AT] = expected
        assert torch.equal(found, whole)
        assert not torch.allclose(changed, logits, atol=1e-3)
    for action in (Read(), Apply(lambda _: None), Scale(1.0)):
        found, same = seen_at(lm, name, action, AT)
        assert torch.equal(found, plain)
        assert torch.equal(same, logits)
    assert hooks(lm) == 0


@pytest.mark.parametrize("name", IN_LAYERS)
@pytest.mark.parametrize("family", tiny.KINDS)
def test_partial_forward_equals_the_full_one(family: str, name: str) -> None:
    lm = tiny.build(family)
    batch = a_batch(lm)
    last = batch.lengths - 1
    delta = 4 * torch.randn(3, *width(lm, name), generator=torch.Generator().manual_seed(1))

    def gradient(logits: Tensor, leaf: Tensor) -> Tensor:
        return torch.autograd.grad(logits.log_softmax(-1)[:, 5].sum(), leaf)[0]

    whole = delta.clone().requires_grad_()
    with intervene(lm, site(name), Add(whole), AT):
        full = forward_logits(lm, batch, last)
    unchanged = forward_logits(lm, batch, last)
    assert (full - unchanged).abs().max() > 1e-2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recording = record(lm, batch, layers=[LAYER - 1, LAYER])
    for layer in (LAYER - 1, LAYER):
        partial = PartialForward(lm, recording, layer, AT)
        leaf = delta.clone().requires_grad_()
        with intervene(lm, site(name), Add(leaf), partial.local(AT)):
            found = partial.logits(partial.local(last))
        torch.testing.assert_close(found.log_softmax(-1), full.log_softmax(-1), atol=1e-4, rtol=0)
        torch.testing.assert_close(gradient(found, leaf), gradient(full, whole), atol=1e-4, rtol=1e-3)
        full = _again(lm, batch, last, name, whole)
