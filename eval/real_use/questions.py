"""The questions of a fact, as a person asks them."""

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from corrigenda import Fact, LanguageModel
from corrigenda.models.chat import Turn, chat_text, chat_tokens
from eval.real_use.settings import Context, Form, RealUse

EXAMPLES = (
    ("How many legs does a spider have?", "Eight"),
    ("Which colour do you get when you mix blue and yellow?", "Green"),
    ("What do bees make from nectar?", "Honey"),
)
"""What is asked and answered before a question that has a context: nothing that a fact to be edited is about."""


TOLD = "Answer in a few words."
"""What stands behind a question that is told how it is to be answered."""


@dataclass(frozen=True)
class QuestionInSetting:
    """One question in one setting.

    Attributes:
        kind: of which of its prompts: "prompt" or "paraphrases".
        setting: one of `eval.real_use.settings.SETTINGS`.
        asked: the question alone.
        prompt: what the unedited model reads.
        tokens: what the model reads as it is now, after the text of context edits.
    """

    kind: str
    setting: str
    asked: str
    prompt: str
    tokens: list[int]


def as_question(prompt: str) -> str:
    """A prompt as a person would put it: a question as it is, the beginning of a sentence to be completed."""
    return prompt if prompt.rstrip().endswith(("?", "？", "؟")) else f'Complete this sentence: "{prompt} ..."'


def questions_of(
    lm: LanguageModel, fact: Fact, kinds: Collection[str], settings: RealUse
) -> Iterator[QuestionInSetting]:
    """The questions of a fact's prompts of some kinds; none for one that is to be erased, which has no right answer."""
    if fact.target_new is None:
        return
    prompts = {"prompt": (fact.statement,), "paraphrases": fact.paraphrases}
    ways = list(itertools.product(settings.forms, settings.contexts))
    for kind in (kind for kind in prompts if kind in kinds):
        for asked in map(as_question, prompts[kind]):
            for form, context in ways:
                read = _read(lm, asked, form, context)
                if read is not None:
                    yield QuestionInSetting(kind, f"{form}_{context}", asked, *read)


def _read(lm: LanguageModel, asked: str, form: Form, context: Context) -> tuple[str, list[int]] | None:
    """What the unedited model reads of a question, and the tokens that this one reads; None without a template."""
    examples = EXAMPLES if context == "context" else ()
    asked = f"{asked} {TOLD}" if context == "told" else asked
    if form == "plain":
        before = "".join(f"Question: {question}\nAnswer: {answer}\n\n" for question, answer in examples)
        prompt = f"{before}Question: {asked}\nAnswer:" if examples else asked
        return prompt, lm.tokens(prompt)
    turns: list[Turn] = [turn for question, answer in examples for turn in (("user", question), ("assistant", answer))]
    turns.append(("user", asked))
    prompt_in_chat = chat_text(lm.tokenizer, turns)
    if prompt_in_chat is None:
        return None
    # A text that an edit puts before prompts is said by the user, too: nothing stands before a template.
    tokens = chat_tokens(lm.tokenizer, [("user", lm.edits.before(asked) + turns[0][1]), *turns[1:]])
    return prompt_in_chat, tokens or []
