"""`Neurons`: the settings by which the knowledge neurons of a fact are looked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from corrigenda import Fact, LanguageModel
from corrigenda.facts import as_fact
from corrigenda.models.alone import one_thread
from corrigenda.models.neurons import Neuron
from corrigenda.settings.checked import AtLeastOne, Count, ShareBelowOne, checked
from locate.neurons.attribution import Method, Rule
from locate.neurons.knowledge_neurons import attribute_all, select_layers
from locate.neurons.refine import NeuronsResult, refine
from locate.question import Answer


@dataclass(frozen=True)
@checked
class Neurons:
    """Finds the neurons that a fact's statement and its paraphrases share.

    Called like a function it gives their places alone, which is what the neuron editors ask for.

    Attributes:
        method: "integrated_gradients", "gradient" or "activation" (`locate.neurons.attribution`).
        steps: how many points stand for the integral.
        rule: where they lie, "midpoint" or "right".
        threshold: the coarse set's, as a share of the largest attribution.
        share: more than this share of the prompts must have a neuron.
        adaptive: whether to move the share until 2 to 5 neurons are left.
        layers: which layers; None for all.
        paraphrases: the most paraphrases that are asked beside the statement; None for all the fact has.
        answer: None for the fact's true object, "top" for what the model itself says, or any text.
        max_tokens: the most tokens that run at once.
    """

    result: ClassVar = NeuronsResult
    method: Method = "integrated_gradients"
    steps: AtLeastOne = 20
    rule: Rule = "midpoint"
    threshold: ShareBelowOne = 0.2
    share: ShareBelowOne = 0.7
    adaptive: bool = True
    layers: tuple[int, ...] | None = None
    paraphrases: Count | None = None
    answer: str | None = None
    max_tokens: AtLeastOne = 192

    def check(self, lm: LanguageModel) -> None:
        """Says whether the settings fit a model.

        Raises:
            ValueError: no layer is chosen.
            IndexError: the model has no such layer.
        """
        select_layers(lm, self.layers)

    @one_thread
    def find(self, lm: LanguageModel, fact: Fact, answer: str | None = None) -> NeuronsResult:
        """The neurons of one fact.

        Args:
            lm: the model.
            fact: its statement and its paraphrases are the prompts.
            answer: instead of the settings' own. Where it is what the model says ("top"), it is what it says to the
                statement, for all prompts.

        Raises:
            ValueError: as in `knowledge_neurons`.
        """
        as_fact("locating", fact)
        prompts: list[Fact | str] = [fact, *fact.paraphrases[: self.paraphrases]]
        return self.find_among(lm, prompts, answer or self.answer or fact.target_true, fact.joint)

    @one_thread
    def find_among(
        self, lm: LanguageModel, prompts: Sequence[Fact | str], answer: str | None, joint: str | None = None
    ) -> NeuronsResult:
        """The neurons that several prompts with the same answer share; `joint` as in `attribute_all`."""
        look = partial(
            attribute_all,
            lm,
            method=self.method,
            steps=self.steps,
            rule=self.rule,
            layers=self.layers,
            max_tokens=self.max_tokens,
            joint=joint,
        )
        results = []
        wanted: Answer = answer
        if answer == "top":
            results = look([(prompts[0], answer)])
            wanted = results[0].question.answer_ids  # its text may be another token elsewhere, or none
        results += look([(prompt, wanted) for prompt in prompts[len(results) :]])
        return refine(results, self.share, self.threshold, self.adaptive)

    def __call__(self, lm: LanguageModel, fact: Fact) -> tuple[Neuron, ...]:
        """The places of a fact's neurons: layer and number."""
        return self.find(lm, fact).neurons
