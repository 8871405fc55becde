"""The control that tells what any change of a size does to a model: an update in random directions."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from corrigenda import Fact, LanguageModel, LowRankEdit
from corrigenda.models.alone import one_thread
from corrigenda.settings.checked import Seed, checked
from editing.editor import Editor, EditRefusedError, prepare
from editing.locate_then_edit.rome import Rome
from editing.registry import register
from editing.shared.layers import named_layers
from editing.shared.together import deduplicate, note_disturbance


@register(
    "random",
    aim="control: what any change of another editor's size does",
    space="it is a control",
    choices={"like": "/editor: rome"},
)
@dataclass(frozen=True)
@checked
class RandomUpdate:
    """An update in random directions, with the layers, rank and norm of another editor's.

    What it does to a model is what any change of that size does.

    Attributes:
        like: the editor whose update gives the size.
        seed: for the directions.
    """

    name: ClassVar[str] = "random"

    like: Editor = field(default_factory=Rome)
    seed: Seed = 0

    @property
    def layers(self) -> tuple[int, ...]:
        """The other editor's."""
        return named_layers(self.like)

    @one_thread
    def prepare(self, lm: LanguageModel) -> None:
        """Prepares the other editor."""
        prepare(self.like, lm)

    @note_disturbance
    @deduplicate
    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> LowRankEdit:
        """The random update.

        Raises:
            EditRefusedError: the other editor refuses, or its edit is not a low-rank one.
        """
        model = self.like.edit(lm, facts)
        if not isinstance(model, LowRankEdit):
            raise EditRefusedError(f"{self.like.name} gives a {model.kind} edit, which has no norm to match")
        # Every fact has directions of its own, and always the same ones.
        key = json.dumps([self.seed, *(fact.id for fact in facts)])
        generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big"))
        factors = {}
        for layer, pair in model.factors.items():
            left, right = (torch.randn(part.shape, generator=generator) for part in pair)
            factors[layer] = (left, right * (model.norm(layer) / float((left @ right).norm())))
        # The other editor as it tells of itself: its fields may be functions, which no file holds.
        settings = {"like": {"editor": model.origin.editor, **model.origin.settings}, "seed": self.seed}
        origin = dataclasses.replace(model.origin, editor=self.name, settings=settings)
        return LowRankEdit.of(lm, origin, factors)
