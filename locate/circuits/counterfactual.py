"""Counterfactual prompts: the fact's own, about another subject of as many tokens that has another object."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

import torch

from corrigenda import Fact, LanguageModel
from corrigenda.data.embedded import embedded_facts
from corrigenda.data.requests import Request
from corrigenda.forward.recording import forward_logits
from corrigenda.prompts import encode, encode_target, filled_span
from locate.question import Question

MOST = 16
"""So many subjects are looked at."""


@dataclass(frozen=True)
class Contrast:
    """Two prompts of one length, and the tokens that tell their objects apart.

    Attributes:
        fact: the other fact.
        prompt: the text of the prompt about it.
        ids: the tokens of the fact's own prompt, with what both objects begin with.
        other_ids: those of the other one, as many.
        object: the token by which the model goes on if it says the fact's object.
        other_object: if it says the other's.
    """

    fact: Fact
    prompt: str
    ids: tuple[int, ...]
    other_ids: tuple[int, ...]
    object: int
    other_object: int


def find_contrasts(lm: LanguageModel, fact: Fact, question: Question, others: Iterable[Fact] | Fact) -> list[Contrast]:
    """At most `MOST` counterfactuals of a fact among others, then those that ship; those that the model knows first.

    A counterfactual is of the same relation (`Request.same_relation`). Its subject has as many tokens, at the same
    place, and its object begins otherwise. Of those that are known alike, the ones about the fact's new object come
    last: with an edit to it they tell nothing apart. `others` may be the counterfactual itself, whatever its relation.
    Raises ValueError: that one does not fit.
    """
    found: dict[str, Contrast] = {}
    if isinstance(others, Fact):
        found[""] = _contrast(lm, fact, question, others)
    else:
        asked = Request.of(fact)
        for other in chain(others, embedded_facts()):
            request = Request.of(other)
            if not request.same_relation(asked) or request.subject in (asked.subject, *found):
                continue
            with suppress(ValueError):
                found[request.subject] = _contrast(lm, fact, question, other)
            if len(found) == MOST:
                break
    contrasts = list(found.values())
    if not contrasts:
        return []
    batch = lm.batch([each.other_ids for each in contrasts])
    with torch.no_grad():
        said = forward_logits(lm, batch, batch.lengths - 1).argmax(-1).tolist()

    def last(pair: tuple[Contrast, int]) -> tuple[bool, bool]:
        return pair[0].other_object != pair[1], pair[0].fact.target_true == fact.target_new

    return [each for each, _ in sorted(zip(contrasts, said, strict=True), key=last)]


def _contrast(lm: LanguageModel, fact: Fact, question: Question, other: Fact) -> Contrast:
    prompt = lm.reads(fact.prompt.replace("{}", other.subject))
    ids, other_ids = list(question.ids[: question.n_prompt]), encode(lm.tokenizer, prompt)
    span = filled_span(lm.tokenizer, prompt, fact.prompt, other.subject)
    if len(ids) != len(other_ids) or span != question.subject:
        raise ValueError(
            f"the counterfactual {prompt!r} has {len(other_ids)} tokens with its subject at {list(span)}, and "
            f"{question.prompt!r} {len(ids)} with its at {list(question.subject)}; take a subject of as many tokens"
        )
    if other.target_true is None:
        raise ValueError(f"the counterfactual {other.id!r} has no true object (target_true); give it one")
    theirs = encode_target(lm.tokenizer, prompt, other.target_true, fact.joint)
    objects = list(zip(question.answer_ids, theirs, strict=False))
    place = next((place for place, (one, two) in enumerate(objects) if one != two), None)
    if place is None:
        raise ValueError(
            f"the counterfactual's object {other.target_true!r} begins as {question.answer!r} does: nothing tells them "
            "apart; take a subject of another object"
        )
    begin = list(question.answer_ids[:place])
    return Contrast(other, prompt, (*ids, *begin), (*other_ids, *begin), *objects[place])
