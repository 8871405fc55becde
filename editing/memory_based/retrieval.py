"""`Retrieve`: the statements of the facts that a prompt asks about stand before it.

Zheng et al. 2023, "Can We Edit Factual Knowledge by In-Context Learning?", put a fact before a prompt; which of many
facts, and before which prompts, is decided here as `scoped` decides it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar, Protocol, TypeVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from corrigenda import Edit, Fact, LanguageModel, Origin
from corrigenda.data.requests import history, left_out, select_active
from corrigenda.edits.encoders import STATES, encoder_named, text_encoder
from corrigenda.edits.gate import Gate
from corrigenda.edits.retrieval import RetrievalEdit
from corrigenda.indices.kinds import Kind
from corrigenda.models.alone import one_thread
from corrigenda.settings.checked import AtLeastOne, checked
from corrigenda.text.display import quoted
from editing.editor import EditRefusedError, refusing_long, require_targets
from editing.gate.kept import gate_of
from editing.gate.questions import held_out_questions
from editing.gate.training import Scores
from editing.registry import register
from editing.shared.entries import names_of
from editing.shared.extending import Extendable, check_previous, without
from editing.shared.statements import STATEMENT, stated
from editing.shared.together import deduplicate, refused_alone
from editing.spaces import Number, Space

E = TypeVar("E", bound=RetrievalEdit)

Cosine = Annotated[float, Ge(-1), Le(1)]

FALSE_HITS = 0.01
"""The share of prompts that ask something else about a subject which pass a threshold that nobody gave."""


class Retrieving(Protocol):
    """What the editors have in common whose edits are texts that are looked up."""

    @property
    def name(self) -> str:
        """What results call it."""
        ...

    @property
    def encoder(self) -> str:
        """The name of what makes vectors."""
        ...

    @property
    def gate(self) -> str | None:
        """The file of a gate; None for the model's own."""
        ...


@register(
    "retrieval",
    paper='Zheng et al. 2023, "Can We Edit Factual Knowledge by In-Context Learning?": a fact before the prompt; which '
    "of many, and before which prompts, is this project's",
    aim="beside the weights, for any model: what a prompt asks about is stated before it, and before others nothing",
    space=Space("none", (Number("threshold", 0.3, 0.95),)),
)
@dataclass(frozen=True)
@checked
class Retrieve(Extendable[RetrievalEdit]):
    """Statements, of which the nearest to a prompt stand before it.

    A fact's statement has the vector of its prompt as key. Which statements are near a prompt says `RetrievalEdit`. No
    weight changes, nothing is solved for, and prompts that no statement is near are the model's own, to the bit. A
    later fact about the same thing takes the place of the earlier one's statement.

    Attributes:
        template: what is written of a fact (`editing.shared.statements.stated`).
        k: so many statements stand before a prompt at most, the nearest last.
        encoder: what makes vectors of prompts: "states", the model's own behind its gate; "wordllama", mean vectors of
            tokens (``corrigenda[retrieval]``); else a model of sentence-transformers, by its name or folder.
        gate: for "states" a file that ``corrigenda gate`` wrote; None for the model's own
            (`editing.gate.kept.gate_of`). An edit that goes on from another keeps that one's.
        threshold: the cosine above which a statement is near; None for the gate's own, and for another encoder the one
            that a hundredth of the prompts which ask something else about a subject pass, of the relations that ship.
        by_subject: whether a prompt has to name a subject, in its words or by another of its names
            (`Fact.other_names`). If it does, statements about others are not near.
        index: how the nearest are found before a prompt that names none; "exact" looks at all.
    """

    name: ClassVar[str] = "retrieval"

    template: str = STATEMENT
    k: AtLeastOne = 1
    encoder: str = STATES
    gate: str | None = None
    threshold: Cosine | None = None
    by_subject: bool = True
    index: Kind = "exact"

    @one_thread
    @deduplicate
    @refused_alone
    def extend(self, lm: LanguageModel, previous: Edit | None, facts: Sequence[Fact]) -> RetrievalEdit:
        """The statements of an earlier edit and further ones; the earlier edit itself stays as it is.

        Raises:
            EditRefusedError: a fact asks for an erasure, or there is no fact; or `previous` is of another kind, editor,
                encoder or model.
            FactRefusedError: a fact's prompt is longer than the model reads, where its states are the vectors.
            ImportError: the encoder needs what is not installed.
            SettingsError: there is no such encoder.
        """

        def made(gate: Gate | None) -> RetrievalEdit:
            texts = tuple(stated(self.template, fact) for fact in facts)
            asked = self.threshold
            if asked is None:
                asked = threshold_of(self.encoder) if gate is None else gate.threshold
            return RetrievalEdit(
                Origin.of(lm, self, facts),
                texts,
                names_of(facts),
                keys_of(lm, self.encoder, gate, facts),
                asked,
                self.k,
                self.by_subject,
                self.encoder,
                gate,
                self.index,
            )

        return with_earlier(self, lm, previous, facts, made)


