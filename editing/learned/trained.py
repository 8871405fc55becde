"""`Trained`: what editors share that have a network which has to be trained for a model first."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from corrigenda import EditRefusedError, Fact, LanguageModel
from corrigenda.errors import UnsupportedModelError
from corrigenda.settings.checked import AtLeastOne, checked
from corrigenda.system.files import expanded
from editing.learned.hypernetwork import N, TrainedNetwork, kept_network
from editing.learned.training import HypernetworkTraining, TrainingTask
from editing.shared.layers import ascending


@dataclass(frozen=True)
@checked
class Trained:
    """An editor whose network has to be trained for a model first: ``corrigenda train editor=NAME data=...``.

    Attributes:
        layers: the layers to write, in any order; empty for the last `number` ones. The network is trained for them.
        number: how many layers there are by default.
        network: the file of a trained network; None: where ``corrigenda train`` puts it.
        untrained: whether a model without a trained network is edited all the same, by the network as it is before
            training: a control for what training adds.
        end_token: whether the end token is a part of the target.
    """

    name: ClassVar[str] = "trained"

    layers: tuple[int, ...] = ()
    number: AtLeastOne = 3
    network: str | None = None
    untrained: bool = False
    end_token: bool = True

    @abstractmethod
    def task(self, lm: LanguageModel, facts: Sequence[Fact], asked: HypernetworkTraining) -> TrainingTask[Any]:
        """What the network is trained on: facts with targets, on an unedited model.

        Raises EditRefusedError: a fact asks for an erasure; ValueError: none of the facts can be trained on.
        """

    @abstractmethod
    def trained(self, lm: LanguageModel) -> TrainedNetwork[Any] | None:
        """The network that was trained for a model; None where there is none and `untrained`.

        Raises:
            EditRefusedError: there is none.
            WrongModelError: it is another model's, editor's or other layers', or was trained with another `end_token`.
        """

    def prepare(self, lm: LanguageModel) -> None:
        """Looks for the network, so that its lack is said at once.

        Raises:
            EditRefusedError: there is none.
            IndexError: the model has no such layer.
            WrongModelError: it is another model's, editor's or other layers', or was trained with another `end_token`.
        """
        self.check(lm)
        self.trained(lm)

    def check(self, lm: LanguageModel) -> None:
        """Checks that this editor can edit the model.

        Raises:
            IndexError: the model has no such layer.
            UnsupportedModelError: the model is a masked one or an encoder-decoder, or a layer is a mixture of experts,
                or layers differ in shape.
        """
        lm.architecture.require_decoder(self.name)
        layers = self.resolved_layers(lm)
        for layer in layers:
            if lm.architecture.experts(layer):
                raise UnsupportedModelError(f"{self.name}: layer {layer} of {lm.name} is a mixture of experts")
        shapes = {(lm.memory(layer).d_ffn, lm.memory(layer).d_model) for layer in layers}
        if len(shapes) > 1:
            raise UnsupportedModelError(
                f"{self.name}: one network serves layers of one shape, and the values of layers {list(layers)} of "
                f"{lm.name} have {len(shapes)}; name layers that are alike"
            )

    def resolved_layers(self, lm: LanguageModel) -> tuple[int, ...]:
        """The layers that are written in a model, ascending, counted from the bottom.

        Raises:
            IndexError: the model has no such layer.
            ValueError: one is named twice.
        """
        if not self.layers:
            return tuple(range(max(lm.n_layers - self.number, 0), lm.n_layers))
        return tuple(ascending(self.name, lm, self.layers))

    def _loaded(self, lm: LanguageModel, kind: type[N]) -> TrainedNetwork[N] | None:
        path = kept_network(lm, self.name) if self.network is None else expanded(self.network)
        if self.network is None and not path.is_file():
            if self.untrained:
                return None
            raise EditRefusedError(
                f"{self.name}: no network was trained for {lm.name}: train one (corrigenda train editor={self.name} "
                "data=... with facts that are not scored)"
            )
        found = TrainedNetwork.load(path, kind)
        found.require(lm, self.name, self.resolved_layers(lm), self.end_token)
        return found
