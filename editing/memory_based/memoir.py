"""MEMOIR: facts in a second value matrix, of which each fact writes and asks its own rows only.

Wang, Qin, Dimitriadis, Favero and Frossard 2025, "MEMOIR: Lifelong Model Editing with Minimal Overwrite and Informed
Retention for LLMs" (section 3; settings of appendix A).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from corrigenda import Edit, Fact, LanguageModel, Origin
from corrigenda.edits.masked_memory import MaskedMemoryEdit, mean_coefficients, top_masks
from corrigenda.forward.differentiable import differentiable
from corrigenda.models.alone import one_thread
from corrigenda.moments.text import Text
from corrigenda.prompts import put_before
from corrigenda.settings.checked import AtLeastOne, NotNegative, Positive, Seed, ShareAboveZero, checked
from editing.editor import EditRefusedError, FactRefusedError, require_targets
from editing.registry import register
from editing.shared.contexts import contexts
from editing.shared.entries import EntriesState, reports_after
from editing.shared.epochs import in_turn
from editing.shared.extending import Extendable, check_previous, state_of, without
from editing.shared.layers import OneLayer
from editing.shared.together import together
from editing.shared.training_rows import Rows, RowsForward, SideLayer, target_rows
from editing.spaces import Number, Space


class MemoirState(EntriesState):
    """What MEMOIR goes on from, besides the memory."""

    kind: ClassVar[str] = "memoir"


@register(
    "memoir",
    paper="Wang et al. 2025, MEMOIR: Lifelong Model Editing with Minimal Overwrite and Informed Retention for LLMs",
    aim="beside the weights: many facts one after another, and what resembles none of them stays bit for bit",
    space=Space("one", (Number("threshold", 0.2, 0.9), Number("lr", 0.1, 10.0, log=True))),
)
@dataclass(frozen=True)
@checked
class Memoir(OneLayer, Extendable[MaskedMemoryEdit]):
    """Model editing with minimal overwrite and informed retention.

    A residual memory W stands beside a layer's values, FFN(x) = m V + (m * M) W. The mask M of a fact is made of the
    mean coefficients of its prompt (`MaskedMemoryEdit` says how, and when an entry answers). Facts are taken one after
    another. The rows of W that M names are learned by gradient descent on

        mean over contexts of  -log P(new object | context)       (a token)

    over the prompt alone and behind short texts, all under the mask of the prompt alone; a gradient longer than `clip`
    is cut to it. Other rows stay, so that facts with masks of their own never meet. A later fact about the same thing
    takes the place of the earlier one's entry.

    What departs from the authors: a text's first token is left out of the mean and of the answer; the other texts of b
    are pieces of the text that ships (theirs are prompts of a data set); k is a share of d_ffn (theirs is 4,096 of
    14,336); no weight decay (theirs, 1e-5, would take from other facts); a fact is done when its loss is low (their
    code waits until it hardly changes, too).

    Attributes:
        layer: the layer; None for 0.84 of the depth (theirs is 27 of 32).
        active: the share of the layer's coefficients that a mask names.
        threshold: the share of a mask that has to be met.
        steps: gradient steps for a fact, at most.
        lr: the learning rate.
        clip: the longest gradient.
        stop: the loss per token at which a fact is done.
        prefix_lengths: pairs (tokens, number) of texts before the prompt (`editing.shared.contexts`).
        text: where the texts before prompts come from.
        background: the texts over whose tokens b is taken.
        seed: for the permutation and the choice of texts.
        name: what results call it.
    """

    depth: ClassVar[float] = 0.84

    layer: int | None = None
    active: ShareAboveZero = 2 / 7
    threshold: ShareAboveZero = 0.4
    steps: AtLeastOne = 30
    lr: Positive = 1.0
    clip: Positive = 1.0
    stop: NotNegative = 0.02
    prefix_lengths: tuple[tuple[AtLeastOne, AtLeastOne], ...] = ((5, 5), (10, 5))
    text: Text = field(default_factory=Text)
    background: Text = field(default_factory=lambda: Text(tokens=100 * 24, length=24))
    seed: Seed = 0
    name: str = "memoir"

    @one_thread
    def prepare(self, lm: LanguageModel) -> None:
        """Chooses the texts before prompts and the background, which are kept on disk where they are sampled."""
        lm.architecture.require_one_text(self.name)
        contexts(lm, self.prefix_lengths, self.text, self.seed)
        self.background.sequences(lm)

    @together
    def extend(self, lm: LanguageModel, previous: Edit | None, facts: Sequence[Fact]) -> MaskedMemoryEdit:
        """The memory of an earlier edit with further facts; the earlier edit itself stays as it is.

        Raises:
            EditRefusedError: a fact asks for an erasure, or no fact is left; or `previous` is of another kind, model,
                layer or `active`, or has no state.
            FactRefusedError: a fact's prompt has one token, or is too long; or its loss is not finite.
            IndexError: the model has no such layer.
        """
        require_targets(self.name, facts)
        lm.architecture.require_decoder(self.name)
        layer = self.resolved_layer(lm)
        memory = lm.memory(layer)
        active = max(1, round(self.active * memory.d_ffn))
        own = check_previous(self.name, lm, [layer], previous, MaskedMemoryEdit)
        state = MemoirState(()) if own is None else state_of(self.name, own, MemoirState)
        if own is not None and own.active != active:
            raise EditRefusedError(
                f"{self.name}: the edit to go on from has masks of {own.active} indices, active={self.active:.4g} asks "
                f"for {active}; take its active={own.active / memory.d_ffn:.4g}"
            )
        kept = state.kept(facts)
        with without(lm, previous):
            side = SideLayer(lm, layer)
            rows = self._rows(side, facts)
            if own is None:
                delta = torch.zeros(memory.d_ffn, memory.d_model)
                draw = torch.Generator().manual_seed(self.seed)
                background, permutation = self._background(side), torch.randperm(memory.d_ffn, generator=draw)
                masks = torch.zeros(0, memory.d_ffn, dtype=torch.bool)
            else:
                delta, background, permutation = own.delta.clone(), own.background, own.permutation
                masks = own.masks[kept]
            means = torch.cat([_mean(row.coefficients[0], row.prompts[0]) for row in rows])
            found = top_masks(means - background, permutation, active)
            asked = list(zip(facts, rows, found, strict=True))
            report = [self._learn(side, delta, *each) for each in in_turn(asked, self.name)]
        origin = Origin.of(lm, self, *reports_after(own, facts, report))
        parts = delta, torch.cat([masks, found]), background, permutation
        return MaskedMemoryEdit(origin, layer, memory.path, *parts, self.threshold, state=state.followed(kept, facts))

    def _rows(self, side: SideLayer, facts: Sequence[Fact]) -> list[Rows]:
        """Of each fact its rows, the prompt alone first.

        Raises:
            FactRefusedError: the state at the prompt's last token is an outlier, or see `target_rows`.
        """
        lm = side.lm
        texts = contexts(lm, self.prefix_lengths, self.text, self.seed)
        prompts = [[put_before(lm.tokenizer, text, fact.statement) for text in texts] for fact in facts]
        asked = [target_rows(lm, fact, one, end=False) for fact, of in zip(facts, prompts, strict=True) for one in of]
        whole, each = side.run(asked), len(texts)
        alone = whole.pick(range(0, len(whole), each))
        alone.require_ordinary(facts)
        alone.require_finite(facts)
        return [whole.pick(range(number * each, (number + 1) * each)) for number in range(len(facts))]

    def _background(self, side: SideLayer) -> Tensor:
        """b, (d_ffn,): the mean over texts of their mean coefficients."""
        texts = self.background.sequences(side.lm)
        rows = side.run([(ids, len(ids)) for ids in texts])
        return torch.cat([_mean(one, len(one)) for one in rows.coefficients]).mean(0)

    @differentiable()
    def _learn(self, side: SideLayer, delta: Tensor, fact: Fact, rows: Rows, mask: Tensor) -> dict[str, Any]:
        """Learns one fact into the rows of W, (d_ffn, d_model), that its mask names; returns its report."""
        forward = RowsForward(side, rows)
        at, device = forward.changed, forward.coefficients.device
        coefficients = forward.coefficients[at][:, mask.to(device)]
        own = delta[mask].to(device).requires_grad_()
        added = torch.zeros(*at.shape, delta.shape[1], device=device)
        optimiser = torch.optim.SGD([own], lr=self.lr)
        losses: list[float] = []
        for step in range(self.steps + 1):
            with torch.set_grad_enabled(step < self.steps):
                nll = forward.nll(added.index_put((at,), coefficients @ own))
                loss = nll.mean()
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                raise FactRefusedError(fact, "the loss is not finite; the memory is left as it was")
            if losses[-1] < self.stop or step == self.steps:
                break
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_([own], self.clip)
            optimiser.step()
        delta[mask] = own.detach().cpu()
        return {
            "loss": float(nll[0].detach()),
            "loss_in_contexts": losses[-1],
            "step_losses": losses,
            "steps": len(losses) - 1,
        }


def _mean(coefficients: Tensor, prompt: int) -> Tensor:
    """The mean coefficients of a prompt without its first token, (1, d_ffn), from (position, d_ffn)."""
    place = torch.arange(len(coefficients))
    return mean_coefficients(coefficients[None], ((place > 0) & (place < prompt))[None])
