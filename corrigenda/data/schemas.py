"""The table of record schemas, and how one is recognised from a record."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from corrigenda.data import (
    counterfact,
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
from corrigenda.texts import shortened


@dataclass(frozen=True)
class Schema:
    """How the records of one format become facts; calling it parses a record.

    Attributes:
        parse: from a record to its fact; raises `FactError` with the field's path in this schema.
        marks: the keys that tell the schema from the others; a record that has them all is taken for one of its own.
        id_field: the field that a repeated id is blamed on.
        fits: what a record that has the marks must meet besides.
        ranked_by: the keys of the metrics that tables of such facts are ranked by: the first that was measured and is
            not at its ceiling. Nothing: the rule for all data sets (`eval.leaderboard.ranking`).
    """

    parse: Callable[[Record], Fact]
    marks: frozenset[str]
    id_field: str
    fits: Callable[[Record], bool] = lambda record: True
    ranked_by: tuple[str, ...] = ()

    def __call__(self, record: Record) -> Fact:
        """`parse`."""
        return self.parse(record)


# Questions whose answers a model seldom gives by chance: what it says by itself. (zsRE's probabilities, forced, are at
# their ceiling for most editors.)
_ANSWERS = ("paraphrase_free_generation_strict", "free_generation_strict")
_CONSEQUENCES = ("portability_free_generation_lenient", "portability_token_accuracy")

SCHEMAS: dict[str, Schema] = {
    "counterfact": Schema(
        counterfact.parse, frozenset({"requested_rewrite"}), "case_id", ranked_by=("score", *_ANSWERS)
    ),
    "zsre": Schema(zsre.parse, frozenset({"subject", "src"}), "src", ranked_by=_ANSWERS),
    "known_facts": Schema(known_facts.parse, frozenset({"subject", "prompt", "attribute"}), "known_id"),
    "mquake": Schema(
        mquake.parse, frozenset({"requested_rewrite", "questions"}), "case_id", ranked_by=(*_CONSEQUENCES, *_ANSWERS)
    ),
    "ripple_edits": Schema(
        ripple_edits.parse,
        frozenset({"example_type", "edit"}),
        "edit.prompt",
        ranked_by=(*_CONSEQUENCES, *_ANSWERS),
    ),
    "knowedit": Schema(
        knowedit.parse,
        frozenset({"subject", "prompt", "target_new"}),
        "prompt",
        knowedit.fits,
        (*_ANSWERS, *_CONSEQUENCES),
    ),
    "wikibio": Schema(knowedit.parse_biography, frozenset({"concept", "text", "labels"}), "text"),
    "wikibigedit": Schema(wikibigedit.parse, frozenset({"subject", "update", "ans"}), "update", ranked_by=_ANSWERS),
    "qaedit": Schema(qaedit.parse, frozenset({"subject", "prompt", "target"}), "id", ranked_by=_ANSWERS),
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


def _from_outside(target: str) -> Schema:
    """The schema that a dotted path names; a function from a record to its fact stands for one."""
    module, _, attribute = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the file is there, and something that it imports is not
        raise ValueError(f"schema {target}: there is no module {error.name!r}; is its folder on PYTHONPATH?") from None
    if not callable(found):
        raise ValueError(f"schema {target}: {module} has no function {attribute} from a record to a Fact")
    return found if isinstance(found, Schema) else Schema(found, frozenset(), "id")


def recognise(record: Mapping[str, object], source: str) -> Schema:
    """The schema that fits the record and has the most marks: MQuAKE's records also have CounterFact's.

    Raises:
        ValueError: no schema fits; the message names `source`, the record's keys, and what the nearest schemas miss.
    """
    fitting = [schema for schema in SCHEMAS.values() if schema.marks <= record.keys() and schema.fits(record)]
    if fitting:
        return max(fitting, key=lambda schema: len(schema.marks))
    keys = ", ".join(sorted(map(str, record))) or "(none)"
    raise ValueError(
        f"{source}: no schema fits a record with the keys {shortened(keys, 200)}. {_nearest(record)}. "
        "Name one with schema=..., or rename the fields to those of 'plain'."
    )


def _nearest(record: Mapping[str, object]) -> str:
    """What the schemas miss that the record has most of; where it has nothing of any, the marks of all."""
    begun = {name: schema.marks - record.keys() for name, schema in SCHEMAS.items() if schema.marks & record.keys()}
    lacking = {name: missing for name, missing in begun.items() if missing}
    if not lacking:
        known = "; ".join(f"{name!r} has {', '.join(sorted(schema.marks))}" for name, schema in SCHEMAS.items())
        return f"Known schemas: {known}"
    fewest = min(map(len, lacking.values()))
    names: dict[str, list[str]] = {}
    for name, missing in lacking.items():
        if len(missing) == fewest:
            names.setdefault(" and ".join(map(_quoted_with_near(record), sorted(missing))), []).append(repr(name))
    found = "; ".join(f"{missing} of schema {' or '.join(schemas)}" for missing, schemas in names.items())
    return f"It lacks the field {found}"


def _quoted_with_near(record: Mapping[str, object]) -> Callable[[str], str]:
    def quoted(field: str) -> str:
        near = difflib.get_close_matches(field, [str(key) for key in record], 1)
        return f"'{field}'" + (f" (is it {near[0]!r}?)" if near else "")

    return quoted
