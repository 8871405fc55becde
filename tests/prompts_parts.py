"""What the tests of prompts share."""

import pytest
import tiny
import torch
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from corrigenda.forward.recording import Recording
from corrigenda.prompts import encode_plain


def framed() -> PreTrainedTokenizerFast:
    """The tiny tokenizer, with a special token before a text and one behind it, as BERT's has."""
    tokenizer = tiny.tokenizer()
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    assert tokenizer("the tower")["input_ids"] == [1, *encode_plain(tokenizer, "the tower"), 2]
    return tokenizer


def pretend_slow(monkeypatch: pytest.MonkeyPatch, tokenizer: PreTrainedTokenizerBase) -> None:
    """From here on the tokenizer says that it knows no offsets."""
    monkeypatch.setattr(type(tokenizer), "is_fast", property(lambda _self: False))


HEAD, OTHER = [5, 6, 7, 8, 9, 10, 11], [20, 21, 22]
TOLERANCE = 1e-4
SHARING = {
    "one head": [[*HEAD, 30], [*HEAD, 31, 32, 33], [*HEAD, 34, 35]],
    "two heads and a loner": [[*HEAD, 30], [*OTHER, 31, 32, 33], [40, 41, 42, 43], [*HEAD, 34], [*OTHER, 7]],
    "a row is another's beginning": [HEAD, [*HEAD, 12, 13], [*HEAD, 12, 13, 14]],
    "equal rows": [HEAD, HEAD, OTHER],
    "nothing": [[5, 6, 7], [8, 9], [10, 11, 12, 13, 14, 15]],
    "one row": [HEAD],
}


def distance(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max())


def assert_equal_recordings(found: Recording, expected: Recording) -> None:
    assert torch.equal(found.batch.input_ids, expected.batch.input_ids)
    assert found.states.keys() == expected.states.keys()
    assert found.tuples == expected.tuples
    for row, length in enumerate(expected.batch.lengths.tolist()):  # what padding holds is of no concern
        for layer, states in expected.states.items():
            scale = max(1.0, float(states[row, :length].abs().max()))
            assert distance(found.states[layer][row, :length], states[row, :length]) < TOLERANCE * scale
        assert (found.cache is None) == (expected.cache is None)
        for ours, theirs in zip(found.cache or (), expected.cache or (), strict=True):
            for left, right in zip(ours, theirs, strict=True):
                scale = max(1.0, float(right[row, :, :length].abs().max()))
                assert distance(left[row, :, :length], right[row, :, :length]) < TOLERANCE * scale
    assert (found.logits is None) == (expected.logits is None)
    if found.logits is not None and expected.logits is not None:
        assert distance(found.logits.log_softmax(-1), expected.logits.log_softmax(-1)) < TOLERANCE
