"""Typed access to the fields of a raw record; every refusal names the field by its path in the record's own schema."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from corrigenda.errors import FactError
from corrigenda.text.display import shortened

Record = Mapping[str, Any]


def lookup(record: Record, path: str) -> object:
    """The value at a dotted `path`, or None where the field, or an object on the way to it, is absent or null.

    Absent and null are the same on purpose: a hub data set stored as columns gives null for every absent field.

    Raises:
        FactError: something on the way is not an object.
    """
    value: object = record
    names = path.split(".")
    for depth, name in enumerate(names):
        if not isinstance(value, Mapping):
            raise FactError(".".join(names[:depth]), f"must be an object, got {typed_repr(value)}")
        value = value.get(name)
        if value is None:
            return None
    return value


def text(record: Record, path: str) -> str:
    """The non-empty string at `path`, as it stands. Raises FactError: it is absent, null, not a string, or blank."""
    value = lookup(record, path)
    if value is None:
        raise FactError(path, "is missing")
    return _checked_text(value, path)


def target(record: Record, path: str) -> str:
    """The string at `path` as a target, without the spaces before it, by which data sets join it to any prompt.

    Other white space, as a line break, says what stands before it, and is kept.
    """
    return as_target(text(record, path))


def as_target(value: str) -> str:
    """A text as `target` gives it."""
    return re.sub(r"^ +(?=\S)", "", value)


def optional_text(record: Record, path: str) -> str | None:
    """Like `text`, but None where the field is absent or null."""
    return None if lookup(record, path) is None else text(record, path)


def texts(record: Record, path: str) -> tuple[str, ...]:
    """The list of non-empty strings at `path`; empty where the field is absent or null.

    Raises:
        FactError: it is not a list, or an item is not a string or is blank.
    """
    values = lookup(record, path)
    if values is None:
        return ()
    if not isinstance(values, (list, tuple)):
        raise FactError(path, f"must be a list, got {typed_repr(values)}")
    return tuple(_checked_text(value, f"{path}[{number}]") for number, value in enumerate(values))


def text_or_texts(record: Record, path: str) -> tuple[str, ...]:
    """Like `texts`, where one text may stand for a list of one; a blank one for none."""
    value = lookup(record, path)
    if isinstance(value, str):
        return (value,) if value.strip() else ()
    return texts(record, path)


def identifier(record: Record, path: str) -> str:
    """The integer or string at `path` as a string; empty where the field is absent or null.

    Raises:
        FactError: it is neither an integer nor a non-empty string.
    """
    value = lookup(record, path)
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise FactError(path, f"must be an integer or a string, got {typed_repr(value)}")
    return _checked_text(value, path)


def template(record: Record, path: str, subject: str) -> str:
    """The filled prompt at `path` with the last occurrence of `subject` replaced by ``{}``.

    An occurrence that is a whole word wins over one inside another word ("Ra" in "Rain falls on Ra").

    Raises:
        FactError: the prompt is missing or does not contain the subject.
    """
    prompt = text(record, path)
    require_subject(prompt, path, subject)
    subject = subject.strip()  # as a `Fact` takes it
    whole = list(re.finditer(rf"(?<!\w){re.escape(subject)}(?!\w)", prompt))
    start = whole[-1].start() if whole else prompt.rindex(subject)
    return prompt[:start] + "{}" + prompt[start + len(subject) :]


def require_subject(prompt: str, path: str, subject: str) -> None:
    """Refuse a filled prompt that does not contain the subject. Raises FactError: naming `path`."""
    if subject.strip() not in prompt:
        raise FactError(path, f"does not contain the subject {shortened(repr(subject))}: {shortened(repr(prompt))}")


def texts_about(record: Record, path: str, subject: str) -> tuple[str, ...]:
    """Like `texts`, for filled prompts that must all contain the subject."""
    prompts = texts(record, path)
    for number, prompt in enumerate(prompts):
        require_subject(prompt, f"{path}[{number}]", subject)
    return prompts


@contextmanager
def fields_named(names: Mapping[str, str]) -> Iterator[None]:
    """Gives a `FactError` raised inside the path that its field has in the record, by the names of `Fact`'s fields."""
    try:
        yield
    except FactError as error:
        name = re.split(r"[.\[]", error.field, maxsplit=1)[0]
        raise FactError(names.get(name, name) + error.field[len(name) :], error.problem) from None


@contextmanager
def under(path: str) -> Iterator[None]:
    """Puts `path` before the field that a `FactError` raised inside names, for an object that was read on its own."""
    try:
        yield
    except FactError as error:
        raise FactError(f"{path}.{error.field}" if error.field else path, error.problem) from None


def objects(record: Record, path: str) -> tuple[Record, ...]:
    """The list of objects at `path`; empty where the field is absent or null.

    Raises:
        FactError: it is not a list, or an item is not an object.
    """
    return objects_in(lookup(record, path), path)


def objects_in(values: object, path: str) -> tuple[Record, ...]:
    """Like `objects`, of the value that stands at `path`."""
    if values is None:
        return ()
    if not isinstance(values, (list, tuple)):
        raise FactError(path, f"must be a list, got {typed_repr(values)}")
    for number, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise FactError(f"{path}[{number}]", f"must be an object, got {typed_repr(value)}")
    return tuple(values)


def typed_repr(value: object) -> str:
    """A value as an error message shows it: its type and a repr of bounded length."""
    name = "dict" if isinstance(value, Mapping) else type(value).__name__
    return f"{name} {shortened(repr(value))}"


def _checked_text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise FactError(path, f"must be a string, got {typed_repr(value)}")
    if not value.strip():
        raise FactError(path, f"is empty ({value!r})")
    return value
