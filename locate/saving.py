"""Results on disk: what a frozen dataclass holds, as JSON, and its tensors beside it as safetensors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, get_args, get_origin, get_type_hints

import torch
from safetensors.torch import load_file
from torch import Tensor

from corrigenda import Fact
from corrigenda.system.files import digest_of, write_json, write_tensors
from corrigenda.system.plain_data import read_json

if TYPE_CHECKING:
    from typing_extensions import Self


class SavedResult:
    """A frozen dataclass that is saved and read back by the types of its fields.

    These may be tensors, facts, plain values, other dataclasses, and tuples and mappings of all of them. The class
    says what its files are called: ``class Trace(SavedResult, file="trace")``.
    """

    _file: ClassVar[str]

    def __init_subclass__(cls, file: str, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls._file = file

    def save(self, folder: str | Path) -> None:
        """Writes a JSON file and a safetensors file of the class's name; `load` reads them back."""
        tensors: dict[str, Tensor] = {}
        fields = {f.name: _written(getattr(self, f.name), f.name, tensors) for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        path = Path(folder) / f"{self._file}.safetensors"
        write_tensors(path, tensors)
        # Last: with it all is there.
        write_json(path.with_suffix(".json"), {**fields, "tensors_sha256": digest_of(path)})

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Reads what `save` wrote.

        Raises:
            FileNotFoundError: the folder holds none.
            ValueError: it is damaged.
        """
        path = Path(folder) / f"{cls._file}.json"
        tensors = path.with_suffix(".safetensors")
        for file in (path, tensors):
            if not file.is_file():
                raise FileNotFoundError(f"{folder} holds no {cls._file}: there is no {file.name} in it")
        try:
            fields = dict(read_json(path))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        if digest_of(tensors) != fields.pop("tensors_sha256", None):
            raise ValueError(f"{tensors} is damaged: its SHA-256 is not the one that {path.name} names")
        try:
            found: Self = _read(cls, fields, "", load_file(tensors))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged: {error!r}") from None
        return found


def _written(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON; a tensor, and a number that JSON does not have, is null, and lies among the tensors."""
    if isinstance(value, Tensor):  # a file holds no two names of one memory
        shared = value.data_ptr() in {each.data_ptr() for each in tensors.values()}
        tensors[name] = value.clone() if shared else value
        return None
    if isinstance(value, float) and not math.isfinite(value):
        tensors[name] = torch.tensor(value, dtype=torch.float64)
        return None
    if isinstance(value, Fact):
        return value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: _written(getattr(value, f.name), f"{name}.{f.name}", tensors) for f in dataclasses.fields(value)
        }
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _written(each, f"{name}.{key}", tensors) for key, each in value.items()}
    if isinstance(value, Mapping):
        value = tuple(value.items())
    if isinstance(value, (tuple, list)):
        return [_written(each, f"{name}.{place}", tensors) for place, each in enumerate(value)]
    return value


def _read(hint: Any, value: Any, name: str, tensors: Mapping[str, Tensor]) -> Any:
    """A value of a type from what `_written` made of it."""
    if get_origin(hint) is None and not dataclasses.is_dataclass(hint):
        if name in tensors:
            return tensors[name].item() if hint is float else tensors[name]
        return _plain(value)
    if hint is Fact:
        return Fact.from_dict(value)
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint)
        own = f"{name}." if name else ""
        return hint(**{key: _read(hints[key], each, f"{own}{key}", tensors) for key, each in value.items()})  # type: ignore[operator]
    inner = get_args(hint)
    if NoneType in inner:  # an optional value
        here = name in tensors or value is not None
        return _read(next(each for each in inner if each is not NoneType), value, name, tensors) if here else None
    origin = get_origin(hint)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        of = inner[1]
        if isinstance(value, Mapping):
            return {each: _read(of, part, f"{name}.{each}", tensors) for each, part in value.items()}
        rows = enumerate(value)
        return {_plain(each): _read(of, part, f"{name}.{place}.1", tensors) for place, (each, part) in rows}
    if origin is tuple:
        hints_of = inner[:1] * len(value) if inner[1:] == (...,) else inner
        pairs = zip(hints_of, value, strict=True)
        return tuple(_read(of, part, f"{name}.{place}", tensors) for place, (of, part) in enumerate(pairs))
    return _plain(value)


def _plain(value: Any) -> Any:
    """Lists as tuples, at any depth."""
    if isinstance(value, list):
        return tuple(map(_plain, value))
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, dict) else value
