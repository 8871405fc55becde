"""Fine-tuning of one value matrix: the baseline of every editor, and no straw man.

Zhu et al. 2020 ("Modifying Memories in Transformer Models", FT-L: a bound on the change), Zhang et al. 2024 (FT-M: the
loss on the target's tokens only), Yang et al. 2026 ("Fine-tuning Done Right in Model Editing", LocFT-BF: all edits
together in shuffled mini-batches over several epochs, at one well-chosen matrix).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from corrigenda import Edit, Fact, LanguageModel, Origin, ValueEdit
from corrigenda.edits.weights import require_writable
from corrigenda.forward.differentiable import differentiable
from corrigenda.settings.checked import AtLeastOne, NotNegative, Positive, Seed, checked
from editing.editor import require_targets
from editing.registry import register
from editing.shared.epochs import in_epochs
from editing.shared.extending import Extendable, check_previous, without
from editing.shared.layers import OneLayer
from editing.shared.together import together
from editing.shared.training_rows import Rows, RowsForward, SideLayer, target_rows
from editing.spaces import Number, Space

Projection = Callable[[Tensor], Tensor]
"""Maps a change of V, (d_ffn, d_model), to its part in a subspace."""


@register(
    "finetune",
    paper="Zhu et al. 2020 (FT-L); Zhang et al. 2024 (FT-M); Yang et al. 2026 (all edits together)",
    aim="the control that every editor has to beat",
    space=Space("one", (Number("lr", 1e-4, 1e-2, log=True), Number("stop", 0.005, 0.5, log=True))),
)
@dataclass(frozen=True)
@checked
class FineTune(OneLayer, Extendable[ValueEdit]):
    """Gradient descent on the value matrix V of one layer; everything else stays as it is.

    The loss is the mean of -log P of the target's tokens after the bare prompt, the end token included, for without it
    the model talks on after the answer. The layers up to the edited one run once for each fact, whatever the number of
    steps. The whole change V' - V is the edit (`ValueEdit`): it has no small rank.

    Several facts are learned together: in each of `epochs` passes they are shuffled and cut into mini-batches, and a
    batch is one step (breadth first: the pass goes over all facts before any is seen again). Edit by edit (`extend`
    with one fact at a time) a fact is learned alone, on top of what earlier ones left, and forgotten by later ones;
    that is how fine-tuning came to look weak.

    Attributes:
        layer: the layer; None for a fifth of the depth.
        steps: gradient steps for a single fact, at most.
        epochs: passes over several facts, at most.
        batch_size: facts in a mini-batch.
        lr: Adam's learning rate.
        stop: learning ends when no fact's loss, per token, is above this; several facts: none in a whole pass.
        bound: the largest change of an entry of V against V as this edit found it (L-infinity); None for none.
        end_token: whether the end token is a part of the target.
        seed: for the shuffling.
    """

    name: ClassVar[str] = "finetune"
    depth: ClassVar[float] = 0.2  # the layer that left most of other answers alone on SmolLM2 (docs/sequential.md)

    layer: int | None = None
    steps: AtLeastOne = 50
    epochs: AtLeastOne = 50
    batch_size: AtLeastOne = 8
    lr: Positive = 1e-3
    stop: NotNegative = 0.02
    bound: Positive | None = None
    end_token: bool = True
    seed: Seed = 0

    @together
    def extend(self, lm: LanguageModel, previous: Edit | None, facts: Sequence[Fact]) -> ValueEdit:
        """The change of an earlier edit, learned on with further facts; the earlier edit itself stays as it is.

        Raises:
            EditRefusedError: a fact asks for an erasure; its prompt ends in an outlier state; `previous` is no such
                edit of this model and layer; or the loss is not finite.
            IndexError: the model has no such layer.
            UnsupportedModelError: the model is a masked one; or the layer's values are quantised.
        """
        require_targets("fine-tuning", facts)
        lm.architecture.require_causal("fine-tuning")
        require_writable(lm, [self.resolved_layer(lm)])
        within = self.projection(lm)
        with without(lm, previous):
            side = SideLayer(lm, self.resolved_layer(lm))
            start = self._start(lm, side, previous)
            rows = side.run([target_rows(lm, fact, end=self.end_token) for fact in facts])
            rows.require_ordinary(facts)
            delta, figures = self._learn(side, rows, start, facts, within)
        before = () if previous is None else previous.origin.facts
        reports = () if previous is None else previous.origin.report
        origin = Origin.of(lm, self, [*before, *facts], [*reports, *figures])
        return ValueEdit.of(lm, origin, {side.layer: delta})

    def projection(self, lm: LanguageModel) -> Projection | None:
        """What gradients and steps, (d_ffn, d_model), are projected by; None for nothing."""
        return None

    def _start(self, lm: LanguageModel, side: SideLayer, previous: Edit | None) -> Tensor:
        memory = side.memory
        editor = f"fine-tuning of layer {side.layer}"
        own = check_previous(editor, lm, [side.layer], previous, ValueEdit, self.name)
        if own is None:
            return torch.zeros(memory.d_ffn, memory.d_model, device=memory.values.device)
        return own.deltas[side.layer].to(memory.values.device)

    @differentiable()
    def _learn(
        self, side: SideLayer, rows: Rows, start: Tensor, facts: Sequence[Fact], within: Projection | None
    ) -> tuple[Tensor, list[dict[str, Any]]]:
        """The change of V, and what is to be said of each fact."""
        delta = start.clone().requires_grad_()
        optimiser = torch.optim.Adam([delta], lr=self.lr)
        alone = RowsForward(side, rows) if len(rows) == 1 else None

        def losses(batch: list[int]) -> Tensor:
            forward = alone or RowsForward(side, rows.pick(batch))
            return forward.nll(forward.coefficients @ delta)

        def step(loss: Tensor) -> None:
            optimiser.zero_grad()
            loss.backward()
            if within is None:
                optimiser.step()
            else:
                _projected_step(optimiser, delta, within)
            if self.bound is not None:
                with torch.no_grad():
                    delta.copy_(start + (delta - start).clamp(-self.bound, self.bound))

        passes = self.steps if alone is not None else self.epochs
        figures = in_epochs("fine-tuning", facts, losses, step, passes, self.batch_size, self.stop, self.seed)
        return delta.detach(), figures


def _projected_step(optimiser: torch.optim.Optimizer, delta: Tensor, within: Projection) -> None:
    """A step along the projected gradient; Adam scales entry by entry, so its step is projected once more."""
    assert delta.grad is not None
    delta.grad = within(delta.grad)
    held = delta.detach().clone()
    optimiser.step()
    with torch.no_grad():
        delta.copy_(held + within(delta - held))
