"""`Edit`: a reversible, saveable change to a model, and the stack of those that are applied."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from corrigenda.edits.export.changes import Change
from corrigenda.edits.export.gguf_adapter import write_gguf_adapter
from corrigenda.edits.export.gguf_file import Kind, write_gguf
from corrigenda.edits.origin import Origin
from corrigenda.edits.state import EditorState, StoredState, read_state, write_state
from corrigenda.errors import EditRefusedError
from corrigenda.errors import WrongModelError as WrongModelError
from corrigenda.facts import Fact
from corrigenda.models.bare import BareModel, Place
from corrigenda.models.condition import require_no_adapter, require_own_precision
from corrigenda.system.files import digest_of, write_json, write_tensors
from corrigenda.system.plain_data import read_json

FORMAT = 1
"""The version of the files that `Edit.save` writes."""

logger = logging.getLogger(__name__)


@contextmanager
def beside(error: BaseException) -> Iterator[None]:
    """What fails inside the ``with`` block is said beside an error that is to be seen, and not in its place."""
    try:
        yield
    except BaseException as second:
        said = f"then, while the model was brought back: {second!r}; the next apply or revert finishes it"
        logger.error("after %r: %s", error, said)
        if sys.version_info >= (3, 11):
            error.add_note(said)


class Stack(Protocol):
    """What an edit needs of the stack of applied ones (`corrigenda.edits.stack`)."""

    def __contains__(self, edit: object) -> bool: ...

    def push(self, edit: Edit) -> None:
        """Applies an edit on top."""

    def remove(self, edit: Edit) -> None:
        """Takes an edit out."""

    def require_unchanged(self, layers: Sequence[Place]) -> None:
        """Refuses layers whose values were changed otherwise than by edits."""


class Editable(BareModel):
    """A model that edits can be applied to, as an edit sees it (`corrigenda.LanguageModel` is one)."""

    edits: Stack


Model = TypeVar("Model", bound=Editable)


@dataclass(frozen=True, eq=False)
class Edit(ABC):
    """A change to a model that can be applied, taken back, saved and loaded.

    Edits compose: applying stacks, reverting takes any one of them out again, and when the last is gone the model is
    bit for bit what it was.

    Attributes:
        origin: the model, editor and facts it was made from.
        state: what its editor needs to go on from it; never a part of what is applied. None for editors that do not
            extend edits, or where it was not saved with the edit.
        kind: the name of the kind in saved files.
        in_weights: whether the change lies in the model's weights (and so in what `save_pretrained` writes).
        elsewhere: what another program would need for it, where it cannot be written as GGUF.
        saved_tensors: the names of the fields that `save` writes as tensors.
        saved_settings: of those that it writes as plain values.
    """

    origin: Origin
    state: EditorState | StoredState | None = field(default=None, kw_only=True, repr=False)
    kind: ClassVar[str]
    in_weights: ClassVar[bool]
    elsewhere: ClassVar[str] = ""
    saved_tensors: ClassVar[tuple[str, ...]] = ()
    saved_settings: ClassVar[tuple[str, ...]] = ()
    kinds: ClassVar[dict[str, type[Edit]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" in cls.__dict__:  # HookedEdit is no kind itself
            Edit.kinds[cls.kind] = cls

    def apply(self, lm: Editable, strict: bool = True) -> None:
        """Applies the edit on top of those already applied.

        Args:
            lm: the model to change.
            strict: whether to refuse a model whose unedited weights are not those the edit was made on.

        Raises:
            RuntimeError: torch computes in another precision (`models.condition.require_own_precision`).
            TypeError: it is no model.
            WrongModelError: it is another model, or the values of a layer that the edit acts on were changed by hand
                after loading, and `strict`; or its shapes do not fit.
            EditRefusedError: what it makes of the model's values is not finite in the precision of the weights.
            UnsupportedModelError: an adapter was put inside the model, which its edits would be lost for.
            ValueError: this very edit is applied already.
        """
        _require_model(lm)
        require_own_precision(lm.model, lm.name)
        require_no_adapter(lm.model, lm.name)
        with lm.alone:
            if strict and self.origin.fingerprint != lm.fingerprint:
                raise WrongModelError(
                    f"this edit was made on {self.origin.model} (weights {self.origin.fingerprint[:12]}), not on "
                    f"{lm.name} (weights {lm.fingerprint[:12]}); pass strict=False to apply it all the same"
                )
            self._check(lm)
            if strict:
                lm.edits.require_unchanged(self.touched)
            lm.edits.push(self)

    def revert(self, lm: Editable) -> None:
        """Takes the edit out again; others that are applied stay.

        Raises:
            EditRefusedError: what the others make of the model's values is not finite in the precision of the weights.
            TypeError: it is no model.
            ValueError: it is not applied.
        """
        _require_model(lm)
        with lm.alone:
            lm.edits.remove(self)

    @property
    def touched(self) -> tuple[Place, ...]:
        """The layers that the edit acts on; none for a kind that has no layers."""
        return ()

    @property
    def n_numbers(self) -> int:
        """How many numbers it consists of: of a low-rank edit those of its factors, not of the matrices they change."""
        return sum(tensor.numel() for tensor in self._tensors().values())

    @contextmanager
    def applied(self, lm: Model, strict: bool = True) -> Iterator[Model]:
        """The model with the edit applied, inside a ``with`` block; other threads wait until it ends."""
        _require_model(lm)
        with lm.alone:
            already = self in lm.edits
            try:
                self.apply(lm, strict)
                yield lm
                self.revert(lm)
            except BaseException as error:
                with beside(error):
                    if self in lm.edits and not already:
                        self.revert(lm)
                raise

    def save(self, folder: str | Path) -> None:
        """Writes the edit as ``edit.json`` and ``edit.safetensors``; `Edit.load` reads them back.

        Its editor's state, where it has one, goes beside them (`corrigenda.edits.state`).

        Raises:
            FileExistsError: there is a file where the folder should be.
        """
        folder = folder_for(folder, "an edit")
        origin = {f.name: getattr(self.origin, f.name) for f in dataclasses.fields(Origin)}
        origin["facts"] = [fact.to_dict() for fact in self.origin.facts]
        json.dumps(origin, allow_nan=False)  # what JSON cannot hold is an error before anything is written
        path = folder / "edit.safetensors"
        # The description goes last, and that of an earlier edit first: a folder with one is complete. It knows the
        # tensors' file by its hash.
        write_tensors(path, self._tensors(), replaces=folder / "edit.json")
        state = write_state(folder, self.state)
        description = {
            "format": FORMAT,
            "kind": self.kind,
            "tensors_sha256": digest_of(path),
            "settings": self._settings(),
            "origin": origin,
        }
        if state is not None:
            description["state"] = state
        description["description_sha256"] = _digest(description)
        write_json(folder / "edit.json", description)

    @staticmethod
    def load(folder: str | Path) -> Edit:
        """Reads an edit that `save` wrote.

        Raises:
            FileNotFoundError: the folder holds no edit.
            NotADirectoryError: it is a file.
            ValueError: it holds one of an unknown format or kind, or a damaged one (or one with a damaged state): a
                file or a description that was changed since it was saved, or tensors that are not finite.
        """
        if not isinstance(folder, (str, Path)):
            raise TypeError(f"an edit is loaded from a folder, not from {type(folder).__name__} {str(folder)[:80]!r}")
        folder = Path(folder)
        if folder.is_file():
            raise NotADirectoryError(f"{folder} is a file; an edit is a folder with edit.json and edit.safetensors")
        path = folder / "edit.json"
        if not path.is_file():
            raise FileNotFoundError(f"{folder} holds no edit: there is no {path.name} in it")
        try:
            description = read_json(path)
            kind, version = str(description["kind"]), description["format"]
            raw = dict(description["origin"])
            intact = description["description_sha256"] == _digest(description)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} is damaged: {error!r}") from None
        if version != FORMAT or kind not in Edit.kinds:
            raise ValueError(
                f"{path}: format {version!r}, kind {kind!r}; this version reads format {FORMAT} "
                f"and the kinds {', '.join(sorted(Edit.kinds))}"
            )
        if not intact:
            raise ValueError(
                f"{path} is damaged: it was changed since the edit was saved (its SHA-256 is not the one that it names)"
            )
        tensors_path = folder / "edit.safetensors"
        if not tensors_path.is_file():
            raise FileNotFoundError(f"{folder} holds half an edit: {tensors_path.name} is missing")
        if digest_of(tensors_path) != description.get("tensors_sha256"):
            raise ValueError(f"{tensors_path} is damaged: its SHA-256 is not the one that {path.name} names")
        try:
            tensors = load_file(tensors_path)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{tensors_path} is damaged: {error!r}") from None
        try:
            raw["facts"] = tuple(Fact.from_dict(record) for record in raw["facts"])
            raw["report"] = tuple(raw["report"])
            edit = Edit.kinds[kind]._restore(Origin(**raw), tensors, description["settings"])
        except EditRefusedError as error:
            raise ValueError(f"{tensors_path} cannot be applied: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged: {error!r}") from error
        if "state" not in description:
            return edit
        return dataclasses.replace(edit, state=read_state(folder, description["state"]))

    def describe(self) -> str:
        """A few lines for a person: what was changed, by which editor, in which model."""
        origin = self.origin
        lines = [f"{self.kind} edit of {origin.model} by {origin.editor}: {self._summary()}"]
        lines += [f"  {change}" for change in origin.changes[:10]]
        if len(origin.facts) > 10:
            lines.append(f"  and {len(origin.facts) - 10} more")
        return "\n".join(lines)

    def to_peft(self, folder: str | Path) -> None:
        """Writes the edit as a PEFT adapter.

        Raises:
            TypeError: the kind of edit has no such form (only a low-rank one has).
        """
        raise TypeError(f"a {self.kind} edit cannot be written as a PEFT adapter; only low_rank edits can")

    def to_gguf_adapter(
        self,
        folder: str | Path,
        *others: Edit,
        rank: int | None = None,
        dtype: Literal["float32", "float16"] = "float32",
        base: str | Path | None = None,
    ) -> dict[int, float]:
        """Writes the edit, and others on top of it, as a LoRA adapter for llama.cpp and Ollama: ``adapter.gguf``.

        What is written, returned and raised says `corrigenda.edits.export.gguf_adapter.write_gguf_adapter`.

        Raises:
            FileExistsError: there is a file where the folder should be.
            TypeError: a kind of edit has no such form (only those of the values of layers have).
        """
        return write_gguf_adapter(folder_for(folder, "a GGUF adapter"), self._changes(others), rank, dtype, base)

    def to_gguf(
        self, path: str | Path, *others: Edit, dtype: Kind | None = None, base: str | Path | None = None
    ) -> dict[int, str]:
        """Writes the model's GGUF file with the edit, and others on top of it, in its tensors: all others stay.

        What is written, returned and raised says `corrigenda.edits.export.gguf_file.write_gguf`.

        Raises:
            TypeError: a kind of edit has no such form (only those of the values of layers have).
        """
        return write_gguf(Path(path), self._changes(others), dtype, base)

    def _changes(self, others: Sequence[Edit]) -> list[Change]:
        return [(edit.origin, edit._factors()) for edit in (self, *others)]

    # -- what a kind has to say

    def _check(self, lm: Editable) -> None:  # noqa: B027 - most kinds fit every model
        """Raises WrongModelError where the edit cannot fit the model, whatever `strict` says."""

    @abstractmethod
    def _summary(self) -> str: ...

    def _factors(self) -> Mapping[int, tuple[Tensor, Tensor]]:
        raise TypeError(
            f"a {self.kind} edit cannot be written as a GGUF adapter or file, only low_rank and values edits can: "
            f"{self.elsewhere}"
        )

    def _tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.saved_tensors}

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.saved_settings}

    @classmethod
    def _restore(cls, origin: Origin, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Edit:
        # Older edits do not say all settings; what they did is the default.
        parts: dict[str, Any] = {name: settings[name] for name in cls.saved_settings if name in settings}
        parts |= {name: tensors[name] for name in cls.saved_tensors}
        return cls(origin, **parts)


@contextmanager
def all_applied(edits: Iterable[Edit], lm: Model) -> Iterator[Model]:
    """The model with edits applied, one on top of the other, inside a ``with`` block."""
    with ExitStack() as stack:
        for edit in edits:
            stack.enter_context(edit.applied(lm))
        yield lm


def folder_for(folder: str | Path, what: str) -> Path:
    """The path of a folder that is to be written. Raises FileExistsError: it, or a folder above it, is a file."""
    path = Path(folder)
    for place in (path, *path.parents):
        if place.is_file():
            raise FileExistsError(f"{place} is a file, and {what} is written as a folder: name another place")
    return path


def _require_model(lm: object) -> None:
    if not isinstance(lm, Editable):
        raise TypeError(
            f"an edit is applied to a LanguageModel (corrigenda.load gives one), not to {type(lm).__name__} "
            f"{str(lm)[:80]!r}"
        )


def _digest(description: Mapping[str, Any]) -> str:
    """The SHA-256 of what ``edit.json`` says, but for the digest itself: of its canonical JSON."""
    said = {name: value for name, value in description.items() if name != "description_sha256"}
    plain = json.loads(json.dumps(said, allow_nan=False))  # as it is read back: keys are texts, tuples lists
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
