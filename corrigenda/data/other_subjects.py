"""Probes of the form *other subject, same relation*, for facts without neighbourhood prompts (zsRE, own facts)."""

import hashlib
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from corrigenda.data.factset import FactSet
from corrigenda.data.requests import normalised
from corrigenda.facts import SLOT, Fact, Probe
from corrigenda.text.words import places

logger = logging.getLogger(__name__)

OTHER_SUBJECT = "other_subject"
"""The group of these probes, which are among a fact's locality probes."""


def with_other_subjects(facts: FactSet, source: Sequence[Fact], count: int) -> FactSet:
    """The facts, each with its own prompt about at most `count` other subjects among its locality probes.

    The other subject is that of a fact of `source` with the same relation, where both name one, else with the same
    form: its prompt is the fact's prompt or a paraphrase of it, or the other way round. The answer is that fact's
    `target_true`. They are no neighbourhood prompts, whose right answer is the fact's own old object; facts that have
    such prompts stay as they are. A subject that is edited, or a name that holds the fact's subject, is never taken.
    Which ones are taken follows from a hash of the fact's id and the subject.
    """
    edited = {normalised(fact.subject) for fact in facts}
    pool = _Pool(fact for fact in source if fact.target_true is not None and normalised(fact.subject) not in edited)
    bare = [fact for fact in facts if not fact.neighbourhood]
    probes = {fact.id: _probes(fact, pool, count) for fact in bare}
    if bare:
        logger.info(
            "%s: %d of %d facts without neighbourhood prompts have their own prompt about other subjects, %d in all; "
            "for the others the data has no subject of their relation or form that is not edited",
            facts.name,
            sum(map(bool, probes.values())),
            len(bare),
            sum(map(len, probes.values())),
        )
    found = (replace(fact, locality=(*fact.locality, *probes.get(fact.id, ()))) for fact in facts)
    return replace(facts, facts=tuple(found))


class _Pool:
    """Facts by relation, by prompt, and by each form in which they ask."""

    def __init__(self, facts: Iterable[Fact]) -> None:
        self._by_relation: dict[str, list[Fact]] = defaultdict(list)
        self._by_prompt: dict[str, list[Fact]] = defaultdict(list)
        self._by_form: dict[str, list[Fact]] = defaultdict(list)
        for fact in facts:
            if fact.relation is not None:
                self._by_relation[normalised(fact.relation)].append(fact)
            self._by_prompt[normalised(fact.prompt)].append(fact)
            for form in _forms(fact):
                self._by_form[form].append(fact)

    def like(self, fact: Fact) -> Iterator[Fact]:
        """The facts of a fact's relation or form; one may come twice."""
        relation = None if fact.relation is None else normalised(fact.relation)
        if relation is not None:
            yield from self._by_relation.get(relation, ())
        asked = [self._by_form.get(normalised(fact.prompt), ()), *(self._by_prompt.get(f, ()) for f in _forms(fact))]
        for others in asked:
            yield from (other for other in others if relation is None or other.relation is None)


def _forms(fact: Fact) -> set[str]:
    """The prompt and the paraphrases with the subject left open."""
    left_open = (text.replace(fact.subject, SLOT, 1) for text in fact.paraphrases if text.count(fact.subject) == 1)
    return {normalised(fact.prompt), *map(normalised, left_open)}


def _probes(fact: Fact, pool: _Pool, count: int) -> tuple[Probe, ...]:
    others: dict[str, Fact] = {}
    for other in pool.like(fact):
        others.setdefault(normalised(other.subject), other)

    def place(subject: str) -> bytes:
        return hashlib.sha256(f"{fact.id}\0{subject}".encode()).digest()

    ordered = (others[subject] for subject in sorted(others, key=place))
    apart = (other for other in ordered if not places(other.subject, fact.subject))
    return tuple(_probe(fact, other) for other in islice(apart, count))


def _probe(fact: Fact, other: Fact) -> Probe:
    assert other.target_true is not None  # the pool has no others
    return Probe(fact.prompt.replace(SLOT, other.subject.strip()), other.target_true, group=OTHER_SUBJECT)
