"""Erasing neurons: the values of those that the facts of a relation share (Dai et al. 2022, section 5.2)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from corrigenda import Fact, LanguageModel, LowRankEdit
from corrigenda.facts import as_facts
from corrigenda.models.alone import one_thread
from corrigenda.models.neurons import Neuron, in_common
from corrigenda.settings.checked import AtLeastOne, ShareBelowOne, checked
from editing.editor import EditRefusedError
from editing.neurons.neuron_editor import FIND, Find, NeuronEditor
from editing.registry import register
from editing.shared.together import deduplicate, note_disturbance


@register(
    "erase_neurons",
    paper="Dai et al. 2022, Knowledge Neurons in Pretrained Transformers",
    aim="makes a model forget the facts of a relation",
    space="it acts on neurons that are named or found",
    unranked="puts no new object in the old one's place",
    choices=FIND,
)
@dataclass(frozen=True)
@checked
class EraseNeurons(NeuronEditor):
    """Erases the values of the neurons that the facts of a relation share (Dai et al. 2022, section 5.2).

    An erased value is gone at every position, as in the paper: what holds for scaling coefficients
    (`CoefficientEdit.positions`) has no counterpart here.

    Facts of one `relation` are taken together; a fact that names none stands alone.

    Attributes:
        fill: what a value becomes: "zero", or the "mean" of its layer's values.
        share: neurons of more than this share of a relation's facts are erased. (The paper's rule is share=0, most=20.)
        most: at most so many of a relation, those that most facts have; None for all.
    """

    name: ClassVar[str] = "erase_neurons"

    fill: Literal["zero", "mean"] = "zero"
    share: ShareBelowOne = 0.7
    most: AtLeastOne | None = 20

    @note_disturbance
    @deduplicate
    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> LowRankEdit:
        """An update that replaces the values of the shared neurons.

        Raises:
            EditRefusedError: there is no fact, one has no neurons, or the facts of a relation share none.
            IndexError: the model has no such neuron.
        """
        found = self.neurons_of_all(lm, facts)
        relations: dict[tuple[str, str], list[tuple[Neuron, ...]]] = {}
        for fact, places in zip(facts, found, strict=True):
            group = ("relation", fact.relation) if fact.relation else ("fact", fact.id)
            relations.setdefault(group, []).append(places)
        shared = [self._shared(*group, neurons) for group, neurons in relations.items()]
        by_layer: dict[int, list[int]] = {}
        for layer, neuron in sorted({place for places in shared for place in places}):
            by_layer.setdefault(layer, []).append(neuron)
        factors = {}
        for layer, neurons in by_layer.items():
            values = lm.memory(layer).values.float()
            which = torch.tensor(neurons, device=values.device)
            fill = values.mean(0) if self.fill == "mean" else torch.zeros_like(values[0])
            left = nn.functional.one_hot(which, len(values)).T.float()
            factors[layer] = (left, fill - values[which])
        return LowRankEdit.of(lm, self.origin(lm, facts, found), factors)

    def _shared(self, kind: str, group: str, found: Sequence[Sequence[Neuron]]) -> tuple[Neuron, ...]:
        counts = Counter(place for places in found for place in places)
        kept = in_common(counts, len(found), self.share)
        if not kept:
            raise EditRefusedError(
                f"{self.name}: no neuron is in more than {self.share:.0%} of the {len(found)} facts of {kind} "
                f"{group!r}; the most frequent is in {max(counts.values())}"
            )
        return kept[: self.most]


@one_thread
def erase_relation(lm: LanguageModel, facts: Sequence[Fact], find: Find, **settings: Any) -> LowRankEdit:
    """Erases a relation from a model: `EraseNeurons` over facts that all name the same one.

    Args:
        lm: the model.
        facts: facts of the relation.
        find: what finds the neurons of a fact.
        settings: of `EraseNeurons`.

    Raises:
        ValueError: the facts name no relation, or several.
        EditRefusedError: as `EraseNeurons.edit`.
    """
    relations = {fact.relation for fact in as_facts("erase_relation", facts)}
    if len(relations) != 1 or None in relations:
        named = ", ".join(sorted(str(relation) for relation in relations)) or "no facts"
        raise ValueError(f"one relation can be erased at a time, and every fact has to name it; got {named}")
    return EraseNeurons(find=find, **settings).edit(lm, facts)
