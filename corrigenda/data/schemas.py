"""The table of record schemas, and how one is recognised from a record."""

import dataclasses
import difflib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from corrigenda.data import (
    counterfact,
    fastedit,
    knowedit,
    known_facts,
    mquake,
    plain,
    qaedit,
    ripple_edits,
    wikibigedit,
    zsre,
)
from corrigenda.data.fields import Record
from corrigenda.facts import Fact
from corrigenda.settings.declarations import module_named
from corrigenda.text.display import shortened


@dataclass(frozen=True)
class Schema:
    """How the records of one format become facts; calling it parses a record.

    Attributes:
        parse: from a record to its fact; raises `FactError` with the field's path in this schema.
        marks: the keys that tell the schema from the others; a record that has them all is taken for one of its own.
        id_field: the field that a repeated id is blamed on.
        fits: what a record that has the marks must meet besides.
        leaves: the paths of what the reader leaves out on purpose, as it says.
        ranked_by: the keys of the metrics that tables of such facts are ranked by: the first that was measured and is
            not at its ceiling. Nothing: the rule for all data sets.
    """

    parse: Callable[[Record], Fact]
    marks: frozenset[str]
    id_field: str
    fits: Callable[[Record], bool] = lambda record: True
    ranked_by: tuple[str, ...] = ()
    leaves: frozenset[str] = frozenset()

    def __call__(self, record: Record) -> Fact:
        """`parse`."""
        return self.parse(record)


# Questions whose answers a model seldom gives by chance: what it says by itself. (zsRE's probabilities, forced, are at
# their ceiling for most editors.)
_ANSWERS = ("paraphrase_free_generation_strict", "free_generation_strict")
_CONSEQUENCES = ("portability_free_generation_lenient", "portability_token_accuracy")
# What a question one hop further is about, as a triple.
_HOP = "portability.Recalled Relation"

SCHEMAS: dict[str, Schema] = {
    "counterfact": Schema(
        counterfact.parse,
        frozenset({"requested_rewrite"}),
        "case_id",
        ranked_by=("score", *_ANSWERS),
        leaves=frozenset({"pararel_idx", "attribute_prompts", _HOP})
        | {f"requested_rewrite.target_{which}.id" for which in ("new", "true")},
    ),
    "zsre": Schema(
        zsre.parse, frozenset({"subject", "src"}), "src", ranked_by=_ANSWERS, leaves=frozenset({"pred", "cond", _HOP})
    ),
    "known_facts": Schema(
        known_facts.parse,
        frozenset({"subject", "prompt", "attribute"}),
        "known_id",
        leaves=frozenset({"template", "prediction"}),
    ),
    "mquake": Schema(
        mquake.parse,
        frozenset({"requested_rewrite", "questions"}),
        "case_id",
        ranked_by=(*_CONSEQUENCES, *_ANSWERS),
        leaves=frozenset({"answer", "answer_alias", "answer_extended", "single_hops", "orig"})
        | {f"requested_rewrite[].target_{which}.id" for which in ("new", "true")},
    ),
    "ripple_edits": Schema(
        ripple_edits.parse,
        frozenset({"example_type", "edit"}),
        "edit.prompt",
        ranked_by=(*_CONSEQUENCES, *_ANSWERS),
        leaves=frozenset({"example_type", "edit.original_fact.relation", "edit.previous_fact.relation"})
        | {f"edit.{at}{key}" for at in ("", "original_fact.", "previous_fact.") for key in ("subject_id", "target_id")},
    ),
    "knowedit": Schema(
        knowedit.parse,
        frozenset({"subject", "prompt", "target_new"}),
        "prompt",
        knowedit.fits,
        (*_ANSWERS, *_CONSEQUENCES),
        frozenset({"cond", _HOP}),
    ),
    "fastedit": Schema(
        fastedit.parse, frozenset({"subject", "prompt", "target"}), "id", fastedit.fits, ranked_by=_ANSWERS
    ),
    "wikibio": Schema(knowedit.parse_biography, frozenset({"concept", "text", "labels"}), "text"),
    "wikibigedit": Schema(
        wikibigedit.parse,
        frozenset({"subject", "update", "ans"}),
        "update",
        ranked_by=_ANSWERS,
        leaves=frozenset({"object", "tag"}),
    ),
    "qaedit": Schema(
        qaedit.parse,
        frozenset({"subject", "prompt", "target"}),
        "id",
        lambda record: not fastedit.fits(record),
        ranked_by=_ANSWERS,
        leaves=frozenset({"source"}),
    ),
    "plain": Schema(plain.parse, frozenset({"subject", "prompt"}), "id"),
}


ENTRY_POINTS = "corrigenda.data"
"""The group of entry points in which installed packages name functions from a record to its fact, or a `Schema`."""


