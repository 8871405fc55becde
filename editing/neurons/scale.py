"""Scaling neurons: suppress and enhance what a fact's neurons contribute (Dai et al. 2022, section 4.3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from corrigenda import CoefficientEdit, Fact, LanguageModel
from corrigenda.edits.coefficients import ScaledAt
from corrigenda.settings.checked import checked
from editing.neurons.neuron_editor import FIND, NeuronEditor
from editing.registry import register
from editing.shared.together import deduplicate, note_disturbance


@dataclass(frozen=True)
@checked
class _ScaleNeurons(NeuronEditor):
    """Multiplies the coefficients of the facts' neurons.

    Attributes:
        factor: by what.
        positions: "all": at every position, which is our default; "predicting": only where the answer is predicted, as
            the paper does (`CoefficientEdit` says where that is).
    """

    factor: float = 1.0
    positions: ScaledAt = "all"

    @note_disturbance
    @deduplicate
    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> CoefficientEdit:
        """An edit of the neurons of all the facts; what the facts' new objects are does not matter.

        Raises:
            EditRefusedError: there is no fact, or one has no neurons.
            IndexError: the model has no such neuron.
        """
        found = self.neurons_of_all(lm, facts)
        factors = {place: self.factor for places in found for place in places}
        return CoefficientEdit.of(lm, self.origin(lm, facts, found), factors, self.positions)


@register(
    "suppress",
    paper="Dai et al. 2022, Knowledge Neurons in Pretrained Transformers",
    aim="asks whether some neurons hold a fact: without them",
    space="it acts on neurons that are named or found",
    unranked="puts no new object in the old one's place",
    choices=FIND,
)
@dataclass(frozen=True)
@checked
class Suppress(_ScaleNeurons):
    """Suppresses the facts' neurons: coefficients times 0."""

    name: ClassVar[str] = "suppress"

    factor: float = 0.0


@register(
    "enhance",
    paper="Dai et al. 2022, Knowledge Neurons in Pretrained Transformers",
    aim="asks whether some neurons hold a fact: with more of them",
    space="it acts on neurons that are named or found",
    unranked="puts no new object in the old one's place",
    choices=FIND,
)
@dataclass(frozen=True)
@checked
class Enhance(_ScaleNeurons):
    """Enhances the facts' neurons: coefficients times 2."""

    name: ClassVar[str] = "enhance"

    factor: float = 2.0
