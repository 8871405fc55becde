"""`HookedEdit`: edits that act on activations while the model runs."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from corrigenda.edits.edit import Edit, Editable
from corrigenda.errors import EditRefusedError


@dataclass(frozen=True, eq=False)
class HookedEdit(Edit):
    """An edit that acts on activations while the model runs and leaves the weights alone.

    A kind says what it does by `_hooks`; it acts as long as that is open, which the stack of applied edits sees to.
    """

    in_weights: ClassVar[bool] = False
    elsewhere: ClassVar[str] = (
        "it lies beside the weights, and llama.cpp has no layer that looks its input up in a memory; use it here "
        "(corrigenda ask, edit.apply), or edit the values"
    )

    @abstractmethod
    def _hooks(self, lm: Editable) -> AbstractContextManager[Any]:
        """What changes the model's forwards while it is open."""

    def decides(self, lm: Editable) -> bool:
        """Whether it decides on a prompt whether it acts, and holds to that in what follows."""
        return False


def require_range(kind: str, layer: int, made: Tensor) -> None:
    """Refuses what an edit makes of activations where float16 does not hold it (EditRefusedError)."""
    if made.dtype == torch.float16 and not bool(made.isfinite().all()):
        raise EditRefusedError(
            f"the {kind} edit makes numbers at layer {layer} that float16 does not hold (up to 65504); load the model "
            "in bfloat16 or float32"
        )
