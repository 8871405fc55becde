"""What a side memory must not answer: unrelated prompts, run once up to its layer and kept on disk."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.data import read_facts
from corrigenda.data.embedded import unrelated_prompts
from corrigenda.errors import SettingsError
from corrigenda.forward.recording import forward_to
from corrigenda.models.chat import chat_tokens
from corrigenda.moments.text import Text
from corrigenda.prompts import encode
from corrigenda.settings.checked import AtLeastOne, Count, checked
from corrigenda.system.files import cache_folder, read_kept, write_checked

ROWS = 32
"""Prompts run at once."""

EVERY = 3
"""Which of the prompts that ship with the project are asked as a user's turn, too."""

EACH = 2
"""Locality and neighbourhood prompts of a fact that are used, at most."""

OTHER_SUBJECTS = "other_subjects"
"""The kind of the prompts of earlier facts about other subjects (`WiseSettings.other_subjects`)."""

NEAR = ("facts", OTHER_SUBJECTS)
"""The kinds that have the form of edits."""

Kinds = Mapping[str, Sequence[Tensor]]
"""Coefficients of unrelated prompts by their kind, each (its tokens, d_ffn)."""


@dataclass(frozen=True)
@checked
class Unrelated:
    """Which unrelated prompts an editor learns to leave alone.

    They are of several kinds, and an editor draws as many of each: what it never saw one of, it does not leave alone.

    Attributes:
        text: beginnings of its sequences.
        prompts: whether the prompts that ship with the project are among them (questions, statements that break off),
            and, for a model with a chat template, some of them as a user's turn.
        facts: a file of facts whose locality and neighbourhood prompts are among them, as with WISE's authors; not the
            facts that the edit is to be measured on.
        same_form: whether those facts' own prompts are, too: they have the form of the edits, about other subjects.
        schema: of that file.
        offset: how many of its facts to pass over.
        limit: how many of its facts to read.

    Raises:
        ValueError: `same_form` without `facts`.
    """

    text: Text = field(default_factory=Text)
    prompts: bool = True
    facts: str | None = None
    schema: str = "auto"
    offset: Count = 0
    limit: AtLeastOne | None = 200
    same_form: bool = False

    def __post_init__(self) -> None:
        if self.same_form and self.facts is None:
            raise SettingsError(
                "Unrelated: unrelated.same_form asks for the prompts of other facts: name a file, unrelated.facts"
            )

    def sequences(self, lm: LanguageModel) -> dict[str, list[list[int]]]:
        """The prompts' tokens by kind, those of more than one token; of each text a beginning of 8 or more tokens.

        Raises:
            ValueError: there is none.
        """
        draw = random.Random(self.text.seed)
        # Without the text that context edits may put before a prompt: the file on disk goes by the model alone.
        kinds = {
            "text": [ids[: draw.randint(min(8, len(ids)), len(ids))] for ids in self.text.sequences(lm)],
            **{kind: [encode(lm.tokenizer, prompt) for prompt in found] for kind, found in self._prompts().items()},
        }
        if self.prompts and lm.tokenizer.chat_template:
            turns = [("user", prompt) for prompt in unrelated_prompts()[::EVERY]]
            kinds["chat"] = [chat_tokens(lm.tokenizer, [turn]) or [] for turn in turns]
        longer = {kind: [ids for ids in found if len(ids) > 1] for kind, found in kinds.items()}
        if not any(longer.values()):
            raise ValueError("there is no unrelated prompt of two tokens or more: give longer texts, or prompts=true")
        return {kind: found for kind, found in longer.items() if found}

    def _prompts(self) -> dict[str, list[str]]:
        kinds = {"prompts": list(unrelated_prompts())} if self.prompts else {}
        if self.facts is None:
            return kinds
        facts = read_facts(self.facts, schema=self.schema, offset=self.offset, limit=self.limit, on_error="skip")
        locality = [[*(probe.prompt for probe in fact.locality), *fact.neighbourhood] for fact in facts]
        kinds["locality"] = [prompt for prompts in locality for prompt in prompts[:EACH]]
        if self.same_form:
            kinds["facts"] = [fact.statement for fact in facts]
        return kinds


def unrelated_coefficients(lm: LanguageModel, layer: int, unrelated: Unrelated) -> dict[str, list[Tensor]]:
    """Coefficients at a layer of the unedited model by kind, for each prompt (its tokens but the first, d_ffn).

    They are kept on disk.
    """
    kinds = unrelated.sequences(lm)
    sequences = [ids for found in kinds.values() for ids in found]
    name = hashlib.sha256(json.dumps([lm.cache_key, layer, sequences]).encode()).hexdigest()[:32]
    path = cache_folder() / "unrelated" / f"{name}.safetensors"
    known = read_kept(path, "it is computed again")
    if known is None:
        with lm.edits.suspended():
            coefficients = torch.cat(run_unrelated(lm, layer, sequences))
        write_checked(path, {"coefficients": coefficients}, {})
    else:
        coefficients = known[0]["coefficients"]
    each = iter(coefficients.split([len(ids) - 1 for ids in sequences]))
    return {kind: [next(each) for _ in found] for kind, found in kinds.items()}


def run_unrelated(lm: LanguageModel, layer: int, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
    """Coefficients at a layer for some prompts, each (its tokens but the first, d_ffn), on the CPU."""
    found: dict[int, Tensor] = {}
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    for begin in range(0, len(order), ROWS):
        group = order[begin : begin + ROWS]
        batch = lm.batch([sequences[i] for i in group])
        with lm.memory(layer).capture() as seen:
            forward_to(lm, batch, layer)
        for place, i in enumerate(group):
            found[i] = seen.coefficients[place, 1 : len(sequences[i])].float().cpu()
    return [found[i] for i in range(len(sequences))]


def draw_evenly(kinds: Kinds, draw: random.Random, number: int) -> list[Tensor]:
    """So many prompts, as many of each kind as there are; what is left over goes to kinds drawn at random."""
    left = {kind: draw.sample(range(len(found)), len(found)) for kind, found in kinds.items()}
    chosen: list[Tensor] = []
    while len(chosen) < number and any(left.values()):
        round_ = [kind for kind, places in left.items() if places]
        for kind in draw.sample(round_, min(len(round_), number - len(chosen))):
            chosen.append(kinds[kind][left[kind].pop()])
    return chosen