def schema_named(name: str) -> Schema:
    """The schema called `name`: one of this project, of an installed package, or ``module.function`` of a user's own.

    Raises:
        ValueError: there is none of that name, or what is named is no function.
    """
    if name in SCHEMAS:
        return SCHEMAS[name]
    points = {point.name: point.value for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    if name in points or "." in name:
        return _from_outside(points.get(name, name).replace(":", "."))
    raise ValueError(f"no schema called {name!r}; choose 'auto' or one of {', '.join(map(repr, [*SCHEMAS, *points]))}")


def name_of(schema: Schema) -> str:
    """What `SCHEMAS` calls a schema; empty for one from outside."""
    return next((name for name, each in SCHEMAS.items() if each is schema), "")


def _from_outside(target: str) -> Schema:
    """The schema that a dotted path names; a function from a record to its fact stands for one."""
    module, _, attribute = target.rpartition(".")
    found = getattr(module_named(module, f"schema {target}"), attribute, None)
    if not callable(found):
        raise ValueError(f"schema {target}: {module} has no function {attribute} from a record to a Fact")
    return found if isinstance(found, Schema) else Schema(found, frozenset(), "id")


def recognise(record: Mapping[str, object], source: str) -> Schema:
    """The schema that fits the record and has the most marks: MQuAKE's records also have CounterFact's.

    Raises:
        ValueError: no schema fits; the message names `source`, the record's keys, and what the nearest schemas miss.
    """
    fitting = [schema for schema in SCHEMAS.values() if schema.marks <= record.keys() and schema.fits(record)]
    best = max(fitting, key=lambda schema: len(schema.marks), default=None)
    renamed = _renamed(record)
    # The plain schema fits all that has a subject and a prompt; here the other fields say that it is another's.
    if best is not None and (best is not SCHEMAS["plain"] or not renamed):
        return best
    keys = ", ".join(sorted(map(str, record))) or "(none)"
    raise ValueError(
        f"{source}: no schema fits a record with the keys {shortened(keys, 200)}. "
        f"{'' if best else _nearest(record) + '. '}"
        f"Name one with schema=..., or rename the fields to those of 'plain'{renamed}."
    )


_OTHER_NAMES = {
    "prompt": ("question", "query", "input"),
    "target_new": ("edited_knowledge", "target_false", "target", "new_answer", "answer_new", "answer", "alt", "output"),
    "target_true": ("fact_knowledge", "target_old", "ground_truth", "old_answer", "answer_true"),
    "paraphrases": (
        "rephrased_prompt",
        "rephrase_prompt",
        "rephrase",
        "para_question",
        "paraphrase_prompts",
        "queries",
    ),
    "neighbourhood": ("neighborhood_prompts", "neighbourhood_prompts"),
    "generation": ("generation_prompts",),
    "locality": ("locality_prompt", "loc"),
    "id": ("case_id",),
}
"""By field of a fact, what other layouts call it."""


def _renamed(record: Mapping[str, object]) -> str:
    """What to do with a record's fields so that the plain schema reads them; empty where none has another name."""
    found: dict[str, str] = {}
    for field, others in _OTHER_NAMES.items():
        if field not in record and (name := next((other for other in others if other in record), None)) is not None:
            found[name] = field
    if not found:
        return ""
    said = ": " + ", ".join(f"{name!r} to {field!r}" for name, field in found.items())
    for field in ("subject", "prompt"):
        if field not in record and field not in found.values():
            said += f"; add {field!r}"
    if "subject" not in record or "{}" not in str(record.get("prompt", "")):
        said += "; write {} for the subject in the prompt"
    own = {field.name for field in dataclasses.fields(Fact)}
    if rest := [repr(name) for name in map(str, record) if name not in own and name not in found]:
        said += f"; leave out {', '.join(rest[:8])}{', ...' if len(rest) > 8 else ''}"
    return said


def _nearest(record: Mapping[str, object]) -> str:
    """What the schemas miss that the record has most of; where it has nothing of any, the marks of all."""
    begun = {name: schema.marks - record.keys() for name, schema in SCHEMAS.items() if schema.marks & record.keys()}
    absent = {name: missing for name, missing in begun.items() if missing}
    if not absent:
        known = "; ".join(f"{name!r} has {', '.join(sorted(schema.marks))}" for name, schema in SCHEMAS.items())
        return f"Known schemas: {known}"
    fewest = min(map(len, absent.values()))
    names: dict[str, list[str]] = {}
    for name, missing in absent.items():
        if len(missing) == fewest:
            names.setdefault(" and ".join(map(_quoted_with_near(record), sorted(missing))), []).append(repr(name))
    found = "; ".join(f"{missing} of schema {' or '.join(schemas)}" for missing, schemas in names.items())
    return f"It lacks the field {found}"


def _quoted_with_near(record: Mapping[str, object]) -> Callable[[str], str]:
    def quoted(field: str) -> str:
        near = difflib.get_close_matches(field, [str(key) for key in record], 1)
        return f"'{field}'" + (f" (is it {near[0]!r}?)" if near else "")

    return quoted
