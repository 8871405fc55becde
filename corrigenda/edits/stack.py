"""The edits that are applied to one model, and the untouched weights under them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import xxhash
from torch import Tensor

from corrigenda.edits.context import ContextEdit
from corrigenda.edits.edit import Edit, Editable, WrongModelError
from corrigenda.edits.low_rank import LowRankEdit
from corrigenda.edits.weights import WeightEdit
from corrigenda.files import bytes_of
from corrigenda.models.bare import Place


class AppliedEdits(Sequence[Edit]):
    """The edits that are applied to one model, in order, and the untouched weights under them."""

    def __init__(self, lm: Editable) -> None:
        self._lm = lm
        self._edits: list[Edit] = []
        self.untouched: dict[Place, Tensor] = {}
        """The value matrices, (d_ffn, d_model), of what weight edits touch, as they were before any."""
        self.open: MutableMapping[Edit, AbstractContextManager[Any]] = {}
        """What the applied edits that act through hooks hold open."""
        self._written: dict[Place, str] = {}
        """The hashes of the value matrices as `rebuild` left them, of the layers in `untouched`."""

    def __len__(self) -> int:
        return len(self._edits)

    def __getitem__(self, index: Any) -> Any:
        return self._edits[index]

    def __contains__(self, edit: object) -> bool:
        return any(applied is edit for applied in self._edits)

    @property
    def context(self) -> str:
        """The text that context edits put before every prompt."""
        return "".join(edit.text for edit in self._edits if isinstance(edit, ContextEdit))

    def content_hash(self) -> str:
        """A hash of what the applied edits make of the model; of no edits, of nothing.

        Of weight edits it is of the values as they are now, whatever made them so.
        """
        digest = xxhash.xxh3_128()
        for layer in sorted(self.untouched, key=lambda place: place if isinstance(place, tuple) else (place,)):
            digest.update(f"{layer} {self._lm.values_hash(layer)}".encode())
        for edit in self._edits:
            if isinstance(edit, WeightEdit):
                continue
            digest.update(f"{edit.kind} {json.dumps(edit._settings(), sort_keys=True)}".encode())
            for name, tensor in sorted(edit._tensors().items()):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(bytes_of(tensor))
        return digest.hexdigest()

    def push(self, edit: Edit) -> None:
        """Applies an edit; use `Edit.apply`, which checks the model first."""
        if edit in self:
            raise ValueError("this edit is applied already")
        self._edits.append(edit)
        try:
            edit._install(self._lm)
        except BaseException:
            self.remove(edit)
            raise

    def remove(self, edit: Edit) -> None:
        """Takes an edit out; use `Edit.revert`."""
        if edit not in self:
            raise ValueError("this edit is not applied to this model")
        self._edits = [applied for applied in self._edits if applied is not edit]
        edit._remove(self._lm)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """The unedited model, inside a ``with`` block; the edits come back after it, in their order."""
        edits = list(self._edits)
        for edit in reversed(edits):
            self.remove(edit)
        try:
            yield
        finally:
            for edit in edits:
                self.push(edit)

    def require_unchanged(self, layers: Sequence[Place]) -> None:
        """Checks that the value matrices of some layers are what loading and edits made of them.

        By a hash of each: a third of a millisecond for one of SmolLM2's layers.

        Raises:
            WrongModelError: one was changed otherwise.
        """
        for layer in self.changed_by_hand(layers):
            raise WrongModelError(
                f"the values of layer {layer} of {self._lm.name} were changed by hand since the model's fingerprint "
                "was taken, so the edit does not fit them; load the model again, or pass strict=False to apply it all "
                "the same"
            )

    def changed_by_hand(self, layers: Sequence[Place]) -> list[Place]:
        """Those of some layers whose value matrices are not what loading and edits made of them."""
        found = []
        for layer in layers:
            if self._lm.memory_at(layer).weight.is_meta:
                continue  # `rebuild` says why it cannot be edited
            expected = self._written.get(layer) or self._lm.loaded_hashes.get(layer)
            if expected is not None and self._lm.values_hash(layer) != expected:
                found.append(layer)
        return found

    @torch.no_grad()
    def rebuild(self, layers: Sequence[Place]) -> None:
        """Sets the value matrices of some layers to the untouched ones plus what the applied edits add.

        Always summed afresh, in the order of application and in float32, or in the model's precision where that is
        finer: floating-point addition cannot be taken back by subtraction, and so the same edits give the same bits
        however they came and went.
        """
        for layer in layers:
            values = self._lm.memory_at(layer).values
            if layer in self._written and self._lm.values_hash(layer) != self._written[layer]:
                warnings.warn(
                    f"the values of layer {layer} of {self._lm.name} were changed by hand while edits were applied; "
                    "that change is lost now",
                    stacklevel=4,
                )
            edits = [edit for edit in self._edits if isinstance(edit, WeightEdit) and layer in edit.changed]
            if not edits:
                if layer in self.untouched:
                    values.copy_(self.untouched.pop(layer))
                    self._written.pop(layer, None)
                continue
            if layer not in self.untouched:
                self.untouched[layer] = values.clone()
            values_before = self.untouched[layer]
            total = values_before.to(torch.promote_types(values_before.dtype, torch.float32))
            factors = [
                edit.factors[layer] for edit in edits if isinstance(edit, LowRankEdit) and isinstance(layer, int)
            ]
            if factors:  # one product for all of them, however many facts were edited one after another
                left = torch.cat([a for a, _ in factors], dim=1).to(total)
                right = torch.cat([b for _, b in factors], dim=0).to(total)
                total = total + left @ right
            for edit in edits:
                if not isinstance(edit, LowRankEdit):
                    total = total + edit.delta(layer).to(total)
            values.copy_(total)
            self._written[layer] = self._lm.values_hash(layer)
