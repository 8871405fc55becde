"""What a part of a fact's page is, and what it is asked about."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corrigenda import Fact, LanguageModel
from corrigenda.prompts import encode_target
from jobs.explain.grids import Grid
from jobs.explain.settings import ExplainSettings


@dataclass(frozen=True)
class PageContext:
    """A fact that a model is asked about, as it is without or with the edit (`edited`).

    With it, `before` is what the same part found without; empty where it could find nothing.
    """

    lm: LanguageModel
    fact: Fact
    settings: ExplainSettings
    edited: bool
    before: tuple[Any, ...] = ()

    @property
    def answer(self) -> str:
        """The answer that is traced: without the edit the old object, with it the new one; "top" if there is none."""
        return (self.fact.target_new if self.edited else self.fact.target_true) or "top"

    @property
    def tokens(self) -> tuple[int, ...]:
        """The first tokens of the new and of the old object, of those that there are; each once."""
        prompt = self.lm.reads(self.fact.statement)
        objects = (self.fact.target_new, self.fact.target_true)
        encoded = (
            encode_target(self.lm.tokenizer, prompt, each, self.fact.joint) for each in objects if each is not None
        )
        return tuple(dict.fromkeys(ids[0] for ids in encoded))


@dataclass(frozen=True)
class PagePart:
    """A part of the page: its heading, what is seen, what finds results of `locate`, and what shows them."""

    title: str
    about: str
    find: Callable[[PageContext], tuple[Any, ...]]
    grids: Callable[[PageContext, tuple[Any, ...]], list[Grid]]
