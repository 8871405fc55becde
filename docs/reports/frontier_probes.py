"""The facts of docs/frontier.md, with prompts that ask something else about their subjects."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from pages import read_json
from runs import without_generation

from corrigenda import Fact
from corrigenda.data import FactSet, read_facts
from corrigenda.data.other_subjects import with_other_subjects
from corrigenda.data.relations import relations, relations_of
from editing.gate.questions import alike

ASIDE = "aside"
DATA = {"counterfact": ("counterfact.json", 100), "zsre": ("zsre_fresh.json", 0), ASIDE: ("counterfact.json", 1400)}
"""By data set its file, and how many of its facts are passed over. No setting was chosen on those that follow, but on
those that are set aside."""
NEIGHBOURS = OTHERS = 5  # neighbourhood prompts of a fact; prompts that ask something else about its subject


def facts_of(of: str, count: int, files: Path) -> FactSet:
    """The facts of a data set, with prompts that ask something else about their subjects.

    CounterFact's ask another relation of that kind of subject in a form of ParaRel; zsRE's are its questions of other
    relations. More than half of these forms are among those of which a gate learned that they ask something else: which
    is noted of each (`frontier_gates.forms_seen`).
    """
    name, first = DATA[of]
    source = read_facts(files / name, on_error="skip")
    facts = without_generation(FactSet(of, tuple(source)[first : first + count]))
    if of != "zsre":
        drawn = {fact.id: from_pararel(fact, files / "pararel") for fact in facts}
    else:
        source = FactSet(of, (*read_facts(files / "zsre.json", on_error="skip"), *source))
        drawn = {fact.id: from_questions(fact, source) for fact in facts}
    facts = FactSet(
        of,
        tuple(
            replace(fact, same_subject=drawn[fact.id], neighbourhood=fact.neighbourhood[:NEIGHBOURS]) for fact in facts
        ),
    )
    return with_other_subjects(facts, source, NEIGHBOURS)


def from_pararel(fact: Fact, folder: Path) -> tuple[str, ...]:
    """Prompts of other relations of the fact's kind of subject; first those with the same kind of answer.

    A relation that shares a form with the fact's own is none of them: where "{} is located in" may ask for either, the
    fact's answer is right.
    """
    own, draw = relations_of(fact), random.Random(fact.id)
    kinds, answers = {one.kind for one in own}, {one.answer for one in own}
    barred = {name for name in (fact.relation, *(one.wikidata for one in own)) if name}
    others = {one.wikidata: one.answer for one in relations() if one.kind in kinds and one.wikidata not in barred}
    asked = {fact.prompt, *chain.from_iterable(forms_of(name, folder) for name in barred)}
    found = []
    for name in sorted(others):
        forms = forms_of(name, folder)
        if forms and not asked.intersection(forms):
            found.append((others[name] not in answers, draw.random(), draw.choice(forms)))
    return tuple(form.replace("{}", fact.subject) for *_, form in sorted(found)[:OTHERS])


def forms_of(relation: str, folder: Path) -> list[str]:
    """ParaRel's forms of a relation that end where the object stands, with ``{}`` for the subject."""
    if not (path := folder / f"{relation}.json").is_file():
        return []
    patterns = (text.rstrip(" .") for text in read_json(path)["patterns"])
    ending = (text.removesuffix("[Y]").strip() for text in patterns if text.endswith("[Y]"))
    return [text.replace("[X]", "{}") for text in ending if text.count("[X]") == 1]


def from_questions(fact: Fact, source: Sequence[Fact]) -> tuple[str, ...]:
    """Questions of other relations; two forms are of one relation where some fact has both."""

    def forms(one: Fact) -> tuple[str, ...]:
        return (one.prompt, *(text.replace(one.subject, "{}") for text in one.paraphrases))

    same = alike(map(forms, source))
    own = {same[form] for form in forms(fact)}
    known = sorted({form for one in source for form in forms(one) if form.count("{}") == 1 and same[form] not in own})
    return tuple(form.replace("{}", fact.subject) for form in random.Random(fact.id).sample(known, OTHERS))