def with_earlier(
    editor: Retrieving,
    lm: LanguageModel,
    previous: Edit | None,
    facts: Sequence[Fact],
    made: Callable[[Gate | None], E],
) -> E:
    """The edit of some facts, with the texts of an earlier edit that they do not supersede before their own.

    `made` is their edit by a gate (None for other encoders) on the model without `previous`, which may be applied or
    not. Raises EditRefusedError: a fact asks for an erasure, there is no fact, or `previous` is of another kind,
    editor, encoder or model.
    """
    require_targets(editor.name, facts)
    own = check_previous(editor.name, lm, [], previous, RetrievalEdit, editor.name)
    if own is not None and own.encoder != editor.encoder:
        raise EditRefusedError(
            f"{editor.name}: the edit to go on from has the encoder {own.encoder!r}, this editor {editor.encoder!r}"
        )
    with without(lm, previous):
        edit = made(gate_named(editor, lm) if own is None else own.gate)
    if own is None:
        return dataclasses.replace(edit, origin=Origin.of(lm, editor, facts, [{} for _ in facts]))
    earlier, reports = own.origin.facts, own.origin.report
    refused = {number for number, report in enumerate(reports) if "refused" in report}
    notes = history([*earlier, *facts], refused)[len(earlier) :]
    tried = (fact for number, fact in enumerate(earlier) if number not in refused and not left_out(reports[number]))
    before = [*tried]  # some were superseded later; of the others the texts are, in this order
    now = {*select_active([*before, *facts]).active}
    kept = [place for place, number in enumerate(select_active(before).active) if number in now]
    return dataclasses.replace(
        edit,
        origin=Origin.of(lm, editor, [*earlier, *facts], [*reports, *notes]),
        texts=(*(own.texts[place] for place in kept), *edit.texts),
        names=(*(own.names[place] for place in kept), *edit.names),
        keys=torch.cat([own.keys[kept], edit.keys]),
    )


def keys_of(lm: LanguageModel, encoder: str, gate: Gate | None, facts: Sequence[Fact]) -> Tensor:
    """The vectors of the facts' prompts, (fact, width).

    Raises FactRefusedError: one is longer than the model reads, where its states are the vectors (there is a gate).
    """
    for fact in facts if gate is not None else ():
        with refusing_long(fact):
            lm.require_room(len(lm.tokens(fact.statement)), f"the prompt {quoted(fact.statement)}")
    return encoder_named(encoder, gate)(lm, [fact.statement for fact in facts])


@cache
def threshold_of(encoder: str) -> float:
    """The cosine above which two prompts ask the same, by an encoder that reads no model; found as that of a gate.

    Of the pairs of shipped questions that ask something else about the same subject a share `FALSE_HITS` lies above.
    """
    asked = held_out_questions()
    return Scores.of(text_encoder(encoder)([one.prompt for one in asked]), asked).threshold(FALSE_HITS)


def gate_named(editor: Retrieving, lm: LanguageModel) -> Gate | None:
    """The gate that an editor names, or the model's own; None where its encoder is not the model's states.

    Raises:
        UnsupportedModelError: the model is a masked one or an encoder-decoder.
        WrongModelError: the gate is another model's.
    """
    if editor.encoder != STATES:
        return None
    lm.architecture.require_decoder(f"{editor.name} with encoder={STATES}")
    gate = gate_of(lm) if editor.gate is None else Gate.load(editor.gate)
    gate.require(lm)
    return gate
