"""The edits that are applied to one model, and the untouched weights under them."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

import torch
import xxhash
from torch import Tensor

from corrigenda.edits.context import TextEdit
from corrigenda.edits.edit import Edit, Editable, beside
from corrigenda.edits.hooked import HookedEdit
from corrigenda.edits.low_rank import LowRankEdit
from corrigenda.edits.routed import decide_on_prompts
from corrigenda.edits.weights import WeightEdit
from corrigenda.errors import EditRefusedError, WrongModelError
from corrigenda.models.bare import Place
from corrigenda.models.sites import next_hook, remove_hooks
from corrigenda.system.files import bytes_of

MOST_LOST = 0.5
"""Of an edit's change (its Frobenius norm) so much may be lost in rounding to the weights' precision, unsaid."""


@dataclass
class Opened:
    """What an applied edit that acts through hooks holds open.

    `first` is the number of the first hook that it may have put on the model, `end` the one after its last; None until
    all are there.
    """

    hooks: AbstractContextManager[Any]
    first: int
    end: int | None = None
    whole: bool = False


class AppliedEdits(Sequence[Edit]):
    """The edits that are applied to one model, in order, and the untouched weights under them.

    Whatever is interrupted, the list of edits is changed in one assignment, and says what the model is to be. What the
    model is follows from it and from the untouched weights, which are kept until everything is written back: so it can
    be brought about again and again (`settle`).
    """

    def __init__(self, lm: Editable) -> None:
        self._lm = lm
        self._edits: list[Edit] = []
        self.untouched: dict[Place, Tensor] = {}
        """The value matrices, (d_ffn, d_model), of what weight edits touch, as they were before any."""
        self._written: dict[Place, str] = {}
        """The hashes of the value matrices as they were written last, of the layers in `untouched`."""
        self._unsure: set[Place] = set()
        """Where values were written since the list was last known to be what the model is."""
        self._open: dict[HookedEdit, Opened] = {}

    def __len__(self) -> int:
        return len(self._edits)

    def __getitem__(self, index: Any) -> Any:
        return self._edits[index]

    def __contains__(self, edit: object) -> bool:
        return any(applied is edit for applied in self._edits)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}  # hooks are opened anew on a copy (`copied`)

    def before(self, prompt: str) -> str:
        """The text that edits put before a prompt."""
        return "".join(edit.before(self._lm, prompt) for edit in self._edits if isinstance(edit, TextEdit))

    def content_hash(self) -> str:
        """A hash of what the applied edits make of the model; of no edits, of nothing.

        Of weight edits it is of the values as they are now, whatever made them so.
        """
        self.settle()
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

    # -- changes of the list

    def push(self, edit: Edit) -> None:
        """Applies an edit; use `Edit.apply`, which checks the model first."""
        if edit in self:
            raise ValueError("this edit is applied already")
        self._change([*self._edits, edit], edit)

    def remove(self, edit: Edit) -> None:
        """Takes an edit out; use `Edit.revert`."""
        if edit not in self:
            raise ValueError("this edit is not applied to this model")
        self._change([applied for applied in self._edits if applied is not edit])

    @contextmanager
    def suspended(self, edit: Edit | None = None) -> Iterator[None]:
        """The unedited model, or the one without one edit, inside a ``with`` block; then all is as it was."""
        with self._lm.alone:
            before = list(self._edits)

            def bring_back() -> None:
                self._change([*before, *(new for new in self._edits if not any(new is edit for edit in before))])

            try:
                self._change([applied for applied in before if edit is not None and applied is not edit])
                yield
                bring_back()
            except BaseException as error:
                with beside(error):
                    bring_back()
                raise

    def _change(self, edits: list[Edit], added: Edit | None = None) -> None:
        """Makes the model what other edits make of it, with one added or not; after an error it is what it was."""
        with self._lm.alone:
            if not self._unsure:
                self._settled()
            before = self._edits
            others = [edit for edit in (*before, *edits) if isinstance(edit, WeightEdit)]
            others = [edit for edit in others if (edit in before) != (edit in edits)]
            places: list[Place] = list(dict.fromkeys(place for edit in others for place in edit.changed))
            for place in places:
                if place in self._written and place not in self._unsure and self._changed_by_hand(place):
                    warnings.warn(
                        f"the values of layer {place} of {self._lm.name} were changed by hand while edits were "
                        "applied; that change is lost now",
                        stacklevel=4,
                    )
            try:
                self._edits = edits
                self._bring_about(places, added)
            except BaseException as error:
                self._edits = before
                with beside(error):
                    self.settle()
                raise
            self._settled()

    # -- the model, as the list says it

    def settle(self) -> None:
        """Finishes what an interruption left half done, if there is something: the model is then what the list says."""
        with self._lm.alone:
            self._bring_about(())
            self._settled()

    def _bring_about(self, places: Collection[Place], added: Edit | None = None) -> None:
        """Writes the values of some places, and of those that are not sure, and opens and closes hooks."""
        # Computed before anything is written: most of what can fail, fails here.
        new = {place: self._made_of(place) for place in (*places, *(self._unsure - {*places}))}
        with torch.no_grad():
            for place, values in new.items():
                if values is not None and isinstance(added, WeightEdit):
                    self._say_what_is_lost(added, place, values)
            for place, values in new.items():
                if values is not None:
                    self._unsure.add(place)
                    self._lm.memory_at(place).values.copy_(values)
                    self._written[place] = self._lm.values_hash(place)
        self._open_and_close()

    def _settled(self) -> None:
        """Forgets what is not needed any more, now that the model is what the list says."""
        self._unsure.clear()
        touched = {place for edit in self._edits if isinstance(edit, WeightEdit) for place in edit.changed}
        for place in [place for place in self.untouched if place not in touched]:
            self._written.pop(place, None)
            del self.untouched[place]

    @torch.no_grad()
    def _made_of(self, place: Place) -> Tensor | None:
        """What the edits make of the values of a place, in the model's precision; None where they are untouched.

        Always summed afresh, in the order of application and in float32, or in the model's precision where that is
        finer: floating-point addition cannot be taken back by subtraction, and so the same edits give the same bits
        however they came and went.

        Raises:
            EditRefusedError: it is not finite.
        """
        edits = [edit for edit in self._edits if isinstance(edit, WeightEdit) and place in edit.changed]
        if not edits:
            return self.untouched.get(place)
        values = self._lm.memory_at(place).values
        if place not in self.untouched:
            self.untouched[place] = values.clone()
        clean = self.untouched[place].to(values.device)  # the model may have been moved since
        total = clean.to(torch.promote_types(clean.dtype, torch.float32))
        factors = [edit.factors[place] for edit in edits if isinstance(edit, LowRankEdit) and isinstance(place, int)]
        if factors:  # one product for all of them, however many facts were edited one after another
            left = torch.cat([a for a, _ in factors], dim=1).to(total)
            right = torch.cat([b for _, b in factors], dim=0).to(total)
            total = total + left @ right
        for edit in edits:
            if not isinstance(edit, LowRankEdit):
                total = total + edit.delta(place).to(total)
        new = total.to(clean.dtype)
        if not bool(new.isfinite().all()) and bool(clean.isfinite().all()):
            kept = str(new.dtype).removeprefix("torch.")
            raise EditRefusedError(
                f"layer {place} of {self._lm.name}: with {'this edit' if len(edits) == 1 else 'these edits'} "
                f"{int((~new.isfinite()).sum())} of {new.numel()} values are not finite in {kept}, which holds numbers "
                f"up to {torch.finfo(new.dtype).max:.3g} (the largest is {float(total.abs().max()):.3g})"
            )
        return new

    def _say_what_is_lost(self, edit: WeightEdit, place: Place, values: Tensor) -> None:
        """Says where an edit's change is lost in rounding, for the most part, before its new values are written.

        A change below the rounding of float32, in which edits are computed, asks for nothing: so a later round of
        facts that are answered.
        """
        if place not in edit.changed or place in self._unsure:
            return
        asked = edit.delta(place).to(values.device)
        made = values.to(asked.dtype) - self._lm.memory_at(place).values.to(asked.dtype)
        size, lost = float(asked.norm()), float((made - asked).norm())
        if lost > MOST_LOST * size and size > torch.finfo(torch.float32).eps * float(values.norm()):
            kept = str(values.dtype).removeprefix("torch.")
            warnings.warn(
                f"layer {place} of {self._lm.name}: {min(lost / size, 1):.0%} of the edit's change (|delta V| "
                f"{size:.3g}) is lost in rounding to {kept}; load the model in a finer precision",
                stacklevel=6,
            )

    def _open_and_close(self) -> None:
        """Closes the hooks of edits that are gone, and opens those of others, in their order."""
        wanted = [edit for edit in self._edits if isinstance(edit, HookedEdit)]
        for edit, opened in reversed([*self._open.items()]):
            if edit not in wanted or not opened.whole:
                self._close(edit)
        kept = 0
        for edit, other in zip(self._open, wanted, strict=False):
            if edit is not other:
                break
            kept += 1
        for edit in reversed([*self._open][kept:]):  # what comes before it has to be opened again first
            self._close(edit)
        for edit in wanted[kept:]:
            _forget_compiled()
            # It is known here before anything is on the model.
            opened = self._open[edit] = Opened(edit._hooks(self._lm), next_hook())
            opened.hooks.__enter__()
            opened.end = next_hook()
            opened.whole = True
        decide_on_prompts(self._lm, any(edit.decides(self._lm) for edit in self._open))
        _say_what_is_not_saved(self._lm, [edit.kind for edit in self._edits if not edit.in_weights])

    def _close(self, edit: HookedEdit) -> None:
        _forget_compiled()
        opened = self._open[edit]
        if opened.whole:
            opened.whole = False
            opened.hooks.__exit__(None, None, None)
        remove_hooks(self._lm.model, opened.first, opened.end)  # where closing, or opening, was interrupted
        del self._open[edit]

    # -- values changed by hand

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
        self.settle()
        return [layer for layer in layers if self._changed_by_hand(layer)]

    def _changed_by_hand(self, layer: Place) -> bool:
        if self._lm.memory_at(layer).weight.is_meta:
            return False  # nothing can be written there, and who tries is told so
        expected = self._written.get(layer) or self._lm.loaded_hashes.get(layer)
        return expected is not None and self._lm.values_hash(layer) != expected

    # -- copies

    def copied(self, lm: Editable, edits: AppliedEdits) -> None:
        """Makes a copy of another stack on a copy of its model; its hooks are opened there."""
        self._lm = lm
        for opened in edits._open.values():
            remove_hooks(lm.model, opened.first, opened.end)
        self._edits = list(edits)
        self.settle()


def _say_what_is_not_saved(lm: Editable, kinds: Sequence[str]) -> None:
    """Has the model's own `save_pretrained` warn while edits of some kinds are applied that it does not write."""
    own = lm.model.__dict__.get("save_pretrained")
    before = own.__func__.before if isinstance(getattr(own, "__func__", None), _Saving) else own
    if kinds:
        lm.model.save_pretrained = MethodType(_Saving(tuple(kinds), before), lm.model)
    elif before is not None:
        lm.model.save_pretrained = before
    else:
        lm.model.__dict__.pop("save_pretrained", None)


@dataclass(frozen=True, eq=False)
class _Saving:
    """`save_pretrained` of a model that edits of some kinds are applied to which lie beside its weights.

    `before` is what was put in the place of its class's `save_pretrained`, if anything.
    """

    kinds: tuple[str, ...]
    before: Any

    def __call__(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """As the class's own."""
        warnings.warn(
            f"edits of kind {', '.join(self.kinds)} are applied that are not in the weights: model.save_pretrained "
            "writes the model without them; save them as edits (edit.save)",
            stacklevel=2,
        )
        return (partial(type(model).save_pretrained, model) if self.before is None else self.before)(*args, **kwargs)


def _forget_compiled() -> None:
    """Has compiled code compiled anew: it does not see by itself that hooks came or went."""
    if "torch._dynamo" in sys.modules:  # else nothing was compiled, and to load it takes seconds
        torch.compiler.reset()
