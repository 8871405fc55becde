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
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from corrigenda.errors import SettingsError
from corrigenda.text.names import did_you_mean

if TYPE_CHECKING:
    from pydantic import TypeAdapter

C = TypeVar("C", bound=type)

Count = Annotated[int, Ge(0), Lt(2**63)]
"""A whole number, 0 or more (that a tensor can hold)."""
AtLeastOne = Annotated[int, Ge(1), Lt(2**63)]
"""A whole number, 1 or more (that a tensor can hold)."""
Seed = Annotated[int, Ge(0), Lt(2**32)]
"""A seed that every random number generator takes."""
NotNegative = Annotated[float, Ge(0)]
"""A finite number, 0 or more."""
Positive = Annotated[float, Gt(0)]
"""A finite number above 0."""
Share = Annotated[float, Ge(0), Le(1)]
"""A number from 0 to 1."""
ShareAboveZero = Annotated[float, Gt(0), Le(1)]
"""A number above 0, up to 1."""
ShareBelowOne = Annotated[float, Ge(0), Lt(1)]
"""A number from 0, below 1."""


def checked(cls: C) -> C:
    """Makes a dataclass check its fields when it is made, before its own ``__post_init__`` sees them.

    Lists (as configuration files give them) become tuples, numpy's numbers Python's. Of a class and its base classes
    the fields are checked once; a class without a ``__post_init__`` of its own has its base class's, as always.

    Attributes of the class that are read:
        group: the dotted path of its settings in the configuration, where they are known by it: "job" makes the
            message "job.facts=-1 must be ...", "" makes it "seed=-1 must be ..."; without it, the class's name.

    Raises:
        SettingsError: when an instance is made with a value that its annotation does not allow.
    """
    own: Callable[[Any], None] | None = cls.__dict__.get("__post_init__")

    def check_first(self: Any) -> None:
        if next(each for each in type(self).__mro__ if each.__dict__.get(_CHECKED)) is cls:
            check_fields(self)
        inherited = getattr(super(cls, self), "__post_init__", None)
        if own is not None:
            own(self)
        elif inherited is not None:
            inherited()

    cls.__post_init__ = check_first  # type: ignore[attr-defined]
    setattr(cls, _CHECKED, True)
    return cls


_CHECKED = "__checks_its_fields__"


def is_checked(cls: type) -> bool:
    """Whether a class checks its fields when an instance is made."""
    return bool(getattr(cls, _CHECKED, False))


def check_fields(settings: Any) -> None:
    """Checks the fields of a dataclass instance against its annotations, and sets them to their plain form.

    Raises:
        SettingsError: a value is not what its annotation allows.
    """
    for name, adapter in _adapters(type(settings)).items():
        value = plain(getattr(settings, name))
        problem = problem_of(adapter, value)
        if problem is not None:
            raise SettingsError(f"{_titled(type(settings), name)}={short_repr(value)} {problem}")
        object.__setattr__(settings, name, value)


def check_value(where: str, name: str, value: Any, allowed: Any) -> Any:
    """The value of one argument in its plain form, checked as `checked` does a field.

    `allowed` is an annotation (`Count`, ``int | None``); `where`, the function, and `name` are for the message. Raises
    SettingsError: the annotation does not allow the value.
    """
    value = plain(value)
    problem = problem_of(_adapter(allowed), value)
    if problem is not None:
        raise SettingsError(f"{where}: {name}={short_repr(value)} {problem}")
    return value


def check_class(where: str, name: str, value: Any, wanted: type) -> None:
    """Checks that an argument is an instance of a class of settings.

    Raises:
        TypeError: it is something else; a mapping is told how it becomes one.
    """
    if not isinstance(value, wanted):
        hint = f": write {wanted.__name__}(**{name})" if isinstance(value, Mapping) else ""
        raise TypeError(f"{where}: {name}={short_repr(value)} must be of the class {wanted.__name__}{hint}")


def plain(value: Any) -> Any:
    """Lists of any kind as tuples and other libraries' numbers as Python's; everything else as it is."""
    if type(value) in (bool, int, float, str, bytes) or value is None:
        return value
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)) and not hasattr(value, "_fields"):
        return tuple(plain(part) for part in value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()  # numpy's true and false, tensors with one number
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
    if _is_broken_text(value):
        return "must be a text that a file can hold (it has half of a character, a lone surrogate)"
    return None


def _is_broken_text(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(_is_broken_text(part) for part in value)
    return isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value)


_ADAPTERS: dict[type, dict[str, Any]] = {}


def _adapters(cls: type) -> dict[str, TypeAdapter[Any]]:
    """A validator for each field of a dataclass; made at its first instance, since pydantic takes time to import."""
    if cls not in _ADAPTERS:
        hints = get_type_hints(cls, include_extras=True)
        _ADAPTERS[cls] = {each.name: _adapter(hints[each.name]) for each in dataclasses.fields(cls)}
    return _ADAPTERS[cls]


def _adapter(hint: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, InstanceOf, TypeAdapter

    instance_of: Any = InstanceOf
    # A class of settings was checked when it was made, and pydantic would take a dictionary for it.
    if dataclasses.is_dataclass(hint) or getattr(hint, "_is_protocol", False):
        return TypeAdapter(instance_of[hint])
    return TypeAdapter(hint, config=ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True))


def _titled(cls: type, name: str) -> str:
    group: str | None = getattr(cls, "group", None)
    return f"{cls.__name__}: {name}" if group is None else f"{group}.{name}".lstrip(".")


_WORDS: Mapping[str, str] = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "tuple_type": "must be a list",
    "missing": "is missing",
    "too_short": "must have at least {min_length} entries, not {actual_length}",
    "too_long": "must have at most {max_length} entries, not {actual_length}",
    "dict_type": "must be a mapping",
    "callable_type": "must be a function",
    "is_instance_of": "must be of the class {class}",
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
        hint = did_you_mean(value, choices, most=1)
        return f"must be one of {', '.join(choices)}" + (f"; {hint}" if hint else "")
    words = _WORDS.get(error["type"], "").format(**context) or f"is wrong: {error['msg'][:1].lower()}{error['msg'][1:]}"
    place = [str(part + 1) for part in error["loc"] if isinstance(part, int)]
    return f"(number {' of number '.join(reversed(place))}) {words}" if place else words


def short_repr(value: Any) -> str:
    """A value in one line of a message, cut where it is long."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # whole numbers of thousands of digits, objects that cannot say what they are
        text = f"(a value of the class {type(value).__name__})"
    return text if len(text) <= 80 else f"{text[:77]}..."
