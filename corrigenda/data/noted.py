"""Which keys of a record were read: what a reader leaves out is known, whatever the reader."""

import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any


class Noted(Mapping[str, Any]):
    """A record, or an object in one, that notes which of its keys are read.

    `path` is where it stands in its record, ``[]`` for every item of a list; all objects of a record share the paths
    `read`.
    """

    def __init__(self, value: Mapping[str, Any], path: str = "", read: set[str] | None = None) -> None:
        self._value, self._path, self._read = value, path, set[str]() if read is None else read

    def __getitem__(self, key: str) -> Any:
        value = self._value[key]
        path = _joined(self._path, key)
        self._read.add(path)
        return _noted(value, path, self._read)

    def __contains__(self, key: object) -> bool:
        return key in self._value

    def __iter__(self) -> Iterator[str]:
        return iter(self._value)

    def __len__(self) -> int:
        return len(self._value)

    def __repr__(self) -> str:
        return repr(self._value)

    def unread(self) -> list[str]:
        """The paths of what was not read, each once; without what is empty."""
        return list(dict.fromkeys(_unread(self._value, self._path, self._read)))


def composed(value: Any) -> Any:
    """A JSON value with all its texts in Unicode's composed form (NFC), so that one letter is one letter everywhere."""
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, Mapping):
        return {name: composed(part) for name, part in value.items()}
    return [composed(part) for part in value] if isinstance(value, list) else value


def _noted(value: Any, path: str, read: set[str]) -> Any:
    if isinstance(value, Mapping):
        return Noted(value, path, read)
    return [_noted(part, f"{path}[]", read) for part in value] if isinstance(value, list) else value


def _unread(value: Any, path: str, read: set[str]) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            where = _joined(path, key)
            if where in read:
                yield from _unread(part, where, read)
            elif part == part and part not in (None, "", [], {}):  # NaN, not equal to itself, is a table's empty cell
                yield where
    elif isinstance(value, list):
        for part in value:
            yield from _unread(part, f"{path}[]", read)


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
