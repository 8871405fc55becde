"""`RealUse`: how questions are asked in real use."""

from dataclasses import dataclass, field
from typing import Literal

from corrigenda.errors import SettingsError
from corrigenda.settings.checked import AtLeastOne, checked
from eval.judge.judge import Judge

Form = Literal["plain", "chat"]
"""A question as it stands, or as the chat template puts it to a model."""

Context = Literal["bare", "context", "told"]
"""A question alone, after a few other questions with their answers, or told how it is to be answered."""

FORMS: tuple[Form, ...] = ("plain", "chat")
CONTEXTS: tuple[Context, ...] = ("bare", "context", "told")
SETTINGS = tuple(f"{form}_{context}" for form in FORMS for context in CONTEXTS)
"""The names of the settings in which a question can be asked."""


@dataclass(frozen=True)
@checked
class RealUse:
    """How questions are asked in real use (the WILD framework of Yang et al. 2025; CrispEdit's two settings).

    Attributes:
        forms: as it stands ("plain"), through the tokenizer's chat template where it has one ("chat"), or both.
        contexts: any of: alone ("bare"), after a few other questions with their answers ("context"), and before "Answer
            in a few words." ("told").
        max_new_tokens: the longest answer, where the new object has room in it; it ends at the end token alone.
        judge: who marks the answers beside the match; by default nobody.
    """

    forms: tuple[Form, ...] = FORMS
    contexts: tuple[Context, ...] = CONTEXTS
    max_new_tokens: AtLeastOne = 50
    judge: Judge = field(default_factory=Judge)

    def __post_init__(self) -> None:
        for name in ("forms", "contexts"):
            given = getattr(self, name)
            if not given or len(set(given)) < len(given):
                raise SettingsError(f"RealUse: {name}={list(given)} must name at least one, and each once")
