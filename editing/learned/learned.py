"""`Learned`: what editors share whose update a trained network makes of the facts' gradients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from corrigenda import EditRefusedError, Fact, LanguageModel
from corrigenda.edits.weights import require_writable
from corrigenda.errors import UnsupportedModelError
from corrigenda.settings.checked import AtLeastOne, Positive, checked
from corrigenda.system.files import expanded
from editing.editor import require_targets
from editing.learned.hypernetwork import Hypernetwork, TrainedNetwork, kept_network
from editing.locate_then_edit.answers import AnswerTokens, answer_tokens
from editing.locate_then_edit.joined import ClosedFormEdit, finish
from editing.locate_then_edit.least_squares import Factors
from editing.locate_then_edit.weighed import mean_energy
from editing.shared.layers import ascending
from editing.shared.together import deduplicate, note_disturbance, refused_alone
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


class LayerUpdate(NamedTuple):
    """A layer's update of several edits: that of edit e is the product of the columns and rows where `edit` is e.

    Attributes:
        left: (d_ffn, n).
        right: (n, d_model).
        edit: (n,).
    """

    left: Tensor
    right: Tensor
    edit: Tensor


@dataclass(frozen=True)
@checked
class Learned:
    """An editor whose network has to be trained for a model first: ``corrigenda train editor=NAME data=...``.

    Attributes:
        layers: the layers to write, in any order; empty for the last `number` ones. The network is trained for them.
        number: how many layers there are by default.
        network: the file of a trained network; None: where ``corrigenda train`` puts it.
        untrained: whether a model without a trained network is edited all the same, by the network as it is before
            training: one gradient step, a control for what training adds.
        end_token: whether the end token is a part of the target.
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

    layers: tuple[int, ...] = ()
    number: AtLeastOne = 3
    network: str | None = None
    untrained: bool = False
    end_token: bool = True
    refuse_norm: Positive = 2.0

    @abstractmethod
    def factors(self, network: Hypernetwork, place: int, u: Tensor, pseudo_u: Tensor, pseudo_d: Tensor) -> Factors:
        """One edit's update of a layer.

        Args:
            network: with the layer's rate.
            place: of the layer among the network's.
            u: the layer's coefficients, (n, d_ffn).
            pseudo_u: what the network made of them, (n, d_ffn).
            pseudo_d: what it made of the gradients, (n, d_model).

        Returns:
            left (d_ffn, n) and right (n, d_model); differentiable in what the network made.
        """

    def prepare(self, lm: LanguageModel) -> None:
        """Looks for the network, so that its lack is said at once.

        Raises:
            EditRefusedError: there is none.
            IndexError: the model has no such layer.
            WrongModelError: it is another model's, editor's or other layers'.
        """
        self.check(lm)
        self._trained(lm)

    def check(self, lm: LanguageModel) -> None:
        """Checks that this editor can write the model.

        Raises:
            IndexError: the model has no such layer.
            UnsupportedModelError: the model is a masked one or an encoder-decoder, or a layer is a mixture of experts
                or quantised, or layers differ in shape.
        """
        lm.architecture.require_causal(self.name)
        lm.architecture.require_one_text(self.name)
        layers = self.resolved_layers(lm)
        for layer in layers:
            if lm.architecture.experts(layer):
                raise UnsupportedModelError(f"{self.name}: layer {layer} of {lm.name} is a mixture of experts")
        require_writable(lm, layers)
        shapes = {(lm.memory(layer).d_ffn, lm.memory(layer).d_model) for layer in layers}
        if len(shapes) > 1:
            raise UnsupportedModelError(
                f"{self.name}: one network serves layers of one shape, and the values of layers {list(layers)} of "
                f"{lm.name} have {len(shapes)}; name layers that are alike"
            )

    @note_disturbance
    @deduplicate
    @refused_alone
    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> ClosedFormEdit:
        """The facts' update: one forward, one backward, and the network.

        Returns:
            A `LowRankEdit` of as many ranks as there are tokens; above d_ffn / 2 a `ValueEdit`.

        Raises:
            EditRefusedError: a fact asks for an erasure; the network was trained on it, or on its subject; there is no
                trained network; a loss or gradient is not finite; or the update is out of all proportion.
            IndexError: the model has no such layer.
            UnsupportedModelError, WrongModelError: as `prepare` says.
        """
        require_targets(self.name, facts)
        self.check(lm)
        trained = self._trained(lm)
        require_unseen(self.name, () if trained is None else trained.facts, facts)
        layers = self.resolved_layers(lm)
        seen = answer_tokens(lm, facts, layers, self.end_token, self.whole)
        network = self._identity(lm, seen) if trained is None else trained.network
        with torch.no_grad():
            updates = self.updates(network, seen, torch.zeros(len(facts), dtype=torch.long))
        report: list[dict[str, Any]] = [{"loss_before": loss} for loss in seen.losses.tolist()]
        factors = {layer: (update.left, update.right) for layer, update in updates.items()}
        return finish(lm, self, None, factors, facts, report, None, len(facts), self.refuse_norm)

    def resolved_layers(self, lm: LanguageModel) -> tuple[int, ...]:
        """The layers that are written in a model, ascending, counted from the bottom.

        Raises:
            IndexError: the model has no such layer.
            ValueError: one is named twice.
        """
        if not self.layers:
            return tuple(range(max(lm.n_layers - self.number, 0), lm.n_layers))
        return tuple(ascending(self.name, lm, self.layers))

    def updates(self, network: Hypernetwork, seen: AnswerTokens, edit_of: Tensor) -> dict[int, LayerUpdate]:
        """What the network makes of gradients.

        Args:
            network: of the layers that were seen.
            seen: tokens of facts.
            edit_of: (fact,), the number of the edit that each fact is in, counted from 0.

        Returns:
            by layer; differentiable in the network.
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
            left, right, numbers = zip(*parts, strict=True)
            found[layer] = LayerUpdate(torch.cat(left, 1), torch.cat(right), torch.cat(numbers))
        return found

    def _trained(self, lm: LanguageModel) -> TrainedNetwork | None:
        path = kept_network(lm, self.name) if self.network is None else expanded(self.network)
        if self.network is None and not path.is_file():
            if self.untrained:
                return None
            raise EditRefusedError(
                f"{self.name}: no network was trained for {lm.name}: train one (corrigenda train editor={self.name} "
                "data=... with facts that are not scored)"
            )
        trained = TrainedNetwork.load(path)
        trained.require(lm, self.name, self.resolved_layers(lm))
        return trained

    def _identity(self, lm: LanguageModel, seen: AnswerTokens) -> Hypernetwork:
        memory = lm.memory(self.resolved_layers(lm)[0])
        network = Hypernetwork(self.resolved_layers(lm), memory.d_ffn, memory.d_model, 1, 0, self.weighed)
        calibrate(network, seen, STEP, 1.0)
        return network


def pairs(seen: AnswerTokens, layer: int, device: torch.device) -> Pairs:
    """A layer's rows that are not zero: in the last layer no token has a gradient that predicts no target's token."""
    u, d = seen.keys[layer].float(), seen.gradients[layer].float()
    kept = (u != 0).any(1) & (d != 0).any(1)
    return Pairs(*(part[kept].to(device) for part in (u, d, seen.outputs[layer].float(), seen.fact)))


@torch.no_grad()
def calibrate(network: Hypernetwork, seen: AnswerTokens, step: float, ratio: float) -> None:
    """Gives a network the rates with which it begins, and the weights, where it has them.

    Args:
        network: whose `mean` and `deviation` are there.
        seen: tokens of facts.
        step: the mean of rate |u u~| |d~| is so many times the mean of |FFN(x)|.
        ratio: lambda as a share of the mean of |u|^2.

    Raises:
        EditRefusedError: all gradients of a layer are zero.
    """
    for place, layer in enumerate(network.layers):
        rows = pairs(seen, layer, network.mean.device)
        pseudo_u, pseudo_d = network(rows.u, rows.d, place)
        size = float(((rows.u * pseudo_u).sum(1).abs() * pseudo_d.norm(dim=1)).mean()) if len(rows.u) else 0.0
        if not size > 0:
            raise EditRefusedError(f"all gradients at layer {layer} are zero: nothing says how the model is to change")
        network.log_rates[place] = torch.tensor(step * float(rows.outputs.norm(dim=1).mean()) / size).log()
        if network.log_weights is not None:
            network.log_weights[place] = torch.tensor(ratio * mean_energy(rows.u)).log()
