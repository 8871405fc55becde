"""The fact set that ships with the project, and the texts on which perplexity drift is measured.

`embedded.json` holds relations, each with its templates (one ``{}`` for the subject) and its facts grouped by their
true object, so that neighbourhood prompts can ask about subjects with the same one:

    {"aliases": {object: [other names]},
     "relations": [{"id", "prompt", "paraphrases", "neighbourhood", "generation",
                    "portability": {"prompt", "consequence": {object: what follows from it}},
                    "objects": {true object: {"facts": {subject: new object}, "neighbours": [subjects]}}}]}

The subjects in `neighbours` serve for neighbourhood and locality prompts alone, and are not edited in that relation.
"""

from __future__ import annotations

import json
import lzma
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain, zip_longest
from typing import Any, TypeVar

from corrigenda.facts import Fact, Probe

LOCALITY_PROBES = 3

T = TypeVar("T")


@cache
def embedded_facts() -> tuple[Fact, ...]:
    """The embedded facts, always the same, in an order that goes round the relations.

    Every fact has both targets, at least two paraphrases, six neighbourhood prompts and three locality probes; where
    something definite follows from the relation's object it has a portability probe too. Any first n facts span about
    as many relations as n allows. Ids are such as "landmark_city/eiffel-tower".
    """
    source = json.loads(_read("embedded.json"))
    relations = [_Relation.from_json(record, source["aliases"]) for record in source["relations"]]
    edits = _round_robin([relation.edits() for relation in relations])
    controls = _round_robin([relation.controls() for relation in relations])
    return tuple(
        _expand(edit, _locality(edit, controls, start=LOCALITY_PROBES * number)) for number, edit in enumerate(edits)
    )


@cache
def held_out_texts() -> Mapping[str, str]:
    """By kind the texts, written for this project, on which perplexity drift is measured: prose, code, dialogue.

    Each has more than a thousand words or as many tokens, and no embedded fact appears in it. The code is Python, SQL
    and C; of the dialogue `dialogues` gives the turns.
    """
    names = {"prose": "held_out_prose.txt", "code": "held_out_code.txt", "dialogue": "held_out_dialogue.txt"}
    return {kind: _read(name).strip() for kind, name in names.items()}


@cache
def shipped_text() -> str:
    """Prose of many kinds on many topics (``docs/reports/shipped_text.py``).

    Two fifths were sampled from embedded models, the others written for this project with a large language model. Texts
    stand apart by an empty line, in a drawn order. It is what second moments are taken over, and has no text of
    `held_out_texts`.
    """
    return lzma.decompress(files("corrigenda.data").joinpath("shipped.txt.xz").read_bytes()).decode("utf-8")


def dialogues(text: str) -> list[list[dict[str, str]]]:
    """The turns of a text of dialogues, in the form that chat templates take: ``{"role", "content"}``.

    Dialogues stand apart by an empty line; a turn is a line that begins with "User: " or "Assistant: ".

    Raises:
        ValueError: a line does not.
    """
    found = []
    for part in text.strip().split("\n\n"):
        turns = []
        for line in part.splitlines():
            role, colon, content = line.partition(": ")
            if not colon or role not in ("User", "Assistant"):
                raise ValueError(f"a turn of a dialogue must begin with 'User: ' or 'Assistant: ', not {line[:40]!r}")
            turns.append({"role": role.lower(), "content": content})
        found.append(turns)
    return found


@cache
def unrelated_prompts() -> tuple[str, ...]:
    """Prompts about nothing in particular, in many forms (questions of several styles, beginnings of sentences).

    What an editor must leave alone, for those that learn to tell it. Some have the form that zsRE's locality prompts
    have ("nq question: ..."); none is taken from a data set.
    """
    return tuple(_read("unrelated.txt").strip().splitlines())


