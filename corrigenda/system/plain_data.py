"""Plain data from files that others may have written: JSON and YAML as values, and nothing that a file could do.

Two equal keys, lone surrogates, NaN and infinities, too deep a nest, and YAML's aliases are each one line of an error.
`json_value` and `yaml_value` (`read_json`, `read_yaml` of a file) are for settings, summaries and results. `parse` and
`problem_in` are for the records of data sets: these are published with NaN for what is absent, and no field that is
read takes a number but an id.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corrigenda.text.display import half_of_a_character

if TYPE_CHECKING:
    import yaml

DEPTH = 50
"""How deep a value may be nested. No schema needs more than ten; a thousand break what walks through a value."""
LONGEST = 40
"""Characters of a number or text that a message shows."""
MOST_JSON = 2**28
"""Bytes of a JSON file: the records of ten thousand cases."""
MOST_YAML = 2**17
"""Bytes of a YAML file: a run's configuration has a twentieth of that, and it is what is read in a second."""


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


def read_json(path: Path, most: int = MOST_JSON) -> Any:
    """The value in a JSON file of at most so many bytes.

    Raises OSError: it cannot be read; ValueError: it is too large, no text, or as `json_value` says; the message does
    not name the file.
    """
    return json_value(_text(path, most))


def read_yaml(path: Path, most: int = MOST_YAML) -> Any:
    """The value in a YAML file; see `read_json` and `yaml_value`."""
    return yaml_value(_text(path, most))


def json_value(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not valid JSON (NaN and Infinity are not, nor is 1e999, which would become one), a key stands
            twice in an object, a text has half of a character, a whole number more than 64 bits, or it is nested too
            deeply.
    """
    return _sound(parse(text.decode("utf-8") if isinstance(text, bytes) else text))


def yaml_value(text: str) -> Any:
    """The value of a YAML text: mappings with texts as keys, lists, texts, numbers, true and false, null.

    Raises:
        ValueError: it is not YAML, has an alias or the tag of a class, or as `json_value` says.
    """
    import yaml

    try:
        return _sound(yaml.load(text, _loader()))
    except yaml.YAMLError as error:
        problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark is not None else ""
        raise ValueError(f"not YAML ({problem or str(error).splitlines()[0]}{place})") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except (AttributeError, LookupError, TypeError) as error:  # a tag on what cannot have it
        raise ValueError(f"not YAML of plain values ({error})") from None


def yaml_text(value: Any) -> str:
    """A plain value as YAML, so that `yaml_value` gives it back."""
    import yaml

    return str(yaml.dump(value, Dumper=_dumper(), sort_keys=False, allow_unicode=True))


def parse(text: str) -> object:
    """The value of a JSON text; look for what is wrong in it with `problem_in`.

    Raises:
        json.JSONDecodeError: it is not valid JSON.
        ValueError: it is nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_int=_int)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


_TOO_DEEP = "not a value that can be read: it is nested too deeply (no schema needs ten levels)"


def problem_in(value: object, strict: bool = False) -> tuple[str, str] | None:
    """The path (``a.b[0]``; empty for the value itself) of the first thing that is wrong in what `parse` read, and why.

    None where all is well. With `strict` numbers have to be finite and whole ones to have 64 bits.
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
        if strict and isinstance(each, float) and not math.isfinite(each):
            return path, f"is no finite number ({each})"
        if strict and isinstance(each, int) and each.bit_length() > 64:
            return path, f"is a number of {each.bit_length()} bits; 64 are read"
        if strict and not isinstance(each, (str, int, float, dict, list, type(None))):
            return path, f"is no plain value ({type(each).__name__})"
        if isinstance(each, _Repeating):
            return _joined(path, each.key), "stands twice in this object; only one of the two can be meant"
        if isinstance(each, dict):
            for name in each:
                if not isinstance(name, str):
                    return path, f"has the key {name!r:.40}, which is no text"
                if half := half_of_a_character(name):
                    return path, f"has a key that {half}"
            waiting += reversed([(_joined(path, name), depth + 1, part) for name, part in each.items()])
        elif isinstance(each, list):
            waiting += reversed([(f"{path}[{number}]", depth + 1, part) for number, part in enumerate(each)])
    return None


def _sound(value: object) -> Any:
    if problem := problem_in(value, strict=True):
        raise ValueError(" ".join(filter(None, problem)))
    return value


def _text(path: Path, most: int) -> str:
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"has {path.stat().st_size:,} bytes; at most {most:,} are read")
    return content.decode("utf-8")


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


@cache
def _loader() -> type[yaml.SafeLoader]:
    """YAML as configurations use it; made when it is first needed, since yaml takes time to import."""
    import yaml

    class Loader(yaml.SafeLoader):
        # A date is a text here, and 1e-4 a number, as in YAML 1.2.
        yaml_implicit_resolvers = {  # noqa: RUF012
            first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
            for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
                raise yaml.constructor.ConstructorError(None, None, "it has an alias, which is not followed", mark)
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if not isinstance(key, yaml.ScalarNode) or key.value in seen:
                    what = (
                        f"the key {key.value!r:.60} stands twice" if isinstance(key.value, str) else "a key is no text"
                    )
                    raise yaml.constructor.ConstructorError(None, None, what, key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    Loader.add_implicit_resolver(*_NUMBER)
    whole: Callable[[Any, Any], object] = lambda loader, node: _whole(loader, node)  # noqa: E731
    Loader.add_constructor("tag:yaml.org,2002:int", whole)
    return Loader


@cache
def _dumper() -> type[yaml.SafeDumper]:
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True

        def represent_str(self, data: str) -> yaml.ScalarNode:
            # Line breaks of Unicode's are escaped: elsewhere YAML reads one as a space.
            style = '"' if set(data) & {"\x85", "\u2028", "\u2029"} else None
            return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    Dumper.add_representer(str, Dumper.represent_str)
    Dumper.add_implicit_resolver(*_NUMBER)  # so that a text like 1e-4 gets quotation marks
    return Dumper


_NUMBER: tuple[str, re.Pattern[str], list[str]] = (
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def _whole(loader: Any, node: Any) -> object:
    """A whole number; of one that Python does not read, what is wrong with it."""
    return loader.construct_yaml_int(node) if len(node.value) < 1000 else _int(node.value)
