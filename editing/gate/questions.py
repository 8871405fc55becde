"""What a gate is trained on: the same question in many forms about many subjects, told apart from other questions."""

import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from corrigenda.data.relations import relations, relations_of, subjects
from corrigenda.facts import SLOT, Fact


@dataclass(frozen=True)
class AskedPrompt:
    """A prompt that asks something about a subject.

    Attributes:
        relation: what it asks: prompts of the same relation about the same subject ask the same.
        form: how: the words around the subject, with ``{}`` for it.
        subject: about whom or what.
        prompt: the whole text.
    """

    relation: str
    form: str
    subject: str
    prompt: str


def shipped_questions(names: int, seed: int) -> tuple[list[AskedPrompt], list[AskedPrompt]]:
    """Every form of every relation of `corrigenda.data.relations`, about so many names of its kind of subject.

    Returns:
        Those to train on; and those about one more name of each kind, which none of the others is about.
    """
    draw = random.Random(seed)
    train: list[AskedPrompt] = []
    aside: list[AskedPrompt] = []
    drawn = {kind: draw.sample(known, len(known)) for kind, known in subjects().items()}
    for relation in relations():
        last, *known = drawn[relation.kind]
        label = relation.wikidata or f"{relation.kind}: {relation.name}"
        for form in relation.forms:
            # The first name is that of all relations of a kind: only what is asked tells its prompts apart.
            chosen = [known[0], *draw.sample(known[1:], min(names - 1, len(known) - 1))]
            train += [AskedPrompt(label, form, name, form.replace(SLOT, name)) for name in chosen]
            aside.append(AskedPrompt(label, form, last, form.replace(SLOT, last)))
    return train, aside


def questions_of(facts: Iterable[Fact]) -> Iterator[AskedPrompt]:
    """The prompts, the paraphrases and the frames of facts.

    A fact is of one of the shipped relations where `relations_of` knows it, else of the relation that it names, else
    of one of its own.
    """
    for fact in facts:
        own = relations_of(fact)
        label = own[0].wikidata or f"{own[0].kind}: {own[0].name}" if own else fact.relation or fact.id
        frames = (frame.replace(SLOT, fact.subject) for frame in fact.frames)
        for text in (fact.statement, *fact.paraphrases, *frames):
            yield AskedPrompt(label, _form(text, fact.subject), fact.subject, text)


def _form(text: str, subject: str) -> str:
    """The words around a subject, without the sentences before: paraphrases often stand behind some other text."""
    begin = text.rfind(subject)
    if begin < 0:
        return text
    before = re.split(r"(?<=[.!?\n])\s+", text[:begin])[-1]
    return f"{before}{SLOT}{text[begin + len(subject) :]}".strip()
