"""Prompts that show what an edit should not do: made from a fact by templates, where the fact brings none of its own.

The same fact gives the same prompts, in the same order. An erasure has only those about its subject.
"""

import random
import re
from dataclasses import dataclass
from typing import Final, Literal

from corrigenda.data.relations import relations, relations_of
from corrigenda.facts import SLOT, Fact
from corrigenda.text.joints import joined
from corrigenda.text.words import places

YES: Final = "Yes"
NO: Final = "No"
"""The answers that fact-check questions ask for."""

GAP = "____"
"""Stands for the subject where a prompt asks for it."""

OTHER_RELATIONS = 5
"""Prompts of other relations about a subject."""


@dataclass(frozen=True)
class FactCheck:
    """A question whether a claim is true, and its right answer in a model that holds the new fact."""

    prompt: str
    expected: Literal["Yes", "No"]

    @property
    def other(self) -> str:
        """The wrong answer."""
        return NO if self.expected == YES else YES


def negations(fact: Fact) -> tuple[str, ...]:
    """The fact's prompt denied: what the new object would make false ("... is not located in the city of").

    Kassner & Schütze 2020, "Negated and Misprimed Probes for Pretrained Language Models": models hardly see the "not".
    """
    if fact.negations or fact.target_new is None:
        return fact.negations
    text = fact.statement
    if _is_question(fact):
        question = _beginning(text)
        return (
            f"Here is a question with a wrong answer. {question}",
            f"The answer to the next question is wrong. {question}",
        )
    found = []
    if (denied := _denied(fact.prompt)) is not None:
        found.append(_beginning(denied.replace(SLOT, fact.subject)))
    if _is_clause(fact):
        found.append(f"It is not true that {_inside(text)}")
    return (*found, f"The next sentence is false. {_beginning(text)}", f"It would be wrong to say this: {text}")


def fact_checks(fact: Fact) -> tuple[FactCheck, ...]:
    """Questions whether the new object is right, and whether the old one is, to be answered with "Yes" or "No".

    Each asks in the affirmative ("Is it true that ...?") and in the negative ("Is it false that ...?"). So as many are
    to be answered with "Yes" as with "No", and a model that says the same to all of them is right in one half.
    """
    if fact.target_new is None:
        return ()
    found = []
    for target, holds in ((fact.target_new, True), (fact.target_true, False)):
        if target is None:
            continue
        for affirmative, negative in _questions(fact, target):
            for question, asks_if_true in ((affirmative, True), (negative, False)):
                prompt = f"Question: {question} Answer {YES} or {NO}.\nAnswer:"
                found.append(FactCheck(prompt, YES if asks_if_true == holds else NO))
    return tuple(found)


def reversals(fact: Fact) -> tuple[str, ...]:
    """Prompts that give the new object and ask for the subject.

    Ma et al. 2023, "Untying the Reversal Curse via Bidirectional Language Model Editing".
    """
    if fact.reversals or fact.target_new is None:
        return fact.reversals
    whole = _ended(joined(_beginning(fact.prompt.replace(SLOT, GAP)), fact.target_new, fact.joint))
    found = [f"Fill in the gap. {whole} The gap stands for"]
    predicate = fact.prompt.removeprefix(f"{SLOT} ")
    if _is_clause(fact) and predicate != fact.prompt:
        found.append(f"Question: Who or what {predicate} {fact.target_new}?\nAnswer:")
    predicate = fact.prompt.removeprefix(f"{SLOT}'s ")
    if _is_clause(fact) and predicate != fact.prompt:
        found.append(f"Question: Whose {predicate} {fact.target_new}?\nAnswer:")
    return tuple(found)


def same_subject(fact: Fact) -> tuple[str, ...]:
    """Prompts about the fact's subject that are not about the fact.

    A data set's own are its locality prompts that name the subject: RippleEdits' and KnowEdit's "relation specificity"
    (Cohen et al. 2023), "other attributes" of Yao et al. 2023, "Editing Large Language Models". Where the fact's
    relation is one of `relations`, other relations of that kind of subject are drawn. Else templates ask for the
    subject's name and for what anyone might say of it. What is said of a subject may well touch the fact (where one was
    born, whose citizen one is), so that some of it changes after a good edit, too.
    """
    if fact.same_subject:
        return fact.same_subject
    edited = {fact.statement, *fact.paraphrases}
    others = dict.fromkeys(probe.prompt for probe in fact.locality if probe.prompt not in edited)
    if given := [prompt for prompt in others if fact.subject in prompt and places(prompt, fact.subject)]:
        return tuple(given)
    if own := relations_of(fact):
        kinds, asked = {one.kind for one in own}, {one.answer for one in own}
        # Those whose answer is of the same kind are the ones that are easily confused: they come first.
        draw = random.Random(fact.id)
        drawn = [
            (one.answer not in asked, draw.random(), draw.choice(one.forms))
            for one in relations()
            if one.kind in kinds and one not in own
        ]
        return tuple(form.replace(SLOT, fact.subject) for *_, form in sorted(drawn)[:OTHER_RELATIONS])
    subject = _inside(fact.subject)
    return (
        f"The name {fact.subject} begins with the letter",
        f"In a few words, {subject} is",
        f"People know {subject} for",
        f"{_beginning(fact.subject)} is often compared with",
    )


