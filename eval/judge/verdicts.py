"""What a judge is asked about an answer, and how its reply is read."""

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["right", "wrong", "unread"]
"""What a judge says of an answer; "unread" where its reply is neither of the two, and counts as neither."""

_WORDS: dict[str, Verdict] = {"right": "right", "wrong": "wrong", "correct": "right", "incorrect": "wrong"}
"""The words that are asked for, and those that judges like to give in their place."""

_THOUGHTS = re.compile(r"\A(?:(?!<think>).)*</think>|<think>.*?(?:</think>|\Z)", re.DOTALL)
"""What a model thought before it replied. Some templates begin the thoughts, so that the reply has only their end."""

_PROMPT = """\
You mark answers. Below are a question, the answer that is expected, and the answer that somebody gave.

Question: {question}
Expected answer: {expected}
Given answer (between the lines):
---
{answer}
---

Mark the given answer right if what it says in reply to the question is the expected answer, in whatever words or \
spelling. Mark it wrong if it says something else, if it takes the expected answer back or says that it is not so, or \
if it does not reply to the question. Go by the expected answer alone, also where you know better.

Reply with one word: right or wrong."""


def without_thoughts(reply: str) -> str:
    """A reply without what the model thought before it."""
    return _THOUGHTS.sub(" ", reply)


def judge_prompt(question: str, expected: Sequence[str], answer: str) -> str:
    """What a judge is asked about one answer.

    Args:
        question: the question as it was put, without the questions before it and without a chat template.
        expected: the answer that is right, and other spellings of it.
        answer: what the model said.
    """
    first, *others = expected
    also = f" (or: {'; '.join(others)})" if others else ""
    return _PROMPT.format(question=question.strip(), expected=f"{first}{also}", answer=answer.strip())


def verdict_of(reply: str, answer: str) -> Verdict:
    """The verdict in a judge's reply.

    It has to stand at the beginning, after any thoughts in ``<think>``, and nothing after it may say the opposite: a
    reply that repeats "right or wrong", or does not say either at once, is unread. An answer without a word is wrong:
    there is nothing to judge, and no judge is asked.

    Args:
        reply: what the judge said.
        answer: what the model had said.
    """
    if not answer.strip():
        return "wrong"
    said = re.findall(r"\w+", without_thoughts(reply).casefold())
    if not said or said[0] not in _WORDS:
        return "unread"
    found = {_WORDS[word] for word in said if word in _WORDS}
    return _WORDS[said[0]] if len(found) == 1 else "unread"
