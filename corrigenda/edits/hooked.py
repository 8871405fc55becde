"""`HookedEdit`: edits that act on activations while the model runs."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

from corrigenda.edits.edit import Edit, Editable


@dataclass(frozen=True, eq=False)
class HookedEdit(Edit):
    """An edit that acts on activations while the model runs and leaves the weights alone.

    A kind says what it does by `_hooks`; it acts as long as that is open, which the stack of applied edits sees to.
    """

    in_weights: ClassVar[bool] = False

    @abstractmethod
    def _hooks(self, lm: Editable) -> AbstractContextManager[Any]:
        """What changes the model's forwards while it is open."""

    def decides(self, lm: Editable) -> bool:
        """Whether it decides on a prompt whether it acts, and holds to that in what follows."""
        return False
