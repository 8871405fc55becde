"""Fine-tuning through PEFT's adapters on the value matrices of some layers: LoRA, and what all such editors share.

Hu et al. 2022 ("LoRA: Low-Rank Adaptation of Large Language Models"); Gangadhar and Stratos 2024 ("Model Editing by
Standard Fine-Tuning": the likelihood of the object given the prompt, with facts that are not edited among the others).
"""

import re
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from corrigenda import Edit, Fact, LanguageModel, LowRankEdit, Origin
from corrigenda.data.requests import normalised
from corrigenda.forward.differentiable import differentiable
from corrigenda.models.adapters import put_in, take_out
from corrigenda.models.condition import OWN_ADAPTER
from corrigenda.models.memory import FFNMemory
from corrigenda.settings.checked import AtLeastOne, NotNegative, Positive, Seed, Share, checked
from editing.editor import EditRefusedError, FactRefusedError, require_targets
from editing.registry import register
from editing.shared.epochs import in_epochs
from editing.shared.extending import check_previous, without
from editing.shared.layers import last_layers
from editing.shared.together import together
from editing.shared.training_facts import TrainingFacts
from editing.shared.training_rows import Rows, RowsForward, SideLayer, target_rows
from editing.spaces import Number, Space

Factors = tuple[Tensor, Tensor]
"""A, (d_ffn, rank), and B, (rank, d_model), of V <- V + A B."""


