"""`Scoped`: a value for each fact beside a late layer, behind a gate that knows its question.

No paper has it as it is. What an entry adds is solved for as ROME's and MEMIT's targets are (Meng et al. 2022, eq. 4;
2023, eq. 16), at the prompt's last token and over other forms of the question; that it speaks only where a prompt asks
its question goes back to SERAC (Mitchell et al. 2022) and GRACE (Hartvigsen et al. 2023).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Le
from torch import Tensor

from corrigenda import Edit, Fact, LanguageModel, Origin
from corrigenda.edits.gate import Gate
from corrigenda.edits.scoped import ScopedEdit
from corrigenda.errors import SettingsError
from corrigenda.models.alone import one_thread
from corrigenda.models.chat import closing_tokens, turn_tokens
from corrigenda.moments.text import Text
from corrigenda.settings.checked import AtLeastOne, Seed, checked
from corrigenda.system.workers import Workers
from corrigenda.text.words import Names
from editing.editor import FactRefusedError, require_targets
from editing.gate.kept import gate_of
from editing.locate_then_edit.guards import MOST_NAMED
from editing.locate_then_edit.keys import group_weights
from editing.locate_then_edit.passes import SubjectRows
from editing.locate_then_edit.solved import Batch, Solving, batches_of
from editing.locate_then_edit.targets import ValueSettings
from editing.locate_then_edit.writing import task_of
from editing.registry import register
from editing.shared.contexts import contexts, require_prefixes
from editing.shared.entries import EntriesState, names_of, reports_after
from editing.shared.extending import Extendable, check_previous, state_of, without
from editing.shared.frames import Frames
from editing.shared.layers import OneLayer
from editing.shared.together import together
from editing.shared.training_rows import groups_of
from editing.spaces import CLAMP, Number, Space

Cosine = Annotated[float, Ge(-1), Le(1)]


class ScopedState(EntriesState):
    """What `Scoped` goes on from, besides the entries."""

    kind: ClassVar[str] = "scoped"


@register(
    "scoped",
    aim="beside the weights: a fact holds however it is asked, and what asks something else stays bit for bit",
    space=Space("one", (Number("threshold", 0.3, 0.95, after_targets=True), CLAMP)),
)
@dataclass(frozen=True)
@checked
class Scoped(OneLayer, Extendable[ScopedEdit]):
    """Entries that speak where a prompt names their subject and asks their question.

    A fact's value v is what, added to the residual stream after one layer at the prompt's last token, makes the model
    say the new object:

        v = argmin of  mean over contexts of  -log P(new object | context, h + v)  + decay,    |v| at most a bound

    over the fact's prompt behind several texts. Its key is what the gate makes of its prompt (`Gate.embed`). When it
    speaks says `ScopedEdit`. So late in the model a solve costs little. Other questions are kept out by the gate and
    not by v, whose bound (`value.clamp_norm_factor`) is wide: v then decides what is said, whatever the form of the
    question.

    Facts are solved for by themselves, and no entry changes another: an edit of many facts is that of each, but a name
    inside a longer one of another fact is not heard there (`corrigenda.text.words.Names`). A later fact about the same
    thing takes the place of the earlier one's entry. No weight changes, so that there is nothing to export.

    Attributes:
        layer: the layer; None for 0.75 of the depth. Not the last.
        gate: a file that ``corrigenda gate`` wrote; None for the model's own (`editing.gate.kept.gate_of`). An edit
            that goes on from another keeps that one's.
        threshold: the cosine above which a prompt asks the question, of all entries of an edit; None for the gate's
            own, or that of the edit that is extended. Lower lets more paraphrases through, and more of what asks
            something else about the subject.
        by_subject: whether a prompt has to name the subject, in its words or by another of its names
            (`Fact.other_names`).
        prefix_lengths: pairs (tokens, number) of texts before the prompt (`editing.shared.contexts`).
        prefixes: texts to use instead; the first should be "" (the bare prompt).
        frames: other forms of the facts: v is solved over them, too, and each is a key of the entry beside its prompt;
            but not that of a conversation (`frames.chat`), in which a question has the key that it has bare.
        value: how v is solved for. It is not done when its loss is low, but when the new object has been the most
            likely answer for `confident_steps` steps: it then carries further. Nothing is to be kept on another prompt
            (`kl_factor`): the gate keeps it.
        keep_targets: whether what is solved for is kept on disk and taken from there.
        workers: the processes in which it is.
        text: where the texts before prompts come from.
        batch_size: facts that are solved for side by side.
        seed: for the choice of texts.
        name: what results call it.

    Raises:
        SettingsError: a setting cannot be.
    """

    depth: ClassVar[float] = 0.75

    layer: int | None = None
    gate: str | None = None
    threshold: Cosine | None = None
    by_subject: bool = True
    prefix_lengths: tuple[tuple[AtLeastOne, AtLeastOne], ...] = ((10, 2),)
    prefixes: tuple[str, ...] | None = None
    frames: Frames = field(default_factory=Frames)
    value: ValueSettings = field(
        default_factory=lambda: ValueSettings(steps=30, kl_factor=0.0, early_stop_loss=-1.0, confident_steps=6)
    )
    keep_targets: bool = True
    workers: Workers = field(default_factory=Workers)
    text: Text = field(default_factory=Text)
    batch_size: AtLeastOne = 8
    seed: Seed = 0
    name: str = "scoped"

    def __post_init__(self) -> None:
        require_prefixes(self, self.prefixes)
        if self.value.kl_factor not in (0, ValueSettings().kl_factor):  # the default is not told from none given
            raise SettingsError(
                f"{self.name}: value.kl_factor={self.value.kl_factor} weighs what is to stay on value.kl_prompt, and "
                "the gate keeps other prompts as they are; take 0"
            )

    @one_thread
    def prepare(self, lm: LanguageModel) -> None:
        """Chooses the texts before prompts, and finds the gate.

        Raises:
            IndexError: the model has no such layer.
            SettingsError: the layer is the last, or lies below one that the gate reads.
            UnsupportedModelError: the layer is a mixture of experts.
        """
        self._require(lm)
        self._prefixes(lm)
        self._gate(lm)

    @together
    def extend(self, lm: LanguageModel, previous: Edit | None, facts: Sequence[Fact]) -> ScopedEdit:
        """The entries of an earlier edit and further ones; the earlier edit itself stays as it is.

        Raises:
            EditRefusedError: a fact asks for an erasure, or no fact is left; or `previous` is of another kind, model or
                layer, or has no state.
            FactRefusedError: a prompt does not name its subject as whole words.
            IndexError: the model has no such layer.
            SettingsError: the layer is the last, or lies below one that the gate reads.
            UnsupportedModelError: the layer is a mixture of experts.
        """
        require_targets(self.name, facts)
        layer = self._require(lm)
        own = check_previous(self.name, lm, [layer], previous, ScopedEdit)
        if own is not None:
            state_of(self.name, own, ScopedState)
        self._require_words(facts)
        with without(lm, previous):
            batches = self._batches(lm, facts)
            targets, report = self._solving(lm, "").targets(lm, batches, [layer])
            task = task_of(self.name, lm, batches, targets, report)
            _, outputs = task.rows.measured(lm, layer, layer, "block", self._weights(lm))
            edit = self.attach(lm, task.facts, task.targets[layer] - outputs, own)
        origin = Origin.of(lm, self, *reports_after(own, facts, report))
        return dataclasses.replace(edit, origin=origin)

    @one_thread
    def keys_and_residuals(self, lm: LanguageModel, facts: Sequence[Fact]) -> dict[int, tuple[Tensor, Tensor]]:
        """The coefficients at the prompts' last tokens, (fact, d_ffn), and the values, (fact, d_model); by the layer.

        For a knowledge base, as `ClosedForm.keys_and_residuals`.
        """
        require_targets(self.name, facts)
        self._require_words(facts)
        layer, batches = self._require(lm), self._batches(lm, facts)
        targets, _ = self._solving(lm, None).targets(lm, batches, [layer])
        rows = SubjectRows(lm, [batch.prompts for batch in batches])
        keys, outputs = rows.measured(lm, layer, layer, "block", self._weights(lm))
        return {layer: (keys, targets[layer] - outputs)}

    def resolved_layer(self, lm: LanguageModel) -> int:
        """As every editor of one layer; by default at most the last but one."""
        found = super().resolved_layer(lm)
        return min(found, max(lm.n_layers - 2, 0)) if self.layer is None else found

    def resolved_layers(self, lm: LanguageModel) -> tuple[int, ...]:
        """The one layer, as `ClosedForm.resolved_layers` says several."""
        return (self.resolved_layer(lm),)

    @one_thread
    def attach(self, lm: LanguageModel, facts: Sequence[Fact], values: Tensor, own: ScopedEdit | None) -> ScopedEdit:
        """Entries of facts whose values are solved for, beside those of an earlier edit that they do not supersede.

        Args:
            lm: the model, without that edit.
            facts: the facts; the edit's origin has no others.
            values: (fact, d_model).
            own: the earlier edit, with its state.
        """
        layer, gate = self.resolved_layer(lm), self._gate(lm) if own is None else own.gate
        keys, entries = self._keys(lm, gate, facts)
        state, kept = ScopedState(()), list[int]()
        names = names_of(facts)
        if own is not None:
            state = state_of(self.name, own, ScopedState)
            kept = state.kept(facts)
            of_kept = torch.isin(own.entries, torch.tensor(kept))
            numbers = torch.searchsorted(torch.tensor(kept), own.entries[of_kept])
            keys, entries = torch.cat([own.keys[of_kept], keys]), torch.cat([numbers, entries + len(kept)])
            values = torch.cat([own.values[kept], values])
            names = (*(own.names[number] for number in kept), *names)
        threshold = (gate if own is None else own).threshold if self.threshold is None else self.threshold
        state = state.followed(kept, facts)
        edit = ScopedEdit(
            Origin.of(lm, self, facts),
            layer,
            lm.memory(layer).path,
            gate,
            keys,
            entries,
            values,
            names,
            threshold,
            self.by_subject,
            closing_tokens(lm.tokenizer),
            turn_tokens(lm.tokenizer),
            state=state,
        )
        if self.by_subject:
            _warn_of_rivals(self.name, edit, state.facts, len(kept))
        return edit

    def _require(self, lm: LanguageModel) -> int:
        """The layer, where it can be used in a model."""
        lm.architecture.require_decoder(self.name)
        layer = self.resolved_layer(lm)
        if layer == lm.n_layers - 1:
            raise SettingsError(
                f"{self.name}: layer {layer} is the last of {lm.name}, and nothing later reads what is added there at "
                "the prompt; name one below it"
            )
        _ = lm.memory(layer).d_ffn  # what applies such an edit, and an entry of a base, take one memory, and no mixture
        return layer

    def _require_words(self, facts: Sequence[Fact]) -> None:
        """Refuses a fact whose own prompt would not be let through."""
        for fact in facts if self.by_subject else ():
            if not Names([[fact.subject]]).asked(fact.statement):
                raise FactRefusedError(
                    fact,
                    f"the subject {fact.subject!r} is no whole words of its prompt, from the last sentence that names "
                    "anything, and an entry speaks where it is; write it out there, or take by_subject=false",
                )

    def _gate(self, lm: LanguageModel) -> Gate:
        gate, layer = gate_of(lm) if self.gate is None else Gate.load(self.gate), self.resolved_layer(lm)
        gate.require(lm)
        if max(gate.layers) > layer:
            raise SettingsError(
                f"{self.name}: the gate reads layer {max(gate.layers)}, and values are added after layer {layer}, "
                "before it is known whether they are to be; name a later layer, or train a gate of earlier ones"
            )
        return gate

    def _batches(self, lm: LanguageModel, facts: Sequence[Fact]) -> list[Batch]:
        layers = [self.resolved_layer(lm)]
        prefixes = self._prefixes(lm)
        return batches_of(self.name, lm, facts, self.batch_size, prefixes, self.value, layers, self.frames, "last")

    def _solving(self, lm: LanguageModel, told: str | None) -> Solving:
        prefixes, keep = self._prefixes(lm), self.keep_targets
        return Solving(prefixes, self.value, "block", keep, self.workers, self.frames, told, "last")

    def _prefixes(self, lm: LanguageModel) -> list[str]:
        return contexts(lm, self.prefix_lengths, self.text, self.seed, self.prefixes)

    def _weights(self, lm: LanguageModel) -> Tensor:
        """How much each context counts in a mean over them: as much as any other."""
        return group_weights([1] * (len(self._prefixes(lm)) + self.frames.most))

    def _keys(self, lm: LanguageModel, gate: Gate, facts: Sequence[Fact]) -> tuple[Tensor, Tensor]:
        """The keys, (key, width), and whose each is, (key,)."""
        asked = [
            (number, lm.tokens(form.replace("{}", fact.subject)))
            for number, fact in enumerate(facts)
            for form in (fact.prompt, *self.frames.of(fact))
        ]
        keys = torch.empty(len(asked), gate.width)
        for group in groups_of([len(ids) for _, ids in asked]) if asked else ():
            keys[group] = gate.of_prompts(lm, lm.batch([asked[i][1] for i in group])).cpu()
        return keys, torch.tensor([number for number, _ in asked], dtype=torch.long)


def _warn_of_rivals(editor: str, edit: ScopedEdit, facts: Sequence[Fact], n_earlier: int) -> None:
    """Names entries about one subject that the gate takes for one question, and that say different things.

    The first `n_earlier` have been looked at before.
    """
    names, found = Names(edit.names), list[str]()
    for number in range(n_earlier, len(facts)):
        for other in names.within(facts[number].statement):
            if other >= number or facts[other].target_new == facts[number].target_new:
                continue
            own, others = (edit.keys[edit.entries == one] for one in (number, other))
            if (cosine := float((own @ others.T).max())) > edit.threshold:
                found.append(f"{facts[other].claim!r} and {facts[number].claim!r} ({cosine:.2f})")
    if found:
        more = f", and {len(found) - MOST_NAMED} more pairs" if len(found) > MOST_NAMED else ""
        warnings.warn(
            f"{editor}: the gate takes entries about one subject for the same question (cosine above "
            f"{edit.threshold:.3g}), and they say different things: {', '.join(found[:MOST_NAMED])}{more}; asked in "
            "other words, either is said. Take one out, or name their relation, so that the later takes the place of "
            "the earlier",
            stacklevel=3,
        )
