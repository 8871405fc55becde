"""`TextEdit`: an edit that puts a text before prompts; `ContextEdit`: the same text before every one."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from corrigenda.edits.edit import Edit, Editable


@dataclass(frozen=True, eq=False)
class TextEdit(Edit):
    """Puts a text before prompts; no weight changes."""

    in_weights: ClassVar[bool] = False

    @abstractmethod
    def before(self, lm: Editable, prompt: str) -> str:
        """What stands before a prompt, the space between them included; "" for nothing."""


@dataclass(frozen=True, eq=False)
class ContextEdit(TextEdit):
    """Puts a text before every prompt; no weight changes. The baseline that every weight edit has to beat.

    Attributes:
        text: what stands before the prompt, its last space included.
    """

    text: str  # `LanguageModel.reads` puts it there
    kind: ClassVar[str] = "context"
    saved_settings: ClassVar[tuple[str, ...]] = ("text",)
    elsewhere: ClassVar[str] = (
        "it is a text before every prompt, which each request has to bring along there (corrigenda ask shows the edit)"
    )

    def before(self, lm: Editable, prompt: str) -> str:
        """The text, whatever the prompt."""
        return self.text

    def _summary(self) -> str:
        return f"the prompt is preceded by {self.text!r}"
