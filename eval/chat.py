"""Turns of a conversation as a tokenizer's chat template writes them."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from corrigenda.prompts import encode_plain

Turn = tuple[str, str]
"""Who speaks ("user", "assistant"), and what."""


def chat_text(tokenizer: PreTrainedTokenizerBase, turns: Sequence[Turn]) -> str | None:
    """The text that a model reads before it speaks next; None where the tokenizer has no chat template."""
    if not tokenizer.chat_template:
        return None
    messages = [{"role": role, "content": content} for role, content in turns]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def chat_tokens(tokenizer: PreTrainedTokenizerBase, turns: Sequence[Turn]) -> list[int] | None:
    """The tokens of `chat_text`; the template has all special tokens in it already."""
    text = chat_text(tokenizer, turns)
    return None if text is None else encode_plain(tokenizer, text)
