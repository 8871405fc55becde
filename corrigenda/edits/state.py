"""`EditorState`: what an editor needs to go on from an edit of its own, saved beside the edit and never applied.

On disk it is ``state.safetensors`` and ``state.json``, each known by its hash to the file that names it (``edit.json``,
``state.json``). An edit whose state is missing can be applied, but not extended.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from safetensors.torch import load_file
from torch import Tensor

from corrigenda.system.files import digest_of, write_json, write_tensors
from corrigenda.system.plain_data import read_json

FORMAT = 1
"""The version of the files that `write_state` writes."""

TENSORS, VALUES = "state.safetensors", "state.json"
"""The names of a state's files, in its edit's folder."""


@dataclass(frozen=True, eq=False)
class StoredState:
    """A state as it lies on disk: the name of its kind, its tensors by name, and the rest, of plain JSON values."""

    kind: str
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


class EditorState:
    """What an editor goes on from. A kind is a frozen dataclass with a `kind`, its name in files, which registers it.

    Its fields are tuples of plain values, or it says how they are written by `stored` and `restore`.
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[EditorState]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" in cls.__dict__:
            EditorState.kinds[cls.kind] = cls

    def stored(self) -> StoredState:
        """The state in the form that is written to disk; `restore` is its inverse."""
        names = [one.name for one in dataclasses.fields(self)]  # type: ignore[arg-type]
        return StoredState(self.kind, {}, {name: list(getattr(self, name)) for name in names})

    @classmethod
    def restore(cls, stored: StoredState) -> EditorState:
        """The state that `stored` gave."""
        names = [one.name for one in dataclasses.fields(cls)]  # type: ignore[arg-type]
        return cls(**{name: tuple(stored.values[name]) for name in names})


State = TypeVar("State", bound=EditorState)


def typed(stored: StoredState) -> EditorState | StoredState:
    """The state of its own kind; as it is where nobody has registered the kind (its editor is not imported yet)."""
    kind = EditorState.kinds.get(stored.kind)
    return stored if kind is None else kind.restore(stored)


def as_kind(state: EditorState | StoredState | None, kind: type[State]) -> State | None:
    """The state as one of a kind; None where it is of another, or there is none.

    Raises:
        ValueError, KeyError, TypeError: it was read from disk before its kind was known, and is damaged.
    """
    if isinstance(state, StoredState) and state.kind == kind.kind:
        state = kind.restore(state)
    return state if isinstance(state, kind) else None


def write_state(folder: Path, state: EditorState | StoredState | None) -> dict[str, str] | None:
    """Writes a state into its edit's folder, or removes an older one where there is none.

    Gives what ``edit.json`` says of it: its kind, and the hash of ``state.json``.
    """
    if state is None:
        for name in (VALUES, TENSORS):
            (folder / name).unlink(missing_ok=True)
        return None
    if isinstance(state, EditorState):
        state = state.stored()
    json.dumps(dict(state.values), allow_nan=False)  # what JSON cannot hold is an error before anything is written
    write_tensors(folder / TENSORS, state.tensors)
    values = {
        "format": FORMAT,
        "kind": state.kind,
        "tensors_sha256": digest_of(folder / TENSORS),
        "values": dict(state.values),
    }
    write_json(folder / VALUES, values)
    return {"kind": state.kind, "sha256": digest_of(folder / VALUES)}


def read_state(folder: Path, named: Mapping[str, Any]) -> EditorState | StoredState | None:
    """Reads the state that `write_state` wrote and `named`; None where one of its files is missing.

    Raises ValueError: a file is damaged, or of an unknown format.
    """
    path, tensors = folder / VALUES, folder / TENSORS
    if not path.is_file() or not tensors.is_file():
        return None
    if digest_of(path) != named.get("sha256"):
        raise ValueError(f"{path} is damaged: its SHA-256 is not the one that edit.json names")
    found = read_json(path)
    if found["format"] != FORMAT:
        raise ValueError(f"{path}: format {found['format']!r}; this version reads format {FORMAT}")
    if digest_of(tensors) != found["tensors_sha256"]:
        raise ValueError(f"{tensors} is damaged: its SHA-256 is not the one that {VALUES} names")
    try:
        return typed(StoredState(found["kind"], load_file(tensors), found["values"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error
