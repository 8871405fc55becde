"""`Learned`: what editors share whose update a trained network makes of the facts' gradients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from corrigenda import EditRefusedError, Fact, LanguageModel
from corrigenda.edits.weights import require_writable
from corrigenda.seeded import seeded
from corrigenda.settings.checked import Positive, checked
from editing.editor import require_targets
from editing.learned.hypernetwork import Hypernetwork, TrainedNetwork
from editing.learned.material import Material
from editing.learned.side_rows import LayerUpdate, mean_by_row
from editing.learned.trained import Trained
from editing.learned.training import HypernetworkTraining
from editing.locate_then_edit.answers import AnswerTokens, answer_tokens
from editing.locate_then_edit.joined import ClosedFormEdit, finish
from editing.locate_then_edit.least_squares import Factors
from editing.locate_then_edit.normalisation import RunningMoments
from editing.locate_then_edit.weighed import mean_energy
from editing.shared.together import together
from editing.shared.training_facts import require_unseen

STEP = 0.1
"""By how much an untrained network's update changes an FFN's output at the facts' own tokens, as a share of it."""


class Pairs(NamedTuple):
    """A layer's rows (u, d) that are not zero: n of them.

    Attributes:
        u: coefficients, (n, d_ffn), float32.
        d: gradients with respect to the FFN's output, (n, d_model), float32.
        outputs: FFN(x), (n, d_model).
        fact: the number of each one's fact, (n,).
    """

    u: Tensor
    d: Tensor
    outputs: Tensor
    fact: Tensor


@dataclass(frozen=True)
@checked
class Learned(Trained):
    """An editor whose network makes the update of the facts' gradients; before training, one gradient step.

    Attributes:
        refuse_norm: an update above so many times the norm of the values that it changes, times the root of the number
            of facts, is refused.
    """

    name: ClassVar[str] = "learned"
    whole: ClassVar[bool] = True
    """Whether all tokens of prompt and target count, or those alone from which the target is predicted."""
    weighed: ClassVar[bool] = False
    """Whether the network has a weight lambda for each layer."""
    in_training: ClassVar[tuple[int, int]] = (8, 1)
    """In a step of training, how many edits there are, and of how many facts each."""

    refuse_norm: Positive = 2.0

    @abstractmethod
    def factors(self, network: Hypernetwork, place: int, u: Tensor, pseudo_u: Tensor, pseudo_d: Tensor) -> Factors:
        """One edit's update of a layer: left (d_ffn, n) and right (n, d_model); differentiable in pseudo-gradients.

        `place` is that of the layer among the network's; `u`, (n, d_ffn), are the layer's coefficients, `pseudo_u`, (n,
        d_ffn), and `pseudo_d`, (n, d_model), what the network made of them and of the gradients.
        """

    def check(self, lm: LanguageModel) -> None:
        """Checks that this editor can write the model.

        Raises:
            IndexError: the model has no such layer.
            UnsupportedModelError: the model is a masked one or an encoder-decoder, or a layer is a mixture of experts
                or quantised, or layers differ in shape.
        """
        super().check(lm)
        require_writable(lm, self.resolved_layers(lm))

    def trained(self, lm: LanguageModel) -> TrainedNetwork[Hypernetwork] | None:
        """As `Trained` says."""
        return self._loaded(lm, Hypernetwork)

    def task(self, lm: LanguageModel, facts: Sequence[Fact], asked: HypernetworkTraining) -> GradientTask:
        """The facts' gradients, and the prompts on which their edits are judged."""
        return GradientTask(lm, self, Material.of(lm, self, facts, asked.most_kept, asked.seed), asked)

    @together
    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> ClosedFormEdit:
        """The facts' update: one forward, one backward, and the network.

        Returns:
            A `LowRankEdit` of as many ranks as there are tokens; above d_ffn / 2 a `ValueEdit`.

        Raises:
            EditRefusedError: a fact asks for an erasure; the network was trained on it, or on its subject; there is no
                trained network; a loss or gradient is not finite, or a layer's gradients are all zero; or the update is
                out of all proportion.
            IndexError: the model has no such layer.
            UnsupportedModelError, WrongModelError: as `prepare` says.
        """
        require_targets(self.name, facts)
        self.check(lm)
        trained = self.trained(lm)
        require_unseen(self.name, () if trained is None else trained.facts, facts)
        layers = self.resolved_layers(lm)
        seen = answer_tokens(lm, facts, layers, self.end_token, self.whole)
        network = self._identity(lm, seen) if trained is None else trained.network
        with torch.no_grad():
            updates = self.updates(network, seen, torch.zeros(len(facts), dtype=torch.long))
        report: list[dict[str, Any]] = [{"loss_before": loss} for loss in seen.losses.tolist()]
        factors = {layer: (update.left, update.right) for layer, update in updates.items()}
        return finish(lm, self, None, factors, facts, report, None, len(facts), self.refuse_norm)

    def updates(self, network: Hypernetwork, seen: AnswerTokens, edit_of: Tensor) -> dict[int, LayerUpdate]:
        """By layer what the network makes of the gradients of facts' tokens; differentiable in it.

        `edit_of`, (fact,), is the number of the edit that each fact is in, counted from 0. Raises EditRefusedError: all
        gradients of a layer are zero.
        """
        found = {}
        for place, layer in enumerate(network.layers):
            rows = pairs(seen, layer, network.mean.device)
            pseudo_u, pseudo_d = network(rows.u, rows.d, place)
            edits = edit_of.to(rows.fact.device)[rows.fact]
            parts = [
                (*self.factors(network, place, rows.u[own], pseudo_u[own], pseudo_d[own]), edits[own])
                for own in (edits == edit for edit in edits.unique())
            ]
            if not parts:
                raise EditRefusedError(f"{self.name}: {_all_zero(layer)}")
            left, right, numbers = zip(*parts, strict=True)
            found[layer] = LayerUpdate(torch.cat(left, 1), torch.cat(right), torch.cat(numbers))
        return found

    def _identity(self, lm: LanguageModel, seen: AnswerTokens) -> Hypernetwork:
        memory = lm.memory(self.resolved_layers(lm)[0])
        network = Hypernetwork(self.resolved_layers(lm), memory.d_ffn, memory.d_model, 1, 0, self.weighed)
        calibrate(network, seen, STEP, 1.0)
        return network


