"""Turns of a conversation as a tokenizer's chat template writes them, the same on every day."""

import re
from collections.abc import Sequence
from datetime import date
from itertools import takewhile

from transformers import PreTrainedTokenizerBase

from corrigenda.prompts import encode_plain

Turn = tuple[str, str]
"""Who speaks ("user", "assistant"), and what."""

DAY = date(2025, 1, 1)
"""What templates that write today's date are told. Else the prompts before an edit and after it, or those of a run that
goes on, would differ where midnight lies between them."""

_TODAY = re.compile(r"strftime_now\(\s*(['\"])(.*?)\1\s*\)")


def chat_text(tokenizer: PreTrainedTokenizerBase, turns: Sequence[Turn], answer: bool = True) -> str | None:
    """The text of a conversation; None where the tokenizer has no chat template.

    With `answer` what opens the model's next turn stands at the end. Templates that know it are told not to think.
    """
    if not getattr(tokenizer, "chat_template", None):
        return None
    messages = [{"role": role, "content": content} for role, content in turns]
    template = _TODAY.sub(lambda call: repr(DAY.strftime(call[2])), tokenizer.get_chat_template())
    return str(
        tokenizer.apply_chat_template(
            messages,
            chat_template=template,
            tokenize=False,
            add_generation_prompt=answer,
            date_string=DAY.strftime("%d %b %Y"),  # what Llama's templates ask for first
            enable_thinking=False,  # Qwen3's and others': else short answers, which are what is read, are all thoughts
        )
    )


def chat_tokens(tokenizer: PreTrainedTokenizerBase, turns: Sequence[Turn]) -> list[int] | None:
    """The tokens of `chat_text`; the template has all special tokens in it already."""
    text = chat_text(tokenizer, turns)
    return None if text is None else encode_plain(tokenizer, text)


def closing_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokens between a user's last word and the model's answer; empty where there is no chat template."""
    mark = "Corrigenda"
    text = chat_text(tokenizer, [("user", mark)])
    return () if text is None else tuple(encode_plain(tokenizer, text.rpartition(mark)[2]))


def turn_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The tokens that open a user's turn, whatever stands before it; empty where a template has none such."""
    marks = ("Corrigenda", "Amendment", "Erratum")
    text = chat_text(tokenizer, list(zip(("user", "assistant", "user"), marks, strict=True)))
    if text is None or not all(mark in text for mark in marks):
        return ()
    first, answer, again = map(text.index, marks)
    # Of what stands before the first turn (a system's, often) and between two turns, what is the same at the end.
    before = zip(reversed(text[:first]), reversed(text[answer + len(marks[1]) : again]), strict=False)
    opening = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], before))[::-1]
    return tuple(encode_plain(tokenizer, opening.strip()))  # spaces may be one token with the user's first word
