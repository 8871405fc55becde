import pytest
import tiny
import torch

from corrigenda.forward.interventions import Read, intervene
from corrigenda.forward.recording import forward_logits
from corrigenda.models.sites import Site


def tokens_run(lm, layer: int, run) -> int:
    """How many positions the values' matrix of a layer saw: by a wrapper of its forward, since hooks stop packing."""
    module = lm.architecture.values(layer)
    plain, seen = module.forward, []
    module.forward = lambda x: (seen.append(x.reshape(-1, x.shape[-1]).shape[0]), plain(x))[1]
    try:
        run()
    finally:
        del module.forward
    return sum(seen)


@pytest.mark.parametrize("family", [f for f in tiny.DECODERS if f != "opt"])
def test_padding_and_unwanted_positions_are_left_out(family: str) -> None:
    lm = tiny.build(family)
    batch = lm.batch([[5, 6, 7, 8, 9, 10], [11, 12], [13, 14, 15]])
    last = batch.lengths - 1
    assert tokens_run(lm, 1, lambda: forward_logits(lm, batch)) == 11
    assert tokens_run(lm, tiny.DEPTH - 1, lambda: forward_logits(lm, batch, last)) == 3
    # What is left out does not show: each row alone gives the same.
    together = forward_logits(lm, batch, last)
    for row, ids in enumerate([[5, 6, 7, 8, 9, 10], [11, 12], [13, 14, 15]]):
        alone = lm.model(input_ids=torch.tensor([ids])).logits[0, -1]
        assert torch.allclose(together[row].log_softmax(-1), alone.log_softmax(-1), atol=1e-4)


def test_what_is_looked_into_runs_whole() -> None:
    lm = tiny.build("llama")
    batch = lm.batch([[5, 6, 7, 8], [9, 10]])
    with lm.memory(1).capture() as seen:
        forward_logits(lm, batch, batch.lengths - 1)
    assert seen.coefficients.shape[:2] == (2, 4)
    with lm.memory(tiny.DEPTH - 1).capture() as seen:
        forward_logits(lm, batch, batch.lengths - 1)
    assert seen.output.shape[:2] == (2, 4)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in lm.model.modules())


@pytest.mark.parametrize("family", tiny.DECODERS)
def test_projections_of_the_attention_leave_the_padding_out(family: str) -> None:
    lm = tiny.build(family)
    rows = [[5, 6, 7, 8, 9, 10], [11, 12], [13, 14, 15]]
    seen: list[int] = []
    module = lm.architecture.attention_output(1)
    plain = module.forward
    module.forward = lambda x: (seen.append(x.shape[:-1].numel()), plain(x))[1]
    logits = forward_logits(lm, lm.batch(rows))
    assert seen == [11]
    with intervene(lm, Site("heads", 1), Read(), lm.batch(rows).lengths - 1) as heads:
        forward_logits(lm, lm.batch(rows))
    assert seen == [11, 18]  # who looks in sees whole rows
    assert len(heads.value) == len(rows)
    del module.forward
    for row, ids in enumerate(rows):
        alone = lm.model(input_ids=torch.tensor([ids])).logits[0]
        torch.testing.assert_close(logits[row, : len(ids)], alone, atol=1e-4, rtol=1e-4)
    one_padded = [list(range(5, 25)), list(range(5, 24))]  # too little to be worth it
    with lm.memory(1).capture():  # its FFN runs whole, too
        module.forward = lambda x: (seen.append(x.shape[:-1].numel()), plain(x))[1]
        forward_logits(lm, lm.batch(one_padded))
        del module.forward
    assert seen[-1] == 40
