"""The lens on an edit: what an update of weights answers to, and what it says, in words.

An update D of a layer's values V adds m D to what the FFN says to coefficients m. Its singular value decomposition

    D = sum over c of s_c a_c^T b_c

takes it apart: a_c, (d_ffn,), is the direction of coefficients that component c answers to, b_c, (d_model,), what it
then says. The left side is read by the neurons that a_c is nearest to (its largest entries; the keys of these are what
it answers to), the right side by the tokens that b_c promotes (`locate.lens.words.read_static`). Nothing else is needed
than the weights, so that an edit can be read that somebody else made.

Where the edit names its facts, what it writes at each one's prompt, m D with the coefficients of the unedited model, is
read too, and how high the object's first token stands in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corrigenda import CoefficientEdit, Edit, LanguageModel, LowRankEdit
from corrigenda.edits.added_neurons import AddedNeuronsEdit
from corrigenda.edits.attached import AttachedEdit
from corrigenda.edits.codebook import CodebookEdit
from corrigenda.edits.experts import ExpertsEdit
from corrigenda.edits.hopfield import HopfieldEdit
from corrigenda.edits.masked_memory import MaskedMemoryEdit
from corrigenda.edits.scoped import ScopedEdit
from corrigenda.edits.side_memory import SideMemoryEdit
from corrigenda.edits.weights import WeightEdit
from corrigenda.forward.recording import forward_to
from corrigenda.models.alone import one_thread
from corrigenda.models.bare import Place
from corrigenda.prompts import encode, encode_target, first_word
from corrigenda.settings.checked import AtLeastOne, ShareAboveZero, check_class, checked
from locate.lens.edit_results import Component, EditLensResult, FactReading, LayerReading, NearNeuron
from locate.lens.words import bottom, rank_of, read_static, token_texts, top, unembedding

Triggers = Callable[[int, int], Sequence[str]]
"""What triggers a neuron, from its layer and number: prefixes, the strongest first (of a table of triggers)."""


@dataclass(frozen=True)
@checked
class EditLens:
    """The settings of the lens on an edit.

    Attributes:
        components: the most components of a layer's update that are read.
        energy: so many of them that they hold this share of the update's squared norm, if that is fewer.
        neurons: how many of the nearest neurons are named.
        words: how many tokens are named where something is read.
        facts: at how many of the edit's facts what it writes there is read; None for all.
    """

    components: AtLeastOne = 8
    energy: ShareAboveZero = 0.99
    neurons: AtLeastOne = 5
    words: AtLeastOne = 8
    facts: AtLeastOne | None = 32

    @one_thread
    def read(self, lm: LanguageModel, edit: Edit, triggers: Triggers | None = None) -> EditLensResult:
        """Reads an edit.

        Args:
            lm: the model that it was made on, without it.
            edit: of a kind that changes values or coefficients: low-rank (of experts, too), whole-matrix, side-memory,
                codebook or coefficient edits.
            triggers: tells of a neuron what triggers it; None for no triggers.

        Raises:
            TypeError: it is no edit, or of a kind that changes none. What a fact's attached entries say are vectors of
                their own, beside the memories: `read_static` reads those.
            ValueError: it is applied to the model now.
            WrongModelError: it does not fit the model.
            UnsupportedModelError: the model's vectors cannot be read in words.
        """
        check_class("the lens on an edit", "edit", edit, Edit)
        edit._check(lm)
        if edit in lm.edits:
            raise ValueError(f"the {edit.kind} edit is applied to {lm.name} now; revert it before it is read")
        layers: list[LayerReading] = []
        rights: list[Tensor] = []
        parts = updates(lm, edit)
        for part in parts:
            layers.append(self._layer(lm, part, triggers))
            rows = [component.right for component in layers[-1].components]
            rights.append(torch.stack(rows) if rows else torch.zeros(0, part.right.shape[1]))
        return EditLensResult(
            model=lm.name,
            editor=edit.origin.editor,
            kind=edit.kind,
            vocabulary=len(unembedding(lm)),
            layers=tuple(layers),
            facts=tuple(self._written(lm, edit, parts, rights)),
        )

    def _layer(self, lm: LanguageModel, part: Update, triggers: Triggers | None) -> LayerReading:
        """One layer's update, taken apart."""
        memory = lm.memory_at(part.place)
        left, strengths, right = part.components(self.components)
        squares = strengths.double().square()
        total = part.norm**2
        shares = squares / total if total else squares
        kept = 1 + int((shares.cumsum(0) < self.energy).sum()) if len(shares) else 0
        found = []
        for number in range(min(kept, len(strengths))):
            weights = left[:, number]
            nearest = weights.abs().topk(min(self.neurons, len(weights))).indices.tolist()
            scores = read_static(lm, right[number])
            found.append(
                Component(
                    strength=float(strengths[number]),
                    share=float(shares[number]),
                    neurons=tuple(
                        NearNeuron(
                            neuron=neuron,
                            weight=float(weights[neuron]),
                            key=top(lm, read_static(lm, _key(memory, neuron)), self.words).texts,
                            value=top(lm, read_static(lm, memory.values[neuron]), self.words).texts,
                            triggers=() if triggers is None else tuple(triggers(part.layer, neuron)),
                        )
                        for neuron in nearest
                        if float(weights[neuron]) != 0
                    ),
                    promoted=top(lm, scores, self.words),
                    eliminated=bottom(lm, scores, self.words),
                    left=weights.clone(),
                    right=right[number].clone(),
                )
            )
        return LayerReading(
            layer=part.layer,
            memory=part.number,
            norm=part.norm,
            relative_norm=part.norm / float(memory.values.float().norm()),
            components=tuple(found),
        )

    def _written(
        self, lm: LanguageModel, edit: Edit, parts: Sequence[Update], rights: Sequence[Tensor]
    ) -> Iterator[FactReading]:
        """What the edit writes at its facts, and where their objects stand in it."""
        facts = edit.origin.facts if self.facts is None else edit.origin.facts[: self.facts]
        for fact in facts if parts else ():
            wanted = fact.target_new if fact.target_new is not None else fact.target_true
            assert wanted is not None
            prompt = lm.reads(fact.statement)
            target = encode_target(lm.tokenizer, prompt, wanted, fact.joint)
            token = target[first_word(lm.tokenizer, target)]
            weights, read_off = [], []
            for right in rights:
                scores = read_static(lm, right)
                # The sign of a component is that of the coefficients it meets, which the weights do not tell.
                both = torch.stack([rank_of(scores, token), rank_of(-scores, token)])
                weights.append(int(both.min()) if both.numel() else len(unembedding(lm)) - 1)
            coefficients = _coefficients(lm, encode(lm.tokenizer, prompt), [part.place for part in parts])
            words = []
            for part in parts:
                written = part.written(coefficients[part.place])
                position = int(written.norm(dim=-1).argmax())
                scores = read_static(lm, written[position])
                read_off.append(int(rank_of(scores, token)))
                words.append(top(lm, scores, self.words).texts)
            yield FactReading(
                id=fact.id,
                statement=fact.statement,
                object=wanted,
                token=token_texts(lm, [token])[0],
                weights_ranks=tuple(weights),
                written_ranks=tuple(read_off),
                written=tuple(words),
            )


