"""Corrigenda's own schema: the fields of `Fact` as JSON, what `Fact.to_dict` writes."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from corrigenda.data.fields import Record
from corrigenda.facts import Fact
from corrigenda.system.files import write_text


def parse(record: Record) -> Fact:
    """The fact whose fields the record holds; fields that are null count as absent.

    Nulls come from data sets stored as columns, where every record has every field.

    Raises:
        FactError: an unknown field, a missing one, or one that `Fact` refuses.
    """
    return Fact.from_dict({name: _without_nulls(value) for name, value in record.items() if value is not None})


def write_facts(path: Path, facts: Iterable[Fact]) -> None:
    """Writes facts as JSON Lines, which `read_facts` reads."""
    lines = (json.dumps(fact.to_dict(), ensure_ascii=False, allow_nan=False) + "\n" for fact in facts)
    write_text(path, "".join(lines))


def _without_nulls(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: item for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
