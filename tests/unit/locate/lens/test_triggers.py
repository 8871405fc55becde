from pathlib import Path

import pytest
import tiny
import torch
from by_hooks import coefficients
from malformed_parts import refused

from corrigenda import Fact, LanguageModel
from corrigenda.moments.text import Text
from corrigenda.prompts import TokenBatch
from editing import Suppress
from locate.lens import triggers as module
from locate.lens.largest import Largest
from locate.lens.triggers import Triggers, trigger_examples

TEXT = Text(tokens=240, length=12)
T = 6


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "TOKENS", 36)  # three texts at once
    monkeypatch.setattr(module, "CHECKPOINT", 2)
    return tmp_path / "cache"


@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_they_are_the_largest_by_brute_force(family: str) -> None:
    lm = tiny.build(family)
    found = trigger_examples(lm, TEXT, T)
    sequences = TEXT.sequences(lm)
    gated = lm.memory(0).gates is not None
    assert found.signed == gated
    for layer in range(tiny.DEPTH):
        every = coefficients(lm, layer, *sequences).unflatten(0, (len(sequences), -1))[:, 1:-1]
        flat = every.flatten(0, 1)
        sizes = flat.abs() if gated else flat
        expected = sizes.sort(dim=0, descending=True).values[:T].T
        kept = found.coefficients[layer].abs() if gated else found.coefficients[layer]
        torch.testing.assert_close(kept, expected, atol=1e-5, rtol=1e-5)
        # The prefix that is named has the coefficient, with its sign.
        texts, positions = found.texts[layer].long(), found.positions[layer].long()
        neurons = torch.arange(flat.shape[1])[:, None].expand(-1, T)
        torch.testing.assert_close(
            every[texts, positions - 1, neurons], found.coefficients[layer], atol=1e-5, rtol=1e-5
        )


def test_a_prefix_can_be_read_again(lm: LanguageModel) -> None:
    found = trigger_examples(lm, TEXT, T)
    sequences = TEXT.sequences(lm)
    for rank, example in enumerate(found.examples(lm, -1, 7)):
        ids = sequences[example.text]
        assert found.ids(-1, 7, rank) == ids[: example.position + 1]
        assert example.prefix == lm.tokenizer.decode(ids[: example.position + 1])
        assert example.next_token == lm.tokenizer.decode([ids[example.position + 1]])
        assert int(found.last_tokens[-1, 7, rank]) == ids[example.position]
        # A prefix is a text of its own: run alone it gives the same coefficient.
        alone = coefficients(lm, tiny.DEPTH - 1, ids[: example.position + 1])[-1, 7]
        assert float(alone) == pytest.approx(example.coefficient, rel=1e-4)
    refused(IndexError, "neuron 48", found.examples, lm, 0, 48)


def test_a_pass_that_was_cut_short_goes_on_to_the_same_bits(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    lm = tiny.build("qwen3")
    whole = trigger_examples(lm, TEXT, T)
    for file in sorted((cache / "triggers").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    ran: list[int] = []
    forward_to = module.forward_to

    def counted(lm: LanguageModel, batch: TokenBatch, layer: int) -> None:
        if len(ran) == 5:
            raise KeyboardInterrupt
        ran.append(len(batch))
        forward_to(lm, batch, layer)

    monkeypatch.setattr(module, "forward_to", counted)
    with pytest.raises(KeyboardInterrupt):
        trigger_examples(lm, TEXT, T)
    assert [path.suffix for path in (cache / "triggers").iterdir()] == [".part"]
    ran.clear()
    monkeypatch.setattr(module, "forward_to", lambda *args: (ran.append(len(args[1])), forward_to(*args))[1])
    again = trigger_examples(lm, TEXT, T)
    assert sum(ran) == 20 - 12  # four batches of three were kept
    assert torch.equal(again.coefficients, whole.coefficients)
    assert torch.equal(again.prefixes, whole.prefixes)
    ran.clear()
    trigger_examples(lm, TEXT, T)
    assert not ran  # taken from the disk
    assert [path.suffix for path in (cache / "triggers").iterdir()] != [".part"]


def test_a_list_is_that_of_all_batches_together_and_earlier_ones_stay() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(500, 7, generator=generator)
    for signed in (False, True):
        one = Largest(7, 5, signed)
        for start in (0, 3, 4, 100, 400):  # batches smaller and larger than t
            end = {0: 3, 3: 4, 4: 100, 100: 400, 400: 500}[start]
            one.add(rows[start:end], torch.arange(start, end))
        sizes = rows.abs() if signed else rows
        order = sizes.sort(dim=0, descending=True).indices[:5].T
        assert torch.equal(one.prefixes, order)
        assert torch.equal(one.coefficients, rows.T.gather(1, order))
    one.add(one.coefficients[:, -1][None], torch.tensor([1000]))  # equal to the last of each
    assert torch.equal(one.prefixes, order)
    with pytest.raises(ValueError, match="neuron 3 is not finite"):
        one.add(torch.tensor([[0.0, 0, 0, float("nan"), 0, 0, 0]]), torch.tensor([0]))


def test_edits_are_lifted_meanwhile(lm: LanguageModel) -> None:
    plain = trigger_examples(lm, TEXT, T)
    fact = Fact(subject="Rome", prompt="{} is", target_new="one")
    edit = Suppress(neurons=((0, 1),)).edit(lm, [fact])
    with edit.applied(lm):
        again = trigger_examples(lm, TEXT, T - 1)
    torch.testing.assert_close(again.coefficients, plain.coefficients[..., : T - 1])


def test_triggers_with_the_same_last_token_are_counted() -> None:
    tokens = torch.tensor([[5, 6, 7, 8], [5, 6, 9, 8]], dtype=torch.int32)
    # Two layers of one neuron: all three triggers end in 6 or 7; two of three in 6.
    prefixes = torch.tensor([[[1, 5, 1]], [[1, 5, 2]]], dtype=torch.int32)
    found = Triggers(True, "x", torch.ones(2, 1, 3), prefixes, tokens)
    assert [mean.mean for mean in found.same_last_token] == [pytest.approx(1.0), pytest.approx(2 / 3)]
    assert found.next_tokens.tolist() == [[[7, 9, 7]], [[7, 9, 8]]]


def test_bad_input(lm: LanguageModel) -> None:
    refused(ValueError, "t=300: the text has only 200 prefixes", trigger_examples, lm, TEXT, 300)
    refused(ValueError, "t=0 must be at least 1", trigger_examples, lm, TEXT, 0)