@dataclass(frozen=True)
class _Relation:
    """One relation as it stands in the file; `objects` maps a true object to its edits and its neighbours."""

    id: str
    prompt: str
    paraphrases: Sequence[str]
    neighbourhood: Sequence[str]
    generation: Sequence[str]
    portability: str
    consequence: Mapping[str, str]
    objects: Mapping[str, Mapping[str, Any]]
    aliases: Mapping[str, Sequence[str]]

    @classmethod
    def from_json(cls, record: Mapping[str, Any], aliases: Mapping[str, Sequence[str]]) -> _Relation:
        portability = record.get("portability", {"prompt": "", "consequence": {}})
        templates = {
            name: record[name] for name in ("id", "prompt", "paraphrases", "neighbourhood", "generation", "objects")
        }
        return cls(
            **templates, portability=portability["prompt"], consequence=portability["consequence"], aliases=aliases
        )

    def edits(self) -> list[_Edit]:
        """The requested changes, taking the true objects in turn."""
        return _round_robin(
            [_Edit(self, subject, true, new) for subject, new in group["facts"].items()]
            for true, group in self.objects.items()
        )

    def controls(self) -> list[_Control]:
        """The subjects that are never edited, taking the true objects in turn."""
        return _round_robin(
            [_Control(self, subject, true) for subject in group["neighbours"]] for true, group in self.objects.items()
        )


@dataclass(frozen=True)
class _Edit:
    relation: _Relation
    subject: str
    true: str
    new: str

    @property
    def objects(self) -> set[str]:
        """The objects in play: both targets and what follows from either."""
        consequence = self.relation.consequence
        return {self.true, self.new} | {
            consequence[target] for target in (self.true, self.new) if target in consequence
        }


@dataclass(frozen=True)
class _Control:
    relation: _Relation
    subject: str
    answer: str

    def probe(self) -> Probe:
        return Probe(
            _fill(self.relation.prompt, self.subject), self.answer, tuple(self.relation.aliases.get(self.answer, ()))
        )


def _expand(edit: _Edit, locality: tuple[Probe, ...]) -> Fact:
    relation, subject, new = edit.relation, edit.subject, edit.new
    neighbours = relation.objects[edit.true]["neighbours"]
    portability: tuple[Probe, ...] = ()
    if relation.portability:
        answer = relation.consequence[new]
        portability = (Probe(_fill(relation.portability, subject), answer, tuple(relation.aliases.get(answer, ()))),)
    return Fact(
        subject=subject,
        prompt=relation.prompt,
        target_new=new,
        target_true=edit.true,
        id=f"{relation.id}/{_slug(subject)}",
        relation=relation.id,
        aliases=tuple(relation.aliases.get(new, ())),
        paraphrases=tuple(_fill(template, subject) for template in relation.paraphrases),
        neighbourhood=tuple(_fill(template, other) for template in relation.neighbourhood for other in neighbours),
        locality=locality,
        portability=portability,
        generation=tuple(_fill(template, subject) for template in relation.generation),
    )


def _locality(edit: _Edit, controls: Sequence[_Control], start: int) -> tuple[Probe, ...]:
    """The first few controls from `start` on that have nothing to do with `edit`.

    A probe whose answer is one of the edit's objects would reward a model that says that object everywhere.
    """
    first = start % len(controls)
    chosen: dict[str, Probe] = {}
    for control in (*controls[first:], *controls[:first]):
        unrelated = control.relation.id != edit.relation.id and control.answer not in edit.objects
        if unrelated and control.subject != edit.subject and control.relation.id not in chosen:
            chosen[control.relation.id] = control.probe()
            if len(chosen) == LOCALITY_PROBES:
                break
    return tuple(chosen.values())


def _round_robin(groups: Iterable[Sequence[T]]) -> list[T]:
    """One item of each group in turn, shorter groups dropping out when they are used up."""
    missing = object()
    rounds: Iterator[tuple[Any, ...]] = zip_longest(*groups, fillvalue=missing)
    return [item for item in chain.from_iterable(rounds) if item is not missing]


def _fill(template: str, subject: str) -> str:
    """The template with the subject in its place, capitalised: a subject such as "the Mona Lisa" may come first."""
    text = template.replace("{}", subject)
    return text[0].upper() + text[1:]


def _slug(text: str) -> str:
    """The text in lower-case ASCII letters and digits joined by hyphens: "Niccolò Paganini" -> "niccolo-paganini"."""
    ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", ascii_text.lower()).strip("-")


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