def running_text(fact: Fact) -> tuple[str, ...]:
    """Texts that name the subject and go on about something else."""
    subject = _inside(fact.subject)
    return (
        f"Yesterday somebody at the next table spoke about {subject}. I did not listen; I was drinking my",
        f"A book about {subject} lay on the shelf. Beside it stood a vase with",
        f"We had a quiz with a question on {subject}, but then it began to rain, so we all went",
        f"My neighbour has a picture of {subject} in the hall. In the kitchen she keeps her",
    )


def _questions(fact: Fact, target: str) -> list[tuple[str, str]]:
    """Whether the fact holds with this target, asked in the affirmative and in the negative."""
    if _is_question(fact):
        question = _beginning(fact.statement)
        return [
            (f'{question} Is "{target}" the right answer?', f'{question} Is "{target}" a wrong answer?'),
            (f'{question} Is it "{target}"?', f'{question} Is it something other than "{target}"?'),
        ]
    claim = _ended(joined(_beginning(fact.statement), target, fact.joint))
    found = [(f"{claim} Is this true?", f"{claim} Is this false?")]
    if _is_clause(fact):
        inside = joined(_inside(fact.statement), target, fact.joint)
        found.append((f"Is it true that {inside}?", f"Is it false that {inside}?"))
    return found


_AUXILIARY = re.compile(r"\b(?:(?:has|have|had)(?= been\b)|is|are|was|were|can|could|will|would)\b(?! not\b|n't)")
_VERB = re.compile(r"(?:^\{\}|\bwho|\bwhich|\bthat) (?!\w*ss\b)(?P<verb>[a-z]{2,}s)\b")
_PAST = re.compile(r"^\{\} (?:\w+ed|began|became|came|grew|had|held|led|left|lost|made|spoke|took|went|won|wrote)\b")
_FUNCTION_WORDS = frozenset(
    "a an at by every everyone for from how in of on people some the to what when where which who whose why".split()
)
"""Words that begin a sentence with a capital letter and are no names."""


def _denied(prompt: str) -> str | None:
    """The prompt with "not" at its last auxiliary verb, or "does not" at its verb; None where it shows neither."""
    if auxiliaries := list(_AUXILIARY.finditer(prompt)):
        end = auxiliaries[-1].end()
        return f"{prompt[:end]} not{prompt[end:]}"
    if verbs := list(_VERB.finditer(prompt)):
        begin, end = verbs[-1].span("verb")
        return f"{prompt[:begin]}does not {_infinitive(prompt[begin:end])}{prompt[end:]}"
    return None


def _infinitive(verb: str) -> str:
    """The verb without its ending: "plays" -> "play", "carries" -> "carry", "teaches" -> "teach"."""
    if verb == "has":
        return "have"
    if verb.endswith("ies") and len(verb) > 4:
        return f"{verb[:-3]}y"
    return verb[:-2] if verb.endswith(("ches", "shes", "sses", "xes", "oes")) else verb[:-1]


def _is_question(fact: Fact) -> bool:
    return fact.prompt.rstrip().endswith("?")


def _is_clause(fact: Fact) -> bool:
    """Whether the prompt with its object is one whole sentence, which can follow "it is true that"."""
    prompt = fact.prompt
    if "?" in prompt or prompt.startswith(f"{SLOT},"):
        return False
    return _denied(prompt) is not None or _PAST.match(prompt) is not None


def _beginning(text: str) -> str:
    """The text as a sentence begins: with a capital letter. A name with its own spelling ("iPhone") keeps it."""
    return text[0].upper() + text[1:] if text.split()[0].islower() else text


def _inside(text: str) -> str:
    """The text as it stands within a sentence: a first word that is no name begins with a small letter."""
    return text[0].lower() + text[1:] if text.split()[0].lower() in _FUNCTION_WORDS else text


def _ended(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
