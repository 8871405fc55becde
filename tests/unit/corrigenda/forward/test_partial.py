from contextlib import ExitStack

import pytest
import tiny
import torch
from batch_parts import distance
from by_hooks import entering
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import forward_logits, record
from corrigenda.forward.shared import record_shared
from corrigenda.prompts import TokenBatch

TOLERANCE = 1e-4
LENGTHS = [9, 5, 12, 7]


def random_batch(lm: LanguageModel, lengths: list[int]) -> TokenBatch:
    draw = torch.Generator().manual_seed(3)
    return lm.batch([torch.randint(4, tiny.VOCABULARY, (n,), generator=draw).tolist() for n in lengths])


def plain(lm: LanguageModel, row: Tensor) -> Tensor:
    """The model itself, on one unpadded row, with nothing of ours in between: (position, vocabulary)."""
    return lm.model(input_ids=row[None], attention_mask=torch.ones_like(row[None])).logits[0]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("family", [*tiny.CONFIGS, *tiny.MIXTURES])
@pytest.mark.parametrize("layer", [0, 2, tiny.DEPTH - 1])
def test_equals_full_forward(family: str, layer: int) -> None:
    lm = tiny.build(family)
    batch = random_batch(lm, LENGTHS)
    start = torch.tensor([6, 0, 3, 6])
    recording = record(lm, batch, layers=[layer])
    partial = PartialForward(lm, recording, layer, start)
    logits = partial.logits()
    for row, length in enumerate(LENGTHS):
        first = int(partial.start[row])
        expected = plain(lm, batch.input_ids[row, :length])[first:]
        assert distance(logits[row, : length - first], expected) < TOLERANCE


@pytest.mark.parametrize("family", tiny.DECODERS)
def test_only_later_positions_run(family: str) -> None:
    lm = tiny.build(family)
    batch = random_batch(lm, LENGTHS)
    partial = PartialForward(lm, record(lm, batch, layers=[2]), 2, torch.tensor([6, 4, 8, 6]))
    with ExitStack() as stack:
        seen = [stack.enter_context(entering(lm.architecture.values(n))) for n in range(lm.n_layers)]
        partial.logits()
    # 4 rows, at most 4 positions each; layers 0 and 1 did not run
    assert [[m.numel() // m.shape[-1] for m in one] for one in seen] == [[], [], [4 * 4], [4 * 4]]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_change_inside_equals_change_in_full_forward(family: str) -> None:
    lm = tiny.build(family)
    batch = random_batch(lm, LENGTHS)
    layer, at = 1, torch.tensor([6, 2, 3, 5])
    last = batch.lengths - 1
    delta = torch.randn(4, tiny.WIDTH, generator=torch.Generator().manual_seed(1))
    full_delta, delta = delta.clone().requires_grad_(), delta.requires_grad_()

    with lm.memory(layer).add(full_delta, at):
        full = forward_logits(lm, batch, last)
    full.log_softmax(-1)[:, 5].sum().backward()

    partial = PartialForward(lm, record(lm, batch, layers=[layer]), layer, at)
    with lm.memory(layer).add(delta, partial.local(at)):
        logits = partial.logits(partial.local(last))
    logits.log_softmax(-1)[:, 5].sum().backward()

    assert distance(logits, full) < TOLERANCE
    assert distance(full, forward_logits(lm, batch, last)) > 1e-2  # the change matters
    torch.testing.assert_close(delta.grad, full_delta.grad, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("family", tiny.DECODERS)
def test_rows_go_on_beyond_the_recording(family: str) -> None:
    lm = tiny.build(family)
    prompts = [[5, 6, 7, 8, 9, 10], [11, 12, 13]]
    tails, rows = [[20, 21], [22], [23, 24, 25]], torch.tensor([0, 1, 1])
    recording = record(lm, lm.batch(prompts), layers=[])
    whole = lm.batch([prompts[row] + tail for row, tail in zip(rows.tolist(), tails, strict=True)])
    start = recording.batch.lengths[rows]
    logits = PartialForward(lm, recording, 0, start, rows, whole).logits()
    for row in range(3):
        expected = plain(lm, whole.input_ids[row, : int(whole.lengths[row])])[int(start[row]) :]
        assert distance(logits[row, : len(tails[row])], expected) < TOLERANCE


def test_some_of_the_rows_that_share_a_beginning_are_recorded(lm: LanguageModel) -> None:
    batch = lm.batch([[5, 6, 7, 8, 9], [5, 6, 7, 10, 11, 12], [13, 14]])
    shared = record_shared(lm, batch, layers=[1])
    some = shared.rows(torch.tensor([2, 0])).record([1])
    whole = record(lm, batch.rows(torch.tensor([2, 0])), layers=[1])
    for row, length in enumerate(whole.batch.lengths.tolist()):
        assert distance(some.states[1][row, :length], whole.states[1][row, :length]) < TOLERANCE
    assert some.batch.lengths.tolist() == [2, 5]


def test_logits_at_a_mask(lm: LanguageModel) -> None:
    batch = random_batch(lm, LENGTHS)
    mask = torch.zeros_like(batch.input_ids, dtype=torch.bool)
    mask[0, 7:9] = mask[2, 11] = True
    everything = forward_logits(lm, batch)
    assert distance(forward_logits(lm, batch, mask), everything[mask]) < TOLERANCE
    partial = PartialForward(lm, record(lm, batch, layers=[1]), 1, torch.tensor([6, 0, 3, 6]))
    assert distance(partial.logits(partial.local(mask)), everything[mask]) < TOLERANCE


def test_blocks_are_themselves_again_after_an_error(lm: LanguageModel) -> None:
    batch = random_batch(lm, LENGTHS)
    before = forward_logits(lm, batch)
    partial = PartialForward(lm, record(lm, batch, layers=[2]), 2, torch.tensor([6, 2, 3, 5]))
    with pytest.raises(IndexError):
        partial.logits(torch.tensor([99, 99, 99, 99]))
    assert not any("forward" in block.__dict__ for block in lm.architecture.blocks)
    assert torch.equal(forward_logits(lm, batch), before)


def test_masked_model_says_once_that_it_runs_all_positions() -> None:
    lm = tiny.build("bert")
    batch = random_batch(lm, LENGTHS)
    with pytest.warns(UserWarning, match="all positions"):
        recording = record(lm, batch, layers=[1])
    assert PartialForward(lm, recording, 1, torch.tensor([3, 3, 3, 3])).start.tolist() == [0, 0, 0, 0]


def test_start_outside_the_row(lm: LanguageModel) -> None:
    batch = random_batch(lm, LENGTHS)
    with pytest.raises(ValueError, match="outside"):
        PartialForward(lm, record(lm, batch, layers=[1]), 1, torch.tensor([9, 0, 0, 0]))
