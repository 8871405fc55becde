"""`Ike`: a new fact behind demonstrations of what a model should make of one.

Zheng et al. 2023, "Can We Edit Factual Knowledge by In-Context Learning?", section 4, with the settings of the authors'
program: 32 demonstrations, the nearest last, and the fact itself after them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from corrigenda import Edit, Fact, LanguageModel, Origin
from corrigenda.edits.encoders import STATES, text_encoder
from corrigenda.edits.gate import Gate
from corrigenda.edits.retrieval import RetrievalEdit
from corrigenda.errors import SettingsError
from corrigenda.indices.index import nearest
from corrigenda.models.alone import one_thread
from corrigenda.settings.checked import Count, Seed, checked
from corrigenda.text.joints import joined
from editing.editor import refusing_long
from editing.gate.training import kept_states
from editing.memory_based.retrieval import keys_of, with_earlier
from editing.registry import register
from editing.shared.entries import names_of
from editing.shared.extending import Extendable
from editing.shared.together import deduplicate, refused_alone
from editing.shared.training_facts import TrainingFacts, require_unseen

ALL_NEAR = -1.0
"""The threshold at which a text stands before every prompt."""


@register(
    "ike",
    paper='Zheng et al. 2023, "Can We Edit Factual Knowledge by In-Context Learning?"',
    aim="beside the weights: the new fact before every prompt, behind demonstrations of when to follow one",
    space="its numbers are the authors', and what is to be chosen is the file of demonstrations",
    unranked="its demonstrations are a file of facts that no table names",
)
@dataclass(frozen=True)
@checked
class Ike(Extendable[RetrievalEdit]):
    """Demonstrations, then the new fact, then the question.

    Of the training facts d the nearest to a new fact are taken, by the cosine of vectors, and each becomes a
    demonstration of one kind, drawn at random in the published numbers:

        copy      New Fact: d's statement and new object    Prompt: the same
        update    New Fact: d's statement and new object    Prompt: a paraphrase, and the new object
        retain    New Fact: d's statement and new object    Prompt: something else, and the answer it has

    The farthest comes first and the nearest last. The new fact follows as a copy of its own, and then once more, with
    the question in the place of its prompt. This text stands before *every* prompt, as in the paper, which edits one
    fact at a time. Of several it is that of the fact whose prompt is nearest to the question, of those whose subject it
    names, or of all where it names none.

    Attributes:
        demonstrations: the training facts. None of them may have the id or the subject of a fact that is edited. Those
            with a paraphrase, and with a neighbourhood prompt and an old object or a locality probe, are used.
        copies, updates, retained: so many demonstrations of each kind.
        form: of a demonstration: ``{fact}`` and ``{prompt}``, which comes last, are filled in.
        encoder: what makes vectors, as in `Retrieve`. Of demonstrations it reads statements with their new objects;
            "states", which tell questions apart, reads them without.
        gate: as in `Retrieve`.
        seed: for the kinds of the demonstrations, and for what of a fact is shown.

    Raises:
        SettingsError: a setting cannot be.
    """

    name: ClassVar[str] = "ike"

    demonstrations: TrainingFacts = field(default_factory=TrainingFacts)
    copies: Count = 4
    updates: Count = 12
    retained: Count = 16
    form: str = "New Fact: {fact}\nPrompt: {prompt}"
    encoder: str = STATES
    gate: str | None = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        if not self.form.endswith("{prompt}") or self.form.count("{prompt}") != 1:
            raise SettingsError(f"Ike: form={self.form!r} must end in {{prompt}}, where the question goes")

    @one_thread
    @deduplicate
    @refused_alone
    def extend(self, lm: LanguageModel, previous: Edit | None, facts: Sequence[Fact]) -> RetrievalEdit:
        """The texts of an earlier edit and further ones; the earlier edit itself stays as it is.

        Raises:
            EditRefusedError: a fact asks for an erasure, or there is no fact; or `previous` is of another kind, editor,
                encoder or model.
            FactRefusedError: a fact, or its subject, is among the demonstrations; or its text is longer than the model
                reads.
            ImportError: the encoder needs what is not installed.
            SettingsError: no demonstrations are named, or too few can be used.
        """

        def made(gate: Gate | None) -> RetrievalEdit:
            require_unseen(self.name, self._training, facts)
            texts = self._texts(lm, gate, facts)
            for text, fact in zip(texts, facts, strict=True):
                with refusing_long(fact):
                    length = len(lm.tokens(text + fact.statement))
                    lm.require_room(length, f"the prompt behind {self._number} demonstrations")
            keys, origin = keys_of(lm, self.encoder, gate, facts), Origin.of(lm, self, facts)
            return RetrievalEdit(origin, texts, names_of(facts), keys, ALL_NEAR, 1, False, self.encoder, gate)

        return with_earlier(self, lm, previous, facts, made)

    @property
    def _number(self) -> int:
        return self.copies + self.updates + self.retained

    @cached_property
    def _training(self) -> Sequence[Fact]:
        return self.demonstrations.read(self.name, "demonstrations") if self._number else ()

    @cached_property
    def _usable(self) -> list[Fact]:
        found = [one for one in self._training if one.target_new is not None and one.paraphrases and _retained(one)]
        if len(found) < self._number:
            raise SettingsError(
                f"{self.name}: {len(found)} of the {len(self._training)} facts in {self.demonstrations.path} can be "
                f"demonstrations (a paraphrase; a neighbourhood prompt and an old object, or a locality probe), and "
                f"{self._number} are wanted; name more, or fewer copies, updates and retained"
            )
        return found

    @cached_property
    def _claims(self) -> Tensor:
        return text_encoder(self.encoder)([fact.claim for fact in self._usable])

    def _texts(self, lm: LanguageModel, gate: Gate | None, facts: Sequence[Fact]) -> tuple[str, ...]:
        """What stands before a question, for each fact."""
        if not self._number:
            return tuple(self._text(fact, ()) for fact in facts)
        if gate is None:
            shown, queries = self._claims, text_encoder(self.encoder)([fact.claim for fact in facts])
        else:
            with lm.edits.suspended():
                shown = gate.embed(kept_states(lm, gate.layers, [lm.tokens(fact.statement) for fact in self._usable]))
                queries = keys_of(lm, self.encoder, gate, facts)
        found = nearest(queries, shown, self._number)
        return tuple(
            self._text(fact, [self._usable[number] for number in chosen])
            for fact, chosen in zip(facts, found.numbers.tolist(), strict=True)
        )

    def _text(self, fact: Fact, shown: Sequence[Fact]) -> str:
        """The demonstrations, the nearest of which is given first and stands last, and the fact."""
        draw = random.Random(f"{self.seed} {fact.id}")
        kinds = ["copy"] * self.copies + ["update"] * self.updates + ["retain"] * self.retained
        draw.shuffle(kinds)
        found = [self._demonstration(one, kind, draw) for one, kind in zip(shown, kinds, strict=True)]
        found = [*reversed(found), self._filled(fact, fact.claim)]
        return "".join(f"{one}\n\n" for one in found) + self._filled(fact, "")

    def _demonstration(self, shown: Fact, kind: str, draw: random.Random) -> str:
        if kind == "copy":
            return self._filled(shown, shown.claim)
        if kind == "update":
            return self._filled(shown, joined(draw.choice(shown.paraphrases), str(shown.target_new), shown.joint))
        return self._filled(shown, draw.choice(_retained(shown)))

    def _filled(self, fact: Fact, prompt: str) -> str:
        return self.form.removesuffix("{prompt}").replace("{fact}", fact.claim) + prompt


def _retained(fact: Fact) -> list[str]:
    """Prompts that an edit of a fact leaves alone, with their answers."""
    if fact.neighbourhood and fact.target_true is not None:
        return [joined(prompt, fact.target_true, fact.joint) for prompt in fact.neighbourhood]
    return [joined(probe.prompt, probe.answer) for probe in fact.locality]
