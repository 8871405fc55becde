"""SERAC: a memory of statements, a classifier of what is in their scope, and a model that answers from them.

Mitchell, Lin, Bosselut, Manning and Finn 2022, "Memory-Based Model Editing at Scale".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import xxhash

from corrigenda import Edit, Fact, LanguageModel, Origin
from corrigenda.edits.counterfactual import CounterfactualEdit
from corrigenda.edits.encoders import STATES, encoder_named
from corrigenda.edits.gate import Gate
from corrigenda.errors import WrongModelError
from corrigenda.models.alone import one_thread
from corrigenda.seeded import seeded
from corrigenda.settings.checked import AtLeastOne, Share, checked
from corrigenda.system.files import bytes_of
from editing.editor import refusing_long, require_targets
from editing.learned.counterfactual import CounterfactualNetwork, CounterfactualTask
from editing.learned.hypernetwork import TrainedNetwork
from editing.learned.trained import Trained
from editing.learned.training import HypernetworkTraining
from editing.memory_based.retrieval import gate_named, keys_of, threshold_of, with_earlier
from editing.registry import register
from editing.shared.entries import names_of
from editing.shared.extending import Extendable
from editing.shared.statements import stated
from editing.shared.together import deduplicate, refused_alone
from editing.shared.training_facts import require_unseen
from editing.spaces import Number, Space

EDITS_IN_STEP = 8
"""In a step of training there are so many edits, of one fact each."""

NEAREST_COSINE = 0.999
"""The classifier begins no narrower than this."""


@register(
    "serac",
    paper='Mitchell et al. 2022b, "Memory-Based Model Editing at Scale"',
    aim="beside the weights: what a trained classifier takes for a fact's is answered by a model that reads the fact",
    space=Space("none", (Number("threshold", 0.1, 0.9),)),
)
@dataclass(frozen=True)
@checked
class Serac(Trained, Extendable[CounterfactualEdit]):
    """A memory of statements, with a scope classifier and a counterfactual model that are trained together.

        s_j = exp(-|z S - z_j S|^2)                        z, z_j: vectors of the prompt and of fact j's own
        the largest s_j > threshold:  p_cf(. | statement j, prompt);  else the model as it is, to the bit
        trained on  0.1 * (-log((1 - s) p_base + s p_cf)) at paraphrases  +  KL(p_base || the mixture) at other prompts

    Departures from the paper:

    - The classifier is a matrix S on the vectors of a frozen encoder, those of `retrieval`, in place of a distilBERT
      that is trained whole. It begins where the threshold of `retrieval` lies.
    - The counterfactual model is the edited model itself, with a LoRA in the values of its last layers, in place of a
      small model of its own.
    - The classifier compares prompts; theirs is given the new object of an edit, too.
    - Both are trained together, by the mixture; in the paper apart, by labels of what is in scope. Each fact is a
      memory of its own there.

    Attributes:
        number: how many layers have a LoRA by default.
        rank: of the LoRA.
        template: what is written of a fact (`editing.shared.statements.stated`), up to the prompt. Where a prompt has
            this form's text in it, the LoRA reads it.
        encoder: as in `Retrieve`.
        gate: as in `Retrieve`.
        threshold: of s, above which a prompt is in a fact's scope.
    """

    name: ClassVar[str] = "serac"

    number: AtLeastOne = 8
    rank: AtLeastOne = 8
    template: str = "New Fact: {statement} {target}\nPrompt: "
    encoder: str = STATES
    gate: str | None = None
    threshold: Share = 0.5

    @one_thread
    @deduplicate
    @refused_alone
    def extend(self, lm: LanguageModel, previous: Edit | None, facts: Sequence[Fact]) -> CounterfactualEdit:
        """The statements of an earlier edit and further ones; the earlier edit itself stays as it is.

        Nothing is solved for. Classifier and LoRA are those of the network as it is now.

        Raises:
            EditRefusedError: a fact asks for an erasure; there is no fact, or no trained network; or `previous` is of
                another kind, editor, encoder or model.
            FactRefusedError: the network was trained on a fact, or on its subject; or it is longer than the model
                reads.
            ImportError: the encoder needs what is not installed.
            IndexError: the model has no such layer.
            SettingsError: there is no such encoder.
            UnsupportedModelError: as `check` says.
            WrongModelError: the network is another model's, encoder's, gate's, template's or other layers'.
        """
        self.check(lm)

        def made(gate: Gate | None) -> CounterfactualEdit:
            trained = self.trained(lm)
            require_unseen(self.name, () if trained is None else trained.facts, facts)
            texts = tuple(stated(self.template, fact) for fact in facts)
            for text, fact in zip(texts, facts, strict=True):
                with refusing_long(fact):
                    lm.require_room(len(lm.tokens(text + fact.statement)), "the prompt behind its statement")
            keys = keys_of(lm, self.encoder, gate, facts)
            network = self._begin(lm, gate, keys.shape[1], 0) if trained is None else trained.network
            if (network.shape["encoder"], network.shape["gate"]) != (self.encoder, _said(gate)):
                raise WrongModelError(
                    f"{self.name}: the network was trained with encoder={network.shape['encoder']} and another gate "
                    f"than that of encoder={self.encoder} now: train one (corrigenda train editor={self.name} data=...)"
                )
            if network.shape["template"] not in ("", self.template):
                raise WrongModelError(
                    f"{self.name}: the network was trained to read template={network.shape['template']!r}, and is "
                    f"asked to read {self.template!r}: give that, or train one for this (corrigenda train "
                    f"editor={self.name} data=...)"
                )
            return CounterfactualEdit(
                *(Origin.of(lm, self, facts), texts, names_of(facts), keys, self.threshold, 1, False),
                encoder=self.encoder,
                gate=gate,
                scope=network.scope,
                layers=network.layers,
                modules=tuple(lm.memory(layer).path for layer in network.layers),
                left=network.left,
                right=network.right,
            )

        return with_earlier(self, lm, previous, facts, made)

    @one_thread
    def trained(self, lm: LanguageModel) -> TrainedNetwork[CounterfactualNetwork] | None:
        """As `Trained` says."""
        return self._loaded(lm, CounterfactualNetwork)

    @one_thread
    def task(self, lm: LanguageModel, facts: Sequence[Fact], asked: HypernetworkTraining) -> CounterfactualTask:
        """Statements, and prompts that are in their scope or not."""
        require_targets(self.name, facts)
        gate = gate_named(self, lm)
        embed = partial(encoder_named(self.encoder, gate), lm)
        begin = partial(self._begin, lm, gate, embed(["a"]).shape[1], asked.seed)
        said = [self.end_token, list(self.resolved_layers(lm)), self.rank, self.template, self.encoder, _said(gate)]
        return CounterfactualTask.of(
            *(lm, self.name, facts, partial(stated, self.template), embed, begin),
            key=said,
            per_step=asked.edits or EDITS_IN_STEP,
            end_token=self.end_token,
            most_kept=asked.most_kept,
            seed=asked.seed,
        )

    def _begin(self, lm: LanguageModel, gate: Gate | None, width: int, seed: int) -> CounterfactualNetwork:
        layers = self.resolved_layers(lm)
        memory = lm.memory(layers[0])
        sizes = (width, memory.d_ffn, memory.d_model, self.rank, self.template)
        with seeded(seed):
            network = CounterfactualNetwork(layers, self.encoder, _said(gate), *sizes)
        cosine = threshold_of(self.encoder) if gate is None else gate.threshold
        apart = 2 * (1 - min(cosine, NEAREST_COSINE))  # |z - z_j|^2 at this cosine, where s shall be a half
        with torch.no_grad():
            network.log_scale.fill_(0.5 * math.log(math.log(2) / apart))
        return network.to(memory.values.device)


def _said(gate: Gate | None) -> str:
    """What tells a gate from another; "" for none."""
    if gate is None:
        return ""
    digest = xxhash.xxh3_128()
    for _, tensor in sorted(gate.tensors().items()):
        digest.update(bytes_of(tensor))
    return digest.hexdigest()
