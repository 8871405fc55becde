"""What a gate is trained on: the same question in many forms about many subjects, told apart from other questions."""

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from corrigenda.data.relations import Relation, relations, relations_of, relations_to_learn, subjects
from corrigenda.facts import SLOT, Fact
from corrigenda.language_model import LanguageModel
from corrigenda.models.chat import chat_tokens, closing_tokens

OPENINGS = (
    'Complete this sentence: "',
    "Please finish the sentence.\n",
    "Fill in the missing word: ",
    "I have a question. ",
    "In a few words: ",
    "Question: ",
)
"""What a person may put before a prompt; it changes nothing of what is asked."""


@dataclass(frozen=True)
class AskedPrompt:
    """A prompt that asks something about a subject, in a form: the words around the subject, with ``{}`` for it.

    Prompts of the same relation about the same subject ask the same.
    """

    relation: str
    form: str
    subject: str
    prompt: str


def shipped_questions(names: int, seed: int) -> list[AskedPrompt]:
    """Every form of `relations_to_learn`, about so many names of its kind of subject.

    The first is that of all relations of a kind: only what is asked tells its prompts apart. The last is never taken.
    """
    draw, found = random.Random(seed), []
    for relation in relations_to_learn():
        first, *others = subjects()[relation.kind][:-1]
        for form in relation.forms:
            chosen = [first, *draw.sample(others, min(names - 1, len(others)))]
            found += [_asked(relation, form, name) for name in chosen]
    return found


def held_out_questions(place: int = -1) -> list[AskedPrompt]:
    """Every form of `relations`, which none of `shipped_questions` has, about one name of its kind, by its place."""
    return [_asked(one, form, subjects()[one.kind][place]) for one in relations() for form in one.forms]


def _asked(relation: Relation, form: str, name: str) -> AskedPrompt:
    label = relation.wikidata or f"{relation.kind}: {relation.name}"
    return AskedPrompt(label, form, name, form.replace(SLOT, name))


def questions_of(facts: Iterable[Fact]) -> Iterator[AskedPrompt]:
    """The prompts, the paraphrases and the frames of facts.

    A fact is of one of the shipped relations where `relations_of` knows it, else of the relation that it names, else
    of that which all facts have whose forms are joined with its own: forms of one fact ask the same.
    """
    facts = list(facts)
    texts = [
        (fact.statement, *fact.paraphrases, *(frame.replace(SLOT, fact.subject) for frame in fact.frames))
        for fact in facts
    ]
    forms = [[_form(text, fact.subject) for text in of] for fact, of in zip(facts, texts, strict=True)]
    joined = alike(forms)
    for fact, of, asked in zip(facts, texts, forms, strict=True):
        own = relations_of(fact)
        label = own[0].wikidata or f"{own[0].kind}: {own[0].name}" if own else fact.relation or joined[asked[0]]
        for text, form in zip(of, asked, strict=True):
            yield AskedPrompt(label, form, fact.subject, text)


def alike(forms: Iterable[Sequence[str]]) -> dict[str, str]:
    """By form, one form that stands for all that ask the same: two are alike where a chain of facts joins them."""
    stands: dict[str, str] = {}

    def root(form: str) -> str:
        while stands.setdefault(form, form) != form:
            form = stands[form]
        return form

    for first, *others in forms:
        one = root(first)
        for other in others:
            stands[root(other)] = one
    return {form: root(form) for form in stands}


def opened(lm: LanguageModel, questions: Iterable[AskedPrompt], seed: int) -> list[list[int]]:
    """The tokens of prompts behind an opening; half of them in a conversation, with or without one, if there are such.

    They end with the prompt's last token.
    """
    draw, closing = random.Random(seed), closing_tokens(lm.tokenizer)
    found = []
    for one in questions:
        in_chat = bool(closing) and draw.random() < 0.5
        text = draw.choice(("", *OPENINGS) if in_chat else OPENINGS) + one.prompt
        turn = chat_tokens(lm.tokenizer, [("user", text)]) if in_chat else None
        found.append(lm.tokens(text) if turn is None else turn[: -len(closing)])
    return found


def _form(text: str, subject: str) -> str:
    """The words around a subject, without the sentences before: paraphrases often stand behind some other text."""
    begin = text.rfind(subject)
    if begin < 0:
        return text
    before = re.split(r"(?<=[.!?\n])\s+", text[:begin])[-1]
    return f"{before}{SLOT}{text[begin + len(subject) :]}".strip()
