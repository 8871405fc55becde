"""The schema of RippleEdits and its six criteria.

Source: Cohen et al. 2023, "Evaluating the Ripple Effects of Knowledge Editing in Language Models".
"""

import re
from typing import NamedTuple

from corrigenda.data.fields import Record, fields_named, lookup, objects, optional_text, text, under
from corrigenda.data.probes import answers_in, group_name, probe
from corrigenda.errors import FactError
from corrigenda.facts import Fact, Probe

_PORTABILITY = ("Logical_Generalization", "Compositionality_I", "Compositionality_II", "Subject_Aliasing")
_LOCALITY = ("Relation_Specificity", "Forgetfulness")
_SPELLINGS = {"Relation_Specificity": ("Relation_Specificity", "Relation_Specifity")}  # their README has the second
_NAMES = {
    "subject": "edit.prompt",
    "prompt": "edit.prompt",
    "target_new": "edit.prompt",
    "relation": "edit.relation",
}

_OBJECT = r" (?P<object>.+?)\.?"
_STATEMENTS = tuple(  # each with the longest subject that fits, and with the shortest
    (re.compile(form.replace(".+?)", ".+)") + _OBJECT), re.compile(form + _OBJECT))
    for form in (
        # "The name of the league which X plays in is": the verbs come before the plain forms, which would also match.
        r"The name of the [\w ]+? which (?P<subject>.+?)"
        r" (?:is associated with|is a member of|is part of|is the capital of|plays in) is",
        r"The name of the award (?P<subject>.+?) won is",
        r"The number of children (?P<subject>.+?) has is",
        # "The place of birth of X is": some relations' names have an "of" of their own.
        r"The (?:names? of the )?(?:(?:place|date|country|head|field) of \w+|(?:(?!(?:of|by|in) )\S+ )*?\S+?)"
        r" (?:of|by|in) (?P<subject>.+?) (?:is|are)",
        r"(?P<subject>.+?) (?:is followed by|follows)",
    )
)


def parse(record: Record) -> Fact:
    """The fact of one RippleEdits record (popular, random or recent).

    The schema names subject and objects by Wikidata id only, but every sentence is made by a template of its relation.
    So `edit.prompt`, the sentence with the new object, is taken apart by these templates' forms into subject, prompt
    and new target; `edit.original_fact.prompt` (`edit.previous_fact.prompt` in what the authors' code writes), where
    there is one, must begin the same way and gives the true target; of a subject with a verb of its own ("All is Lost")
    it tells where that ends.

    The criteria become groups of probes, one probe for each of their `test_queries`: Logical_Generalization,
    Compositionality_I, Compositionality_II and Subject_Aliasing are consequences (portability); Relation_Specificity
    and Forgetfulness (other objects of the same relation stay true) must be left alone (locality). Any of a query's
    `answers` and their `aliases` counts; a query without one is left out. The aliases of the new target come from the
    Subject_Aliasing queries, whose answer it is.

    Not read: `condition_queries`, the facts that a model must know for a test to count in the authors' own figures
    (here the figures before the edit show what it knew), and `test_condition` (of several queries in one test each is
    a probe of its own).

    Raises:
        FactError: a field is missing, empty, of the wrong type, or contradicts another, or a sentence has none of the
            forms, or more than one subject; named by its path in this schema.
    """
    longest, shortest = _taken_apart(text(record, "edit.prompt"))
    sentence, target_true = shortest, None
    source = "edit.original_fact" if lookup(record, "edit.previous_fact") is None else "edit.previous_fact"
    if lookup(record, source) is not None:
        previous = text(record, f"{source}.prompt")
        if previous.startswith(longest.beginning):
            sentence = longest
        elif not previous.startswith(shortest.beginning):
            raise FactError(f"{source}.prompt", f"does not begin with {shortest.beginning!r}: {previous!r}")
        target_true = previous[len(sentence.beginning) :].removesuffix(".").strip()
    elif longest != shortest:
        both = f"{longest.subject!r} or {shortest.subject!r}"
        raise FactError("edit.prompt", f"its subject may be {both}; edit.original_fact.prompt would tell which")
    subject, prompt, target_new = sentence
    portability = _probes(record, _PORTABILITY)
    aliases = {
        alias
        for p in portability
        if p.group == "subject_aliasing" and target_new in p.answers
        for alias in p.answers
        if alias not in (target_new, target_true)
    }
    relation = optional_text(record, "edit.relation")
    with fields_named({**_NAMES, "target_true": f"{source}.prompt"}):
        return Fact(
            subject=subject,
            prompt=prompt,
            target_new=target_new,
            target_true=target_true,
            relation=relation,
            aliases=tuple(sorted(aliases)),
            locality=_probes(record, _LOCALITY),
            portability=portability,
        )


class _Sentence(NamedTuple):
    """A sentence, taken apart: "The name of the mother of X is Y."."""

    subject: str
    prompt: str  # with ``{}``
    object: str

    @property
    def beginning(self) -> str:
        """All before the object."""
        return self.prompt.replace("{}", self.subject) + " "

    @classmethod
    def of(cls, match: re.Match[str]) -> "_Sentence":
        begin, end = match.span("subject")
        prompt = match.string[:begin] + "{}" + match.string[end : match.start("object")].rstrip()
        return cls(match["subject"], prompt, match["object"])


def _taken_apart(sentence: str) -> list[_Sentence]:
    """A sentence with the longest subject that its form allows, and with the shortest: "All is Lost", and "All"."""
    for forms in _STATEMENTS:
        if matches := [match for form in forms if (match := form.fullmatch(sentence))]:
            return [*map(_Sentence.of, matches)]
    raise FactError(
        "edit.prompt", f"has none of the forms of RippleEdits' sentences, so its subject is not known: {sentence!r}"
    )


def _probes(record: Record, criteria: tuple[str, ...]) -> tuple[Probe, ...]:
    probes: list[Probe] = []
    for criterion in criteria:
        for spelling in _SPELLINGS.get(criterion, (criterion,)):
            for i, test in enumerate(objects(record, spelling)):
                with under(f"{spelling}[{i}]"):
                    for j, query in enumerate(objects(test, "test_queries")):
                        with under(f"test_queries[{j}]"):
                            probes += probe(text(query, "prompt"), _answers(query), group_name(criterion))
    return tuple(probes)


def _answers(query: Record) -> tuple[str, ...]:
    """All right answers, the labels before the aliases."""
    labels: list[str] = []
    aliases: list[str] = []
    for number, answer in enumerate(objects(query, "answers")):
        with under(f"answers[{number}]"):
            labels += answers_in(answer.get("value"), "value")
            aliases += answers_in(answer.get("aliases"), "aliases")
    return (*labels, *aliases)
