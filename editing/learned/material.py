"""What a network that learns to edit is trained on: facts' gradients, and prompts on which their edits are judged."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.errors import ContextLengthError
from corrigenda.prompts import encode, encode_target
from corrigenda.system.progress import track
from editing.editor import FactRefusedError, require_targets
from editing.learned.side_rows import TextRow, UpperLayers
from editing.locate_then_edit.answers import AnswerTokens, answer_tokens
from editing.shared.training_rows import target_rows

PIECE = 32
"""So many facts are run forward and back before the next."""

Text = tuple[list[int], int]
"""Tokens, and how many of them are the prompt."""


class GradientEditor(Protocol):
    """What the gradients of facts are taken for (`editing.learned.learned.Learned`)."""

    name: ClassVar[str]
    whole: ClassVar[bool]

    @property
    def end_token(self) -> bool:
        """Whether the end token is a part of the target."""
        ...

    def resolved_layers(self, lm: LanguageModel) -> tuple[int, ...]:
        """The layers."""
        ...


@dataclass(frozen=True, eq=False)
class Material:
    """Of each fact its gradients, and the rows on which its edit is judged.

    Attributes:
        facts: those that can be trained on.
        seen: their tokens.
        asked: of each fact the rows that shall have its new object: paraphrases, or where there are none its prompt.
        kept: of each fact the rows that shall stay as they are: prompts about other subjects, and unrelated ones.
        upper: runs rows.
    """

    facts: tuple[Fact, ...]
    seen: AnswerTokens
    asked: tuple[tuple[TextRow, ...], ...]
    kept: tuple[tuple[TextRow, ...], ...]
    upper: UpperLayers

    @classmethod
    def of(
        cls, lm: LanguageModel, editor: GradientEditor, facts: Sequence[Fact], most_kept: int, seed: int
    ) -> Material:
        """Runs the facts' texts on an unedited model.

        A fact that no edit is computed on (it is too long, say), or that has no prompt that shall stay, is left out; of
        the others at most `most_kept` such prompts each are drawn. Raises EditRefusedError: a fact asks for an erasure,
        or its gradient is not finite; ValueError: no fact is left.
        """
        require_targets(editor.name, facts)
        layers = editor.resolved_layers(lm)
        draw = random.Random(seed)
        good: list[Fact] = []
        asked: list[list[Text]] = []
        kept: list[list[Text]] = []
        parts: list[AnswerTokens] = []
        pieces = [facts[begin : begin + PIECE] for begin in range(0, len(facts), PIECE)]
        for piece in track(pieces, f"Taking the gradients of {len(facts)} facts"):
            texts = {fact.id: side for fact in piece if (side := _texts(lm, editor, fact, most_kept, draw)) is not None}
            usable = [fact for fact in piece if fact.id in texts]
            seen, usable = _gradients(lm, editor, usable, layers)
            if seen is None:
                continue
            parts.append(seen)
            good += usable
            asked += [texts[fact.id][0] for fact in usable]
            kept += [texts[fact.id][1] for fact in usable]
        require_some(editor.name, good, facts)
        upper = UpperLayers(lm, layers[0])
        rows = iter(upper.read([text for side in (*asked, *kept) for text in side]))
        asked_rows, kept_rows = (tuple(tuple(next(rows) for _ in one) for one in side) for side in (asked, kept))
        return cls(tuple(good), _joined(parts), asked_rows, kept_rows, upper)

    def tokens(self, facts: Sequence[int]) -> AnswerTokens:
        """The tokens of some facts, numbered anew."""
        bounds = torch.searchsorted(self.seen.fact, torch.arange(len(self.facts) + 1)).tolist()
        places = torch.cat([torch.arange(bounds[number], bounds[number + 1]) for number in facts])
        owner = torch.tensor([n for n, number in enumerate(facts) for _ in range(bounds[number], bounds[number + 1])])
        keys, outputs, gradients = (
            {layer: part[places] for layer, part in parts.items()}
            for parts in (self.seen.keys, self.seen.outputs, self.seen.gradients)
        )
        return AnswerTokens(owner, keys, outputs, gradients, self.seen.losses[list(facts)])


def require_some(editor: str, good: Sequence[Fact], facts: Sequence[Fact]) -> None:
    """Says how many of some facts an editor cannot be trained on. Raises ValueError: none is left."""
    if not good:
        raise ValueError(
            f"{editor}: none of the {len(facts)} facts can be trained on: each needs prompts that shall stay as they "
            "are, neighbourhood or locality ones (data.other_subjects=5 takes other subjects of the data)"
        )
    if len(good) < len(facts):
        warnings.warn(
            f"{editor}: {len(facts) - len(good)} of {len(facts)} facts are left out of the training: they are too "
            "long, or have no prompt that shall stay as it is",
            stacklevel=3,
        )


def asked_prompts(fact: Fact) -> Sequence[str]:
    """The prompts that shall have a fact's new object: paraphrases, or where there are none its own."""
    return fact.paraphrases or (fact.statement,)


def kept_prompts(fact: Fact, most: int, draw: random.Random) -> list[tuple[str, str]]:
    """So many at most of the prompts that shall stay, drawn, each with the answer that it has ("" if none is known)."""
    answered = [(probe.prompt, probe.answer) for probe in fact.locality]
    others = [(prompt, fact.target_true or "") for prompt in fact.neighbourhood]
    whole = [*others, *answered]
    return draw.sample(whole, min(most, len(whole)))


def _texts(
    lm: LanguageModel, editor: GradientEditor, fact: Fact, most_kept: int, draw: random.Random
) -> tuple[list[Text], list[Text]] | None:
    """The texts on which a fact's edit is judged; None where it cannot be."""
    try:
        asked = [target_rows(lm, fact, prompt, editor.end_token) for prompt in asked_prompts(fact)]
    except FactRefusedError:
        return None
    kept = [text for pair in kept_prompts(fact, most_kept, draw) if (text := kept_text(lm, *pair))]
    return (asked, kept) if kept else None


def kept_text(lm: LanguageModel, prompt: str, answer: str) -> Text | None:
    """A prompt that shall stay and its answer; None where the model does not read so much."""
    prompt = lm.reads(prompt)
    ids = encode(lm.tokenizer, prompt)
    try:
        whole = [*ids, *(encode_target(lm.tokenizer, prompt, answer) if answer.strip() else ())]
        lm.require_room(len(whole), "a prompt that shall stay")
    except ContextLengthError:
        return None
    return whole, len(ids)


def _gradients(
    lm: LanguageModel, editor: GradientEditor, facts: list[Fact], layers: Sequence[int]
) -> tuple[AnswerTokens | None, list[Fact]]:
    """The tokens of facts without those that are refused by name; and these facts."""
    while facts:
        try:
            return answer_tokens(lm, facts, layers, editor.end_token, editor.whole), facts
        except FactRefusedError as refusal:
            facts = [fact for fact in facts if fact is not refusal.fact]
    return None, []


def _joined(parts: Sequence[AnswerTokens]) -> AnswerTokens:
    before, owners = 0, list[Tensor]()
    for part in parts:
        owners.append(part.fact + before)
        before += len(part.losses)

    def side(found: Iterable[dict[int, Tensor]]) -> dict[int, Tensor]:
        whole = list(found)
        return {layer: torch.cat([one[layer] for one in whole]) for layer in whole[0]}

    return AnswerTokens(
        torch.cat(owners),
        side(part.keys for part in parts),
        side(part.outputs for part in parts),
        side(part.gradients for part in parts),
        torch.cat([part.losses for part in parts]),
    )