@one_thread
def edit_lens(lm: LanguageModel, edit: Edit, triggers: Triggers | None = None, **settings: Any) -> EditLensResult:
    """Reads an edit: `EditLens(**settings).read(lm, edit, triggers)`."""
    return EditLens(**settings).read(lm, edit, triggers)


@dataclass(frozen=True, eq=False)
class Update:
    """What an edit adds to the values of one layer, as two factors.

    Attributes:
        layer: which layer.
        number: which side memory of the layer, or which expert; 0 for what has only one.
        left: A, (d_ffn, rank), or None for the identity.
        right: B, (rank, d_model), or the whole change (d_ffn, d_model) where there is no A.
        of_expert: whether `number` is that of an expert in a mixture.
        whatever: whether it writes the sum of B's rows whatever the coefficients are.
    """

    layer: int
    number: int
    left: Tensor | None
    right: Tensor
    of_expert: bool = False
    whatever: bool = False

    @property
    def place(self) -> Place:
        """The memory whose values are changed."""
        return (self.layer, self.number) if self.of_expert else self.layer

    @property
    def norm(self) -> float:
        """The Frobenius norm of the update."""
        if self.left is None:
            return float(self.right.norm())
        gram = (self.left.T @ self.left).double() @ (self.right @ self.right.T).double()
        return math.sqrt(max(float(gram.trace()), 0.0))

    def components(self, most: int) -> tuple[Tensor, Tensor, Tensor]:
        """The singular value decomposition, the largest values first: (d_ffn, k), (k,) and (k, d_model).

        Of factors the small matrix between their orthonormal bases is decomposed, never the whole one. A zero update
        has no component.
        """
        if self.left is None:
            left, strengths, right = torch.linalg.svd(self.right.double(), full_matrices=False)
        else:
            outer, inner = torch.linalg.qr(self.left.double())
            across, between = torch.linalg.qr(self.right.double().T)
            turned, strengths, back = torch.linalg.svd(inner @ between.T, full_matrices=False)
            left, right = outer @ turned, back @ across.T
        rounding = float(strengths[0]) * max(left.shape[0], right.shape[1]) * torch.finfo(torch.float32).eps
        k = min(most, int((strengths > rounding).sum()))
        return left[:, :k].float(), strengths[:k].float(), right[:k].float()

    def written(self, coefficients: Tensor) -> Tensor:
        """M D at some positions, (position, d_ffn) -> (position, d_model)."""
        if self.whatever:
            return self.right.sum(0).expand(len(coefficients), -1)
        return (coefficients if self.left is None else coefficients @ self.left) @ self.right


