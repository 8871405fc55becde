import contextlib
from typing import Any

import pytest
import tiny
import torch
from interventions_parts import AT, LAYER, ROWS, a_batch, hooks, seen_at, site, width
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.interventions import Add, Apply, Read, Scale, intervene
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import forward_logits, record
from corrigenda.models.sites import SITES, Site


@pytest.mark.parametrize("name", SITES)
def test_positions_of_each_kind(name: str) -> None:
    lm = tiny.build("opt")
    plain, _ = seen_at(lm, name, None, None)
    mask = torch.zeros(3, 7, dtype=torch.bool)
    mask[0, 1] = mask[0, 4] = mask[2, 5] = True
    found, _ = seen_at(lm, name, Scale(3.0), mask)
    whole = plain.clone()
    whole[mask] *= 3
    assert torch.equal(found, whole)
    found, _ = seen_at(lm, name, Scale(3.0), None)
    assert torch.equal(found, 3 * plain)
    with intervene(lm, site(name), Read(), mask) as seen, torch.no_grad():
        forward_logits(lm, a_batch(lm))
    assert torch.equal(seen.value, plain[mask])


@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_a_head_that_is_scaled_away_takes_its_part_of_the_attention(family: str) -> None:
    lm = tiny.build(family)
    heads, _ = seen_at(lm, "heads", None, None)
    keep = torch.ones(4, 1)
    keep[1] = 0
    with intervene(lm, site("heads"), Scale(keep), AT), intervene(lm, site("attention"), Read()) as without:
        forward_logits(lm, a_batch(lm))
    with intervene(lm, site("attention"), Read()) as whole:
        forward_logits(lm, a_batch(lm))
    weight = lm.architecture.attention_output(LAYER).weight
    rows = (weight if family == "gpt2" else weight.T)[8:16]
    expected = whole.value.clone()
    expected[ROWS, AT] -= heads[ROWS, AT, 1] @ rows
    torch.testing.assert_close(without.value, expected, atol=1e-4, rtol=1e-4)


def test_several_act_in_the_order_they_were_opened(lm: LanguageModel) -> None:
    for name in SITES:
        plain, _ = seen_at(lm, name, None, None)
        one = torch.ones(width(lm, name))
        with (
            torch.no_grad(),
            intervene(lm, site(name), Read()) as first,
            intervene(lm, site(name), Add(one)),
            intervene(lm, site(name), Scale(2.0)),
            intervene(lm, site(name), Add(one)),
            intervene(lm, site(name), Read()) as last,
        ):
            forward_logits(lm, a_batch(lm))
        assert torch.equal(first.value, plain)
        assert torch.equal(last.value, (plain + 1) * 2 + 1)


@pytest.mark.parametrize("family", tiny.DECODERS)
def test_a_change_of_what_enters_the_layer_acts_once(family: str) -> None:
    lm = tiny.build(family)
    batch = a_batch(lm)
    last = batch.lengths - 1
    delta = torch.randn(tiny.WIDTH, generator=torch.Generator().manual_seed(1))
    everywhere = [intervene(lm, Site("residual_before", layer), Add(delta)) for layer in (1, LAYER)]
    with contextlib.ExitStack() as stack, torch.no_grad():
        for each in everywhere:
            stack.enter_context(each)
        full = forward_logits(lm, batch, last)
        recording = record(lm, batch, layers=[1, LAYER])
        for layer in (1, LAYER):
            partial = PartialForward(lm, recording, layer, AT)
            found = partial.logits(partial.local(last))
            torch.testing.assert_close(found.log_softmax(-1), full.log_softmax(-1), atol=1e-4, rtol=0)
        below, above = (PartialForward(lm, recording, layer, AT) for layer in (1, LAYER))
        found = above.logits(above.local(last), below.states_entering(LAYER))
        torch.testing.assert_close(found.log_softmax(-1), full.log_softmax(-1), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["embeddings", "before_head"])
def test_what_lies_outside_the_layers_in_partial_forwards(lm: LanguageModel, name: str) -> None:
    batch = a_batch(lm)
    whole, _ = seen_at(lm, name, None, None)
    recording = record(lm, batch, layers=[LAYER])
    partial = PartialForward(lm, recording, LAYER if name == "before_head" else 0, AT)
    with intervene(lm, site(name), Read(), partial.local(AT)) as seen, torch.no_grad():
        partial.logits(partial.local(batch.lengths - 1))
    torch.testing.assert_close(seen.value, whole[ROWS, AT], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", SITES)
def test_nothing_is_left_after_an_error(name: str) -> None:
    lm = tiny.build("opt")
    _, before = seen_at(lm, name, None, None)

    def fails(_: Tensor) -> Any:
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError), intervene(lm, site(name), Apply(fails)):
        forward_logits(lm, a_batch(lm))
    assert hooks(lm) == 0
    assert torch.equal(seen_at(lm, name, None, None)[1], before)


def test_the_last_states_of_all_positions_can_be_read(lm: LanguageModel) -> None:
    batch = a_batch(lm)
    whole, _ = seen_at(lm, "before_head", None, None)
    with intervene(lm, Site("before_head"), Read()) as seen, torch.no_grad():
        forward_logits(lm, batch, batch.lengths - 1)
    real = batch.attention_mask.bool()
    torch.testing.assert_close(seen.value[real], whole[real], atol=1e-5, rtol=1e-5)


def test_what_was_read_is_a_copy(lm: LanguageModel) -> None:
    batch = lm.batch([[5, 6, 7]])
    site = Site("ffn", 1)

    def in_place(activation: Tensor) -> None:
        activation.add_(1.0)

    with torch.no_grad(), intervene(lm, site, Read()) as plain:
        forward_logits(lm, batch)
    with torch.no_grad(), intervene(lm, site, Read()) as seen, intervene(lm, site, Apply(in_place)):
        forward_logits(lm, batch)
    torch.testing.assert_close(seen.value, plain.value)