class GradientTask:
    """Edits that a network makes of gradients, each judged on prompts of its own.

    Args:
        lm: the model.
        editor: whose network it is.
        material: what it is trained on.
        asked: how.

    Attributes:
        key: what else than facts and settings tells one training from another.
        facts: those that can be trained on.
        asked, kept: of each fact the rows that shall have its new object, and those that shall stay.
        per_step: so many facts are in a step.
    """

    def __init__(self, lm: LanguageModel, editor: Learned, material: Material, asked: HypernetworkTraining) -> None:
        self._lm, self._editor, self._material, self._how = lm, editor, material, asked
        edits, facts = editor.in_training
        self._facts_per_edit = asked.facts or facts
        self.per_step = (asked.edits or edits) * self._facts_per_edit
        self.key = [editor.end_token, list(editor.resolved_layers(lm))]
        self.facts, self.asked, self.kept = material.facts, material.asked, material.kept

    def network(self, train: Sequence[int]) -> Hypernetwork:
        """The network with which the training begins, as it is normalised for some of the facts."""
        asked, layers = self._how, self._editor.resolved_layers(self._lm)
        memory = self._lm.memory(layers[0])
        sizes = (layers, memory.d_ffn, memory.d_model, asked.rank, asked.blocks, self._editor.weighed)
        with seeded(asked.seed):
            network = Hypernetwork(*sizes).to(memory.values.device)
        seen = self._material.tokens(train)
        _normalise(network, seen)
        calibrate(network, seen, asked.step, asked.ratio)
        return network

    def judged(
        self, network: Hypernetwork, facts: Sequence[int], asked: Sequence[int], kept: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """L_edit and L_loc of facts, with the number of each one's row that is asked and of the one that shall stay."""
        upper = self._material.upper
        edit_of = torch.arange(len(facts)) // self._facts_per_edit
        updates = self._editor.updates(network, self._material.tokens(facts), edit_of)
        rows, stay = (
            [side[fact][number] for fact, number in zip(facts, numbers, strict=True)]
            for side, numbers in ((self.asked, asked), (self.kept, kept))
        )
        edit_of = edit_of.to(network.mean.device)
        logits, owner = upper.logits(rows, updates, edit_of)
        targets = torch.cat([row.ids[row.prompt :] for row in rows]).to(logits.device)
        edit = mean_by_row(nn.functional.cross_entropy(logits, targets, reduction="none"), owner)
        with torch.no_grad():
            before, owner = upper.logits(stay, {}, edit_of, behind=True)
            before = before.log_softmax(-1)
        after, _ = upper.logits(stay, updates, edit_of, behind=True)
        kl = (before.exp() * (before - after.log_softmax(-1))).sum(-1)
        return edit, mean_by_row(kl, owner)


def _normalise(network: Hypernetwork, seen: AnswerTokens) -> None:
    """Takes the mean and the deviation of pairs, of all layers together, as the network is theirs."""
    moments: list[RunningMoments] = []
    for layer in network.layers:
        rows = pairs(seen, layer, network.mean.device)
        new = [RunningMoments.of(part) for part in (rows.u, rows.d)]
        moments = new if not moments else [one + other for one, other in zip(moments, new, strict=True)]
    network.mean.copy_(torch.cat([one.mean for one in moments]))
    network.deviation.copy_(torch.cat([one.deviation for one in moments]))


def pairs(seen: AnswerTokens, layer: int, device: torch.device) -> Pairs:
    """A layer's rows that are not zero: in the last layer no token has a gradient that predicts no target's token."""
    u, d = seen.keys[layer].float(), seen.gradients[layer].float()
    kept = (u != 0).any(1) & (d != 0).any(1)
    return Pairs(*(part[kept].to(device) for part in (u, d, seen.outputs[layer].float(), seen.fact)))


def _all_zero(layer: int) -> str:
    return f"all gradients at layer {layer} are zero: nothing says how the model is to change"


@torch.no_grad()
def calibrate(network: Hypernetwork, seen: AnswerTokens, step: float, ratio: float) -> None:
    """Gives a network, whose mean and deviation are there, the rates and the weights with which it begins.

    The mean of rate |u u~| |d~| becomes `step` times the mean of |FFN(x)|, lambda the share `ratio` of the mean of
    |u|^2. Raises EditRefusedError: all gradients of a layer are zero.
    """
    for place, layer in enumerate(network.layers):
        rows = pairs(seen, layer, network.mean.device)
        pseudo_u, pseudo_d = network(rows.u, rows.d, place)
        size = float(((rows.u * pseudo_u).sum(1).abs() * pseudo_d.norm(dim=1)).mean()) if len(rows.u) else 0.0
        if not size > 0:
            raise EditRefusedError(_all_zero(layer))
        network.log_rates[place] = torch.tensor(step * float(rows.outputs.norm(dim=1).mean()) / size).log()
        if network.log_weights is not None:
            network.log_weights[place] = torch.tensor(ratio * mean_energy(rows.u)).log()
