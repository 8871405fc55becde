"""JSON as records are read from it: what a parser lets pass, and what would then be silently wrong, is found.

The standard parser keeps the last of two equal keys, and lets half of a character (a lone surrogate) into a text.
`parse` marks what a value does not show, and `problem_in` finds such places in a record. NaN and Infinity are let
through: data sets are published with NaN for what is absent, and no field that is read takes a number but an id.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from corrigenda.facts import half_of_a_character

DEPTH = 50
"""How deep a record may be nested. No schema needs more than ten; a thousand break what walks through a value."""
LONGEST = 40
"""Characters of a number or text that a message shows."""


@dataclass(frozen=True)
class _Refused:
    """Stands in a parsed value where the text has something that no record may hold."""

    problem: str


class _Repeating(dict[str, object]):
    """An object in which a key stands twice."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.key = next(name for number, name in enumerate(names) if name in names[:number])


def parse(text: str) -> object:
    """The value of a JSON text; look for what is wrong in it with `problem_in`.

    Raises:
        json.JSONDecodeError: it is not valid JSON.
        ValueError: it is nested too deeply.
    """
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_int,
        )
    except RecursionError:
        raise ValueError("not a value that can be read: it is nested too deeply (no schema needs ten levels)") from None


def problem_in(value: object) -> tuple[str, str] | None:
    """The first thing that is wrong in a record that `parse` read.

    Returns:
        the field's path (``a.b[0]``; empty for the value itself) and what is wrong; None where all is well.
    """
    # Not recursive: what is too deep is to be said, not to break here.
    waiting: list[tuple[str, int, object]] = [("", 0, value)]
    while waiting:
        path, depth, each = waiting.pop()
        if depth > DEPTH:
            return path[:LONGEST] + "...", f"is nested more than {DEPTH} deep"
        if isinstance(each, _Refused):
            return path, each.problem
        if isinstance(each, str) and (half := half_of_a_character(each)):
            return path, half
        if isinstance(each, _Repeating):
            return _joined(path, each.key), "stands twice in this object; only one of the two can be meant"
        if isinstance(each, dict):
            for name in each:
                if half := half_of_a_character(name):
                    return path, f"has a key that {half}"
            waiting += reversed([(_joined(path, name), depth + 1, part) for name, part in each.items()])
        elif isinstance(each, list):
            waiting += reversed([(f"{path}[{number}]", depth + 1, part) for number, part in enumerate(each)])
    return None


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Repeating(pairs)


def _int(text: str) -> object:
    try:
        return int(text)
    except ValueError:  # Python refuses to read numbers of thousands of digits
        return _Refused(f"is a number of {len(text)} digits, too large to be read: {text[:LONGEST]}...")


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
