"""`read_facts`: from a source of records to a checked set of facts."""

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from corrigenda.data.factset import FactSet
from corrigenda.data.fields import typed_repr
from corrigenda.data.noted import Noted, composed
from corrigenda.data.schemas import Schema, name_of, recognise, schema_named
from corrigenda.data.source import Source, open_source
from corrigenda.errors import FactError, RecordError
from corrigenda.facts import Fact

logger = logging.getLogger(__name__)

_PART = re.compile(r"(.*?)(?:\[(\d*):(\d*)\])?", re.DOTALL)
"""A file, and which of its facts."""


def read_facts(
    source: str | Path,
    *,
    schema: str = "auto",
    split: str = "train",
    config: str | None = None,
    limit: int | None = None,
    offset: int = 0,
    on_error: Literal["raise", "skip"] = "raise",
) -> FactSet:
    """Read facts from a file, a folder, the Hugging Face hub, or the set that comes with corrigenda.

    Every record is checked: it is an object, its fields have the right types, its targets are not empty and differ, its
    prompt has exactly one ``{}``, prompts that arrive filled contain the subject, and no id comes twice.

    Args:
        source: a ``.json`` file (list of records), a ``.jsonl`` file (one a line), a ``.csv`` or ``.tsv`` table (one a
            row), a folder that `datasets` can load, a hub id "owner/name", or "embedded". What exists locally wins over
            a hub id; a `Path` is always local.
        schema: a name in `SCHEMAS`, ``module.function`` of your own, or "auto" to recognise it from the first record,
            which is said (INFO). Keys that a schema of `SCHEMAS` does not read are named in a warning.
        split: the split to read, for folders and the hub.
        config: the configuration to read, for folders and the hub.
        limit: how many facts to give, at least 1; None gives all. Bad records that are skipped do not count, and
            reading stops as soon as there are enough.
        offset: how many good facts to pass over first, so that ``limit=100`` and
            ``offset=100, limit=100`` are disjoint.
        on_error: "raise" stops at the first bad record; "skip" goes on, logs one warning with the count, and lists
            them in `FactSet.skipped`.

    Returns:
        The facts in the order of the source, named after it.

    Raises:
        RecordError: a bad record, with the source, the record's number and the field (``on_error="raise"``).
        FileNotFoundError: there is no such file, folder or hub data set.
        ConnectionError: the hub cannot be reached and has no cached copy.
        ValueError: an argument is out of range, the file is malformed as a whole, it has no good record, `offset` is
            past its end, or the schema is unknown or cannot be recognised.
    """
    if on_error not in ("raise", "skip"):
        raise ValueError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
    check_range(limit, offset)
    _check_names(source, schema, split, config)
    reading = _Reading(None if schema == "auto" else schema_named(schema))
    if source == "embedded":
        for name, value, usual in (("schema", schema, "auto"), ("split", split, "train"), ("config", config, None)):
            if value not in (usual, None):
                raise ValueError(f"{name}={value!r} is of no use for the embedded facts; leave it out")
        return _embedded(limit, offset)

    opened = open_source(source, split, config)
    facts: list[Fact] = []
    skipped: list[RecordError] = []
    for outcome in _parsed(opened, reading):
        if isinstance(outcome, Fact):
            facts.append(outcome)
        elif on_error == "raise":
            raise outcome
        else:
            skipped.append(outcome)
        if limit is not None and len(facts) == offset + limit:
            break
    _report(opened.label, len(facts), skipped, reading.unread)
    _refuse_offset_past_end(opened.label, offset, len(facts))
    read_as = name_of(reading.schema) if reading.schema else ""
    return FactSet(opened.name, tuple(facts[offset:]), tuple(skipped), schema=read_as)


def read_part(part: str) -> FactSet:
    """The facts of a file, or of a part of it: ``facts.json[1000:1400]``; bad records are passed over, and said.

    Raises:
        ValueError: the part has no fact, or as `read_facts` says.
    """
    found = _PART.fullmatch(part)
    assert found is not None
    path, begin, end = found[1], int(found[2] or 0), int(found[3]) if found[3] else None
    if end is not None and end <= begin:
        raise ValueError(f"{part}: the part is empty; its end is to be above its beginning")
    return read_facts(path, offset=begin, limit=None if end is None else end - begin, on_error="skip")


