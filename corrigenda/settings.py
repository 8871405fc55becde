"""Settings classes that check every field when they are made: its type, its range, that it is finite.

A settings class is a frozen dataclass with `checked` under the decorator of the dataclass, and its annotations say
what a field may hold:

    @dataclass(frozen=True)
    @checked
    class Generation:
        max_new_tokens: Count = 50
        temperature: Positive = 1.0

One mechanism for the whole project; what a value has to be is said once, in the annotation. The check itself is
pydantic's, in its strict mode: "1" is no number, and true is no whole number.
"""

from __future__ import annotations

import dataclasses
import difflib
import numbers
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

if TYPE_CHECKING:
    from pydantic import TypeAdapter

C = TypeVar("C", bound=type)

Count = Annotated[int, Ge(0)]
"""A whole number, 0 or more."""
AtLeastOne = Annotated[int, Ge(1)]
"""A whole number, 1 or more."""
Seed = Annotated[int, Ge(0), Lt(2**32)]
"""A seed that every random number generator takes."""
NotNegative = Annotated[float, Ge(0)]
"""A finite number, 0 or more."""
Positive = Annotated[float, Gt(0)]
"""A finite number above 0."""
Share = Annotated[float, Ge(0), Le(1)]
"""A number from 0 to 1."""


class SettingsError(ValueError):
    """A setting that cannot be; one line names the class, the field, the value and what it has to be."""


def checked(cls: C) -> C:
    """Makes a dataclass check its fields when it is made, before its own ``__post_init__`` sees them.

    Lists (as configuration files give them) become tuples, numpy's numbers Python's.

    Raises:
        SettingsError: when an instance is made with a value that its annotation does not allow.
    """
    own: Callable[[Any], None] | None = cls.__dict__.get("__post_init__")

    def check_first(self: Any) -> None:
        check_fields(self)
        if own is not None:
            own(self)

    cls.__post_init__ = check_first  # type: ignore[attr-defined]
    return cls


def check_fields(settings: Any) -> None:
    """Checks the fields of a dataclass instance against its annotations, and sets them to their plain form.

    Raises:
        SettingsError: a value is not what its annotation allows.
    """
    for name, adapter in _adapters(type(settings)).items():
        value = plain(getattr(settings, name))
        problem = problem_of(adapter, value)
        if problem is not None:
            raise SettingsError(f"{type(settings).__name__}: {name}={_shown(value)} {problem}")
        object.__setattr__(settings, name, value)


def plain(value: Any) -> Any:
    """Lists as tuples and other libraries' numbers as Python's; everything else as it is."""
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return tuple(plain(part) for part in value)
    if type(value) in (bool, int, float) or value is None:
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return value


def problem_of(adapter: TypeAdapter[Any], value: Any) -> str | None:
    """What is wrong with a value, in words that go on from "name=value"; None where it is as it has to be."""
    from pydantic import ValidationError

    try:
        adapter.validate_python(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=True)
        # Of a union every member says what it wanted; what it says of null helps least.
        telling = [each for each in found if each["type"] != "none_required"] or found
        return " or ".join(dict.fromkeys(_in_words(each, value) for each in telling))
    return None


_ADAPTERS: dict[type, dict[str, Any]] = {}


def _adapters(cls: type) -> dict[str, TypeAdapter[Any]]:
    """A validator for each field of a dataclass; made at its first instance, since pydantic takes time to import."""
    if cls not in _ADAPTERS:
        from pydantic import ConfigDict, InstanceOf, TypeAdapter

        instance_of: Any = InstanceOf
        config = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
        hints = get_type_hints(cls, include_extras=True)
        found = {}
        for each in dataclasses.fields(cls):
            hint = hints[each.name]
            if dataclasses.is_dataclass(hint):  # checked when it was made, and pydantic would take a dictionary for it
                found[each.name] = TypeAdapter(instance_of[hint])
            else:
                found[each.name] = TypeAdapter(hint, config=config)
        _ADAPTERS[cls] = found
    return _ADAPTERS[cls]


_WORDS: Mapping[str, str] = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "tuple_type": "must be a list",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
}


def _in_words(error: Any, value: Any) -> str:
    """One of pydantic's errors in the project's words."""
    context = error.get("ctx", {})
    if error["type"] == "literal_error":
        choices = [choice.strip().strip("'") for choice in context["expected"].replace(" or ", ", ").split(",")]
        near = difflib.get_close_matches(str(value), choices, 1)
        return f"must be one of {', '.join(choices)}" + (f"; did you mean {near[0]}?" if near else "")
    words = _WORDS.get(error["type"], "").format(**context) or f"is wrong: {error['msg'][:1].lower()}{error['msg'][1:]}"
    place = [str(part + 1) for part in error["loc"] if isinstance(part, int)]
    return f"(number {' of number '.join(reversed(place))}) {words}" if place else words


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
