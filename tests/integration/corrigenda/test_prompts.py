"""Tokens of prompts and targets, where the subject stands, and what prompts share."""

from __future__ import annotations

import pytest
import tiny
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

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