def good_facts(source: str | Path, schema: str, split: str, config: str | None) -> Iterator[Fact]:
    """The good facts of a whole source, as `read_facts` reads it; bad records are passed over, and nothing is said."""
    if source == "embedded":
        return iter(_embedded(None, 0))
    reading = _Reading(None if schema == "auto" else schema_named(schema))
    return (fact for fact in _parsed(open_source(source, split, config), reading) if isinstance(fact, Fact))


def _check_names(source: str | Path, schema: str, split: str | None, config: str | None) -> None:
    """Refuses what names nothing (ValueError)."""
    for name, value in (("source", source), ("schema", schema), ("split", split), ("config", config)):
        wanted = (str, Path) if name == "source" else str
        if not isinstance(value, wanted) and not (name in ("split", "config") and value is None):
            raise ValueError(
                f"{name} must be a {'path or a ' if name == 'source' else ''}text, got {typed_repr(value)}"
            )
    if not str(source).strip() or "\0" in str(source):
        raise ValueError(f"source must name a file, a folder or a data set, got {str(source)!r}")


def _report(label: str, good: int, skipped: list[RecordError], unread: Counter[str]) -> None:
    """Says what was not read, and which records were skipped. Raises ValueError: no record is good."""
    if unread:
        keys = ", ".join(f"{key} ({count})" for key, count in unread.most_common(20)) + ", ..." * (len(unread) > 20)
        logger.warning("%s: keys that are not read, and in how many of %d records: %s", label, good, keys)
    if not good and not skipped:
        raise ValueError(f"{label}: has no records")
    if skipped:
        total = good + len(skipped)
        logger.warning(
            "%s: skipped %d bad of the %d records read; the first: %s", label, len(skipped), total, skipped[0]
        )
    if not good:
        raise ValueError(f"{label}: none of its {len(skipped)} records is good; the first: {skipped[0]}")


@dataclass
class _Reading:
    """By which schema a source is read, None until its first record tells; and how often which keys were not read."""

    schema: Schema | None
    unread: Counter[str] = field(default_factory=Counter)


def _parsed(source: Source, reading: _Reading) -> Iterator[Fact | RecordError]:
    """Each record's fact, or why it is refused."""
    first_seen: dict[str, int] = {}
    for record in source.records:
        if record.problem:
            yield RecordError(source.label, record.number, record.field, record.problem, source.unit)
            continue
        if not isinstance(record.value, Mapping):
            problem = f"must be a JSON object, got {typed_repr(record.value)}"
            yield RecordError(source.label, record.number, "", problem, source.unit)
            continue
        if reading.schema is None:
            reading.schema = recognise(record.value, f"{source.label}, {source.unit} {record.number}")
            logger.info("%s: read as %r, recognised by its keys", source.label, name_of(reading.schema))
        schema, value = reading.schema, composed(record.value)
        # A reader from outside gets what the file has: what it reads is its own business.
        noted = Noted(value) if name_of(schema) else None
        try:
            fact = schema(value if noted is None else noted)
        except FactError as error:
            yield RecordError(source.label, record.number, error.field, error.problem, source.unit)
            continue
        if noted is not None:
            reading.unread.update(path for path in noted.unread() if path not in schema.leaves)
        if fact.id in first_seen:
            problem = f"repeats the id {fact.id!r} of {source.unit} {first_seen[fact.id]}"
            yield RecordError(source.label, record.number, schema.id_field, problem, source.unit)
            continue
        first_seen[fact.id] = record.number
        yield fact


def _embedded(limit: int | None, offset: int) -> FactSet:
    from corrigenda.data.embedded import embedded_facts

    facts = embedded_facts()
    _refuse_offset_past_end("embedded", offset, len(facts))
    return FactSet("embedded", facts[offset : None if limit is None else offset + limit])


def check_range(limit: int | None, offset: int) -> None:
    """Raises ValueError where so many facts after so many cannot be asked for."""
    for name, value in (("limit", limit), ("offset", offset)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise ValueError(f"{name} must be a whole number, got {value!r}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, or None for all facts, got {limit}")
    if offset < 0:
        raise ValueError(f"offset must not be negative, got {offset}")


def _refuse_offset_past_end(label: str, offset: int, good: int) -> None:
    # An empty set would pass through a whole run and yield no figures.
    if offset and offset >= good:
        raise ValueError(f"{label}: offset {offset} is past the end; it has {good} good facts")