def updates(lm: LanguageModel, edit: Edit) -> list[Update]:
    """What an edit adds to the values, layer by layer, as if each of its parts were active.

    A scaled coefficient f m_i adds (f - 1) m_i v_i, one that a is added to a v_i. An entry of a codebook
    answers to its key, and puts its value in the place of the whole output: it is read as these two, the key at length
    one.

    Raises:
        TypeError: the edit is of a kind that changes neither values nor coefficients.
    """
    if isinstance(edit, LowRankEdit):
        return [Update(layer, 0, left, right) for layer, (left, right) in sorted(edit.factors.items())]
    if isinstance(edit, ExpertsEdit):
        return [Update(*place, left, right, of_expert=True) for place, (left, right) in sorted(edit.factors.items())]
    if isinstance(edit, WeightEdit):
        return [Update(layer, 0, None, edit.delta(layer)) for layer in sorted(edit.changed)]
    if isinstance(edit, MaskedMemoryEdit):
        masked = [edit.delta * mask[:, None] for mask in edit.masks]
        return [Update(edit.layer, number, None, delta) for number, delta in enumerate(masked)]
    if isinstance(edit, SideMemoryEdit):
        return [Update(edit.layer, number, None, delta) for number, delta in enumerate(edit.deltas)]
    if isinstance(edit, (CodebookEdit, HopfieldEdit)):
        keys = torch.nn.functional.normalize(edit.keys, dim=1)
        return [
            Update(edit.layer, number, key[:, None], value[None])
            for number, (key, value) in enumerate(zip(keys, edit.values, strict=True))
        ]
    if isinstance(edit, CoefficientEdit):
        # What is set or added does not depend on the coefficient; what a set one takes away does, and is not read.
        scales = edit.how == "scale"
        return [
            _driven(lm, layer, neurons, by - int(scales), whatever=not scales)
            for layer, (neurons, by) in sorted(edit.scales.items())
        ]
    if isinstance(edit, (AddedNeuronsEdit, AttachedEdit, ScopedEdit)):
        raise TypeError(
            f"a {edit.kind} edit writes nothing into the memories, it answers beside them; compile its list with "
            "how=memit (or another editor) to read what is written, or read an entry's value with read_static"
        )
    raise TypeError(
        f"a {edit.kind} edit changes neither values nor coefficients, so there is nothing in the weights to read"
    )


def _driven(lm: LanguageModel, layer: int, neurons: Tensor, by: Tensor, whatever: bool) -> Update:
    memory = lm.memory(layer)
    left = torch.nn.functional.one_hot(neurons, memory.d_ffn).T.float()
    return Update(layer, 0, left, by[:, None] * memory.values[neurons].float().cpu(), whatever=whatever)


def _key(memory: Any, neuron: int) -> Tensor:
    """What a neuron answers to: its row of the gate, where there is one, since that decides whether it is active."""
    matrix: Tensor = memory.keys if memory.gates is None else memory.gates
    return matrix[neuron]


@torch.no_grad()
def _coefficients(lm: LanguageModel, ids: Sequence[int], places: Sequence[Place]) -> dict[Place, Tensor]:
    """M at every position of a prompt but its first, (position, d_ffn), in float32 on the CPU; of an expert weighted.

    The first token's coefficients are unlike all others, and the same in all texts that begin with it. A prompt of one
    token has only these.
    """
    batch = lm.batch([ids])
    with ExitStack() as stack:
        seen = {place: stack.enter_context(lm.memory_at(place).capture()) for place in set(places)}
        forward_to(lm, batch, max(place if isinstance(place, int) else place[0] for place in places))
    first = min(1, len(ids) - 1)
    return {place: each.shares[0, first:].float().cpu() for place, each in seen.items()}
