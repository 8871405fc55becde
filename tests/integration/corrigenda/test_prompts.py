"""Tokens of prompts and targets, where the subject stands, and what prompts share."""

from __future__ import annotations

import pytest
import tiny
import torch
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from corrigenda.forward.recording import Recording, record
from corrigenda.forward.shared import record_shared
from corrigenda.prompts import encode_plain, subject_span


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


SUBJECTS = [
    # prompt, subject, first token and the one after the last, in words
    ("Eiffel Tower is in Paris", "Eiffel Tower", 0, 2),
    ("the tower Big Ben is in London", "Big Ben", 2, 4),
    ("the capital of France", "France", 3, 4),
    ("Paris", "Paris", 0, 1),
    ("Paris is in France , and Paris is the capital", "Paris", 6, 7),  # the last of two
    ("Danielle Darrieux speaks", "Danielle Darrieux ", 0, 2),
]

TOLERANCE = 1e-4

HEAD, OTHER = [5, 6, 7, 8, 9, 10, 11], [20, 21, 22]

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


@pytest.mark.parametrize(("prompt", "subject", "first", "end"), SUBJECTS)
@pytest.mark.parametrize("slow", [False, True])
def test_subject_span(
    prompt: str, subject: str, first: int, end: int, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, with_specials = tiny.tokenizer(), framed()
    if slow:
        pretend_slow(monkeypatch, plain)
    assert plain.is_fast != slow
    assert subject_span(plain, prompt, subject) == (first, end)
    assert subject_span(with_specials, prompt, subject) == (first + 1, end + 1)


@pytest.mark.parametrize("rows", SHARING)
@pytest.mark.parametrize("family", tiny.DECODERS)
def test_shared_recording_equals_the_plain_one(family: str, rows: str) -> None:
    lm = tiny.build(family)
    batch = lm.batch(SHARING[rows])
    last = batch.lengths - 1
    found = record_shared(lm, batch, layers=[0, 2]).record([0, 2], last)
    assert_equal_recordings(found, record(lm, batch, [0, 2], last))
