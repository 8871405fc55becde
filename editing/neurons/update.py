"""Updating neurons: a fact's new object in place of the old one, in their values (Dai et al. 2022, section 5.1)."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel, LowRankEdit
from corrigenda.forward import answering
from corrigenda.prompts import encode, encode_target
from corrigenda.settings.checked import checked
from editing.editor import FactRefusedError, refusing_long
from editing.neurons.neuron_editor import FIND, NeuronEditor
from editing.registry import register
from editing.shared.directions import raising
from editing.shared.together import together


@register(
    "update_neurons",
    paper="Dai et al. 2022, Knowledge Neurons in Pretrained Transformers",
    aim="writes the new object into a few neurons",
    space="it acts on neurons that are named or found",
    choices=FIND,
)
@dataclass(frozen=True)
@checked
class UpdateNeurons(NeuronEditor):
    """Writes the new object over the old one in the values of a fact's neurons (Dai et al. 2022, section 5.1).

        v_i <- v_i + sign(m_i) |v_i| (write e(new) - unwrite e(old))

    e(token) is the token's unembedding row brought to the space of the values: the direction, of length one, that
    raises its logit most where the prompt ends; that is the row, taken back through the model's final norm. The token
    is the object's first. The sign is that of the neuron's coefficient there: of a plain FFN's it is nearly always
    positive, and the formula is the paper's; in a gated FFN it may be either, and a value with a negative coefficient
    has to be pushed the other way.

    A fact without an old object (insert) or a new one (erase) has only the other of the two terms.

    Attributes:
        unwrite: lambda_1, how much of the old object is taken away, relative to the value's norm.
        write: lambda_2, how much of the new one is added. (The paper's two are 1 and 8, of embeddings as they are; of
            directions of length one, 8 wrecks the model; on PARAREL's facts 1 leaves more other answers as they
            are than 2, and their intervals of success overlap: docs/neurons.md.)

    A change of values acts wherever their neurons are active, at every position: what holds for scaling coefficients
    (`CoefficientEdit.positions`) has no counterpart here.
    """

    name: ClassVar[str] = "update_neurons"

    unwrite: float = 1.0
    write: float = 1.0

    @together
    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> LowRankEdit:
        """An update of rank one for each fact in each layer that has neurons of it.

        Raises:
            EditRefusedError: there is no fact.
            FactRefusedError: a fact has no neurons, is longer than the model reads, or its statement has several masks.
            IndexError: the model has no such neuron.
        """
        found = self.neurons_of_all(lm, facts)
        columns: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for fact, places in zip(facts, found, strict=True):
            with refusing_long(fact):
                coefficients, directions = _read(lm, fact, sorted({layer for layer, _ in places}))
            change = -self.unwrite * directions[0] + self.write * directions[1]
            for layer, m in coefficients.items():
                values = lm.memory(layer).values.float()
                which = torch.tensor([neuron for where, neuron in places if where == layer], device=values.device)
                left = torch.zeros(len(values), 1, device=values.device)
                left[which, 0] = m[which].sign() * values[which].norm(dim=1)
                columns.setdefault(layer, []).append((left, change[None]))
        factors = {
            layer: (torch.cat([left for left, _ in pairs], dim=1), torch.cat([right for _, right in pairs]))
            for layer, pairs in columns.items()
        }
        return LowRankEdit.of(lm, self.origin(lm, facts, found), factors)


def _read(lm: LanguageModel, fact: Fact, layers: Sequence[int]) -> tuple[dict[int, Tensor], tuple[Tensor, Tensor]]:
    """What a fact's prompt shows where it is answered.

    For each layer the coefficients, (d_ffn,), in float32; and e of the old and of the new object, each (d_model,) (zero
    where there is no such object).
    """
    try:
        prompt = answering.with_mask(lm, lm.reads(fact.statement))
    except ValueError as error:
        raise FactRefusedError(fact, f"update_neurons: it cannot be asked: {error}") from error
    ids = encode(lm.tokenizer, prompt)
    at = answering.position(lm, ids)
    batch = lm.batch([ids])
    place = torch.tensor([at], device=batch.lengths.device)
    before = answering.before_answer(lm, prompt)
    tokens = [
        None if target is None else torch.tensor(encode_target(lm.tokenizer, before, target, fact.joint)[:1])
        for target in (fact.target_true, fact.target_new)
    ]
    with ExitStack() as stack:
        seen = {layer: stack.enter_context(lm.memory(layer).capture(place)) for layer in layers}
        found = raising(lm, batch, place, [token for token in tokens if token is not None])
    none = torch.zeros(lm.memory(0).d_model, device=place.device)
    directions = [none if token is None else found.pop(0)[0] for token in tokens]
    return {layer: seen[layer].coefficients[0].detach().float() for layer in layers}, (directions[0], directions[1])