@dataclass(frozen=True)
@checked
class Adapter:
    """An editor whose edit is a PEFT adapter of the values of some layers.

    Attributes:
        layers: the layers whose values have an adapter; empty for `number` of them, the last at `depth`.
        depth: of the last layer, as a share of the model's.
        number: how many layers there are by default.
        rank: of the adapter of a layer.
        alpha: the update is scaled by alpha / rank.
        steps: gradient steps for a single fact, at most.
        epochs: passes over several facts, at most.
        batch_size: facts in a mini-batch.
        lr: Adam's learning rate.
        end_token: whether the end token is a part of the target.
        unedited: facts that are learned beside the edited ones, as they are: with their old object, and without those
            about a subject that is edited. Not the facts that the edit is to be measured on.
        seed: for the adapter's first values, and for the shuffling.
    """

    name: ClassVar[str]

    layers: tuple[int, ...] = ()
    depth: Share = 0.2
    number: AtLeastOne = 5
    rank: AtLeastOne = 8
    alpha: Positive = 16.0
    steps: AtLeastOne = 50
    epochs: AtLeastOne = 25
    batch_size: AtLeastOne = 8
    lr: Positive = 1e-2
    end_token: bool = True
    unedited: TrainingFacts = field(default_factory=lambda: TrainingFacts(limit=100))
    seed: Seed = 0

    @together
    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> LowRankEdit:
        """The adapter that makes all the facts hold.

        Raises:
            EditRefusedError: a fact asks for an erasure; the loss is not finite; or none of the unedited facts counts.
            IndexError: the model has no such layer.
            UnsupportedModelError: the model is a masked one; or a layer has not one matrix of values that can be
                written.
        """
        return self._extended(lm, None, facts)

    def resolved_layers(self, lm: LanguageModel) -> tuple[int, ...]:
        """The layers that are written in a model, ascending, counted from the bottom.

        Raises:
            IndexError: the model has no such layer.
            ValueError: one is named twice.
        """
        return last_layers(self.name, lm, self.layers, self.depth, self.number)

    @property
    @abstractmethod
    def until(self) -> float | None:
        """The loss at which a fact is learned; None where all steps are taken."""

    @abstractmethod
    def _config(self, common: dict[str, Any], steps: int) -> Any:
        """PEFT's configuration: what is common to all, and what is this editor's; `steps` are taken at most."""

    def _step(self, adapted: Any, optimiser: torch.optim.Optimizer, loss: Tensor, number: int) -> None:
        """Takes a step, from 1 on, down a loss."""
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    @abstractmethod
    def _factors(self, module: Any) -> Factors:
        """What a trained module of PEFT's adds to V."""

    def _begin(self, module: Any, factors: Factors) -> None:
        """Sets a module's first values to those of an earlier edit; for editors that go on from one."""

    def _extended(self, lm: LanguageModel, previous: Edit | None, facts: Sequence[Fact]) -> LowRankEdit:
        require_targets(self.name, facts)
        lm.architecture.require_causal(self.name)
        layers = self.resolved_layers(lm)
        memories = [lm.memory(layer) for layer in layers]
        for memory in memories:
            _ = memory.values  # what cannot be written is said before anything is computed
        own = check_previous(self.name, lm, layers, previous, LowRankEdit, self.name)
        before, reports = ((), ()) if own is None else (own.origin.facts, own.origin.report)
        learned = [*facts, *self._beside(lm, [*before, *facts])]
        with without(lm, previous):
            side = SideLayer(lm, layers[0], anew=True)
            rows = side.run([target_rows(lm, fact, end=self.end_token) for fact in learned])
            rows.require_ordinary(facts)
            factors, figures = self._trained(memories, own, side, rows, learned, len(learned) - len(facts))
        origin = Origin.of(lm, self, [*before, *facts], [*reports, *figures])
        return LowRankEdit.of(lm, origin, factors)

    def _beside(self, lm: LanguageModel, edited: Sequence[Fact]) -> list[Fact]:
        """The unedited facts, each with its old object as the new one; none about a subject that is edited.

        Those that cannot be run are left out, with a warning. Raises EditRefusedError: none is left.
        """
        if self.unedited.path is None:
            return []
        subjects = {normalised(fact.subject) for fact in edited}
        found = self.unedited.read(self.name, "unedited")
        others = [
            replace(fact, target_new=fact.target_true, target_true=None)
            for fact in found
            if fact.target_true is not None and normalised(fact.subject) not in subjects
        ]
        kept = []
        for fact in others:
            with suppress(FactRefusedError):
                target_rows(lm, fact, end=self.end_token)
                kept.append(fact)
        if not kept:
            raise EditRefusedError(
                f"unedited.path={self.unedited.path}: none of its {len(found)} facts has an old object, a subject that "
                "is not edited, and a prompt that is neither too long nor one token; name a file of other facts"
            )
        if len(kept) < len(others):
            warnings.warn(
                f"{self.name}: {len(others) - len(kept)} of the {len(others)} unedited facts in {self.unedited.path} "
                "are left out: they are too long, or their prompt is one token",
                stacklevel=6,
            )
        return kept

    @differentiable()
    def _trained(
        self,
        memories: Sequence[FFNMemory],
        own: LowRankEdit | None,
        side: SideLayer,
        rows: Rows,
        learned: Sequence[Fact],
        beside: int,
    ) -> tuple[dict[int, Factors], list[dict[str, Any]]]:
        """By layer what is added to V, and what is to be said of each edited fact."""
        model = side.lm.model
        passes = self.steps if len(learned) == 1 else self.epochs
        common: dict[str, Any] = {
            "target_modules": "|".join(re.escape(memory.path) for memory in memories),
            "fan_in_fan_out": memories[0].transposed,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
        }
        config = self._config(common, passes * -(-len(learned) // self.batch_size))
        adapted = put_in(model, config, self.seed)
        try:
            modules = {memory.layer: model.get_submodule(memory.path) for memory in memories}
            for layer, factors in {} if own is None else own.factors.items():
                self._begin(modules[layer], factors)
            optimiser = torch.optim.Adam([one for one in adapted.parameters() if one.requires_grad], lr=self.lr)
            taken: list[Tensor] = []

            def step(loss: Tensor) -> None:
                taken.append(loss.detach())
                self._step(adapted, optimiser, loss, len(taken))

            figures = in_epochs(
                *(self.name, learned, lambda batch: RowsForward(side, rows.pick(batch)).nll(), step, passes),
                *(self.batch_size, self.until, self.seed, beside),
            )
            with torch.no_grad():
                found = {layer: self._factors(module) for layer, module in modules.items()}
            return {layer: pair for layer, pair in found.items() if pair[0].shape[1]}, figures
        finally:
            take_out(model, adapted)


@register(
    "lora",
    paper="Hu et al. 2022 (LoRA); Gangadhar and Stratos 2024, Model Editing by Standard Fine-Tuning",
    aim="fine-tuning as most people do it, of which a PEFT adapter comes",
    space=Space("several", (Number("lr", 1e-3, 1e-1, log=True), Number("stop", 0.005, 0.5, log=True))),
)
@dataclass(frozen=True)
@checked
class Lora(Adapter):
    """LoRA by PEFT on the value matrix V of one layer or of several; everything else stays as it is.

    V becomes V + (alpha / rank) A B, with A, (d_ffn, rank), random and B, (rank, d_model), zero at the beginning. The
    edit is exactly this: a `LowRankEdit`, which `to_peft` writes as the adapter that PEFT trained.

    The loss is that of `FineTune`: the mean of -log P of the target's tokens after the bare prompt, the end token
    included, over shuffled mini-batches of all facts. Layers below the lowest adapter run once for each fact. With
    `unedited`, facts that are to stay are among the batches, with the object that they have (Gangadhar and Stratos take
    random ones, or such as are like the edited ones, and paraphrases, of which there are none here).

    `extend` trains the adapter of an earlier edit on, with the new facts alone.

    Attributes:
        stop: learning ends when no edited fact's loss, per token, is above this; several facts: none in a whole pass.
    """

    name: ClassVar[str] = "lora"

    number: AtLeastOne = 1
    stop: NotNegative = 0.02

    @together
    def extend(self, lm: LanguageModel, previous: Edit | None, facts: Sequence[Fact]) -> LowRankEdit:
        """The adapter of an earlier edit, trained on with further facts; the earlier edit itself stays as it is.

        Args:
            lm: the model; `previous` may be applied to it or not.
            previous: what to go on from; None for a new adapter.
            facts: what is to be learned now.

        Raises:
            EditRefusedError: as in `edit`; or `previous` is of another editor, model, layer or rank.
        """
        for layer, (left, _) in previous.factors.items() if isinstance(previous, LowRankEdit) else ():
            if left.shape[1] != self.rank:
                raise EditRefusedError(
                    f"{self.name}: the edit to go on from has rank {left.shape[1]} at layer {layer}, this editor "
                    f"rank={self.rank}; take rank={left.shape[1]}, or edit all facts anew"
                )
        return self._extended(lm, previous, facts)

    @property
    def until(self) -> float:
        """As `stop` says."""
        return self.stop

    def _config(self, common: dict[str, Any], steps: int) -> Any:
        from peft import LoraConfig  # slow to import

        return LoraConfig(r=self.rank, **common)

    def _factors(self, module: Any) -> Factors:
        left, right = module.lora_A[OWN_ADAPTER].weight, module.lora_B[OWN_ADAPTER].weight
        return left.T.clone(), module.scaling[OWN_ADAPTER] * right.T

    @torch.no_grad()
    def _begin(self, module: Any, factors: Factors) -> None:
        left, right = factors
        module.lora_A[OWN_ADAPTER].weight.copy_(left.T)
        module.lora_B[OWN_ADAPTER].weight.copy_(right.T / module.scaling[OWN_ADAPTER])
