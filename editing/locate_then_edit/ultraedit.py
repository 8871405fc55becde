"""UltraEdit: many facts by one ridge regression on normalised gradients, without targets, subjects or stored text.

Gu, Huang, Gu and Zhang 2025, "UltraEdit: Training-, Subject-, and Memory-Free Lifelong Editing in Language Models".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corrigenda import Edit, EditRefusedError, Fact, LanguageModel, WeightEdit
from corrigenda.settings.checked import AtLeastOne, Positive, Share, checked
from editing.editor import require_targets
from editing.locate_then_edit.answers import AnswerTokens, answer_tokens
from editing.locate_then_edit.guards import warn_of_load
from editing.locate_then_edit.joined import ClosedFormEdit, finish
from editing.locate_then_edit.least_squares import Factors, Mark, penalised_update
from editing.locate_then_edit.normalisation import RunningMoments, RunningNormalisation
from editing.locate_then_edit.weighed import mean_energy, require_one
from editing.registry import register
from editing.shared.extending import Extendable, check_previous, present, require_shared, state_of
from editing.shared.layers import last_layers
from editing.shared.together import together
from editing.spaces import Number, Space


@dataclass(frozen=True)
class Ridge:
    """M = weight I: a change costs the same in every direction; width is d_ffn.

    The weight is in the unit of squared coefficients; gradients go through one that is a tensor.
    """

    weight: float | Tensor
    width: int

    @property
    def mark(self) -> Mark:
        """Of the weight and the width."""
        return ("ridge", self.weight.item() if isinstance(self.weight, Tensor) else self.weight, self.width)

    def solve(self, keys: Tensor) -> Tensor:
        """Each key divided by the weight."""
        return self.inside(keys) / self.weight

    def inside(self, keys: Tensor) -> Tensor:
        """The keys themselves."""
        return keys.double().cpu()

    def matrix(self) -> Tensor:
        """N = weight I."""
        return self.weight * torch.eye(self.width, dtype=torch.float64)

    def outside(self, changes: Tensor) -> Tensor:
        """The changes themselves."""
        return changes


@register(
    "ultraedit",
    paper="Gu et al. 2025, UltraEdit: Training-, Subject-, and Memory-Free Lifelong Editing in Language Models",
    aim="very many facts in seconds, without solving for targets",
    space=Space("several", (Number("step", 0.03, 1.0, log=True), Number("ratio", 0.005, 0.5, log=True))),
)
@dataclass(frozen=True)
@checked
class UltraEdit(Extendable[ClosedFormEdit]):
    """One step along normalised gradients, spread over the keys by least squares.

    With k a layer's coefficients and g the gradient of the loss (the mean of -log P of a fact's target tokens) with
    respect to the layer's FFN output, at each token from which a token of a target is predicted:

        k' = (k - mean) / deviation,    g' = (g - mean) / deviation
        r = -eta |k'|^2 g'
        delta V = (K^T K + w I)^-1 K^T R

    K holds the keys k as they are. Means and deviations are taken coordinate by coordinate over all tokens of this and
    earlier turns (a *turn* is one `edit`, or one `extend` of it); what is kept for that does not grow. All layers are
    measured in one forward and one backward, and each is solved for once: nothing is iterated, and earlier keys are
    not kept, so that a fact that is superseded needs no other treatment than its new target.

    The authors write eta (1e-6 in models of 14,336 coefficients) and w = 1. Here both are ratios by default, worked out
    in the first turn and kept, so that one default serves every model. The authors edit several matrices of a
    feed-forward network; here, as in all closed forms of this project, the values alone. Their program takes means and
    deviations over all matrices of one shape together; here each layer has its own. That the keys of the system are not
    the normalised ones, and that deviations are with n - 1, is this project's reading.

    The defaults were chosen with SmolLM2 on the CounterFact facts 1,001 to 1,050, in one turn: the later the layers and
    the larger the step, the more of the facts held there, and the more of their neighbours' answers were lost (no
    figures were kept).

    A turn of one fact has few tokens to take means and deviations over (with two, every g' is +-0.7): the method is
    meant for batches.

    Attributes:
        layers: the layers to write, in any order; empty for `number` of them, the last at `depth`.
        depth: of the last layer, as a share of the model's.
        number: how many layers there are by default.
        step: eta as a ratio: the mean of |r| is so many times the mean of |FFN(x)|; None where `eta` is given.
        eta: eta itself; None where `step` is given.
        ratio: w as a share of the mean energy |k|^2 of a key; None where `weight` is given.
        weight: w itself; None where `ratio` is given.
        end_token: whether the end token is a part of the target.
        most_per_coefficient: with more facts for each coefficient of a layer there is a warning.
        refuse_norm: an update above so many times the norm of the values that it changes, times the root of the number
            of facts, is refused.
    """

    name: str = "ultraedit"
    layers: tuple[int, ...] = ()
    depth: Share = 0.9
    number: AtLeastOne = 5
    step: Positive | None = 0.3
    eta: Positive | None = None
    ratio: Positive | None = 0.05
    weight: Positive | None = None
    end_token: bool = True
    most_per_coefficient: Positive = 0.25
    refuse_norm: Positive = 2.0

    def __post_init__(self) -> None:
        require_one(type(self).__name__, "step", self.step, "eta", self.eta)
        require_one(type(self).__name__, "ratio", self.ratio, "weight", self.weight)

    @together
    def extend(self, lm: LanguageModel, previous: Edit | None, facts: Sequence[Fact]) -> ClosedFormEdit:
        """A further turn: an earlier edit of this editor with further facts; the earlier edit stays as it is.

        Keys and gradients are those of the model with the earlier edit.

        Returns:
            Of a first turn a `LowRankEdit` whose rank is the number of the targets' tokens; above d_ffn / 2 a
            `ValueEdit`.

        Raises:
            EditRefusedError: a fact asks for an erasure; the targets have only one token in all; a loss or gradient is
                not finite; the update is out of all proportion; or `previous` is another editor's, model's or layers',
                has no state, or was made with another `step`, `eta`, `ratio` or `weight`.
            IndexError: the model has no such layer.
            ValueError: a layer is named twice.
        """
        require_targets(self.name, facts)
        lm.architecture.require_causal(self.name)
        layers = self.resolved_layers(lm)
        own = check_previous(self.name, lm, layers, previous, WeightEdit, self.name)  # type: ignore[type-abstract]
        if own is not None:  # the first turn's are kept
            require_shared(self.name, self, own, ("step", "eta", "ratio", "weight"))
        state = RunningNormalisation() if own is None else state_of(self.name, own, RunningNormalisation)
        warn_of_load(self.name, state.n_written + len(facts), lm.memory(layers[0]).d_ffn, self.most_per_coefficient)
        with present(lm, own):
            seen = answer_tokens(lm, facts, layers, self.end_token)
        factors, grown = self._solved(layers, seen, state, len(facts))
        report: list[dict[str, Any]] = [{"loss_before": loss} for loss in seen.losses.tolist()]
        return finish(lm, self, own, factors, facts, report, grown, grown.n_written, self.refuse_norm)

    def resolved_layers(self, lm: LanguageModel) -> tuple[int, ...]:
        """The layers that are written in a model, ascending, counted from the bottom.

        Raises:
            IndexError: the model has no such layer.
            ValueError: one is named twice.
        """
        return last_layers(self.name, lm, self.layers, self.depth, self.number)

    def _solved(
        self, layers: Sequence[int], seen: AnswerTokens, state: RunningNormalisation, n_facts: int
    ) -> tuple[Mapping[int, Factors], RunningNormalisation]:
        """The layers' updates, and the state after them."""
        keys, gradients = dict(state.keys), dict(state.gradients)
        etas, weights = dict(state.etas), dict(state.weights)
        factors = dict[int, Factors]()
        for layer in layers:
            K, G = seen.keys[layer].double(), seen.gradients[layer].double()
            for moments, rows in ((keys, K), (gradients, G)):
                new = RunningMoments.of(rows)
                moments[layer] = moments[layer] + new if layer in moments else new
            if keys[layer].count < 2:
                raise EditRefusedError(
                    f"{self.name}: the targets have one token in all, and a deviation takes two; give more facts, or "
                    "train the end token (end_token=true)"
                )
            size = keys[layer].normalised(K).square().sum(1, keepdim=True)
            wanted = -size * gradients[layer].normalised(G)
            if layer not in etas:
                etas[layer] = self._eta(layer, wanted, seen.outputs[layer])
                weights[layer] = self.weight if self.ratio is None else self.ratio * mean_energy(K)  # type: ignore[assignment]
            metric = Ridge(weights[layer], K.shape[1])
            factors[layer] = penalised_update(K, etas[layer] * wanted, metric)
        return factors, RunningNormalisation(keys, gradients, etas, weights, state.n_written + n_facts)

    def _eta(self, layer: int, wanted: Tensor, outputs: Tensor) -> float:
        """Eta of a first turn, whose residuals without it are `wanted`, (n, d_model)."""
        if self.step is None:
            assert self.eta is not None
            return self.eta
        size = float(wanted.norm(dim=1).mean())
        if not size > 0:
            raise EditRefusedError(
                f"{self.name}: all gradients at layer {layer} are the same, and none is left when they are normalised; "
                "give several facts"
            )
        return self.step * float(outputs.double().norm(dim=1).mean()) / size
