"""HoReN: a codebook of unit keys and learned values, asked after one step of a Hopfield network.

Fang, Xie and Ran 2026, "HoReN: Normalized Hopfield Retrieval for Large-Scale Sequential Model Editing"
(arXiv 2605.08143).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from corrigenda import Edit, Fact, HopfieldEdit, LanguageModel, Origin
from corrigenda.edits.codebook import Replace
from corrigenda.edits.hopfield import direction, in_last
from corrigenda.settings.checked import AtLeastOne, NotNegative, Positive, Share, ShareAboveZero, checked
from editing.editor import EditRefusedError, FactRefusedError, require_targets
from editing.memory_based.grace import learn_value
from editing.registry import register
from editing.shared.entries import EntriesState, reports_after
from editing.shared.epochs import in_turn
from editing.shared.extending import Extendable, check_previous, state_of, without
from editing.shared.layers import OneLayer
from editing.shared.together import together
from editing.shared.training_rows import Rows, RowsForward, SideLayer, target_rows
from editing.spaces import Number, Space


class HorenState(EntriesState):
    """What HoReN goes on from, besides the codebook."""

    kind: ClassVar[str] = "horen"


@register(
    "horen",
    paper="Fang et al. 2026, HoReN: Normalized Hopfield Retrieval for Large-Scale Sequential Model Editing",
    aim="beside the weights: a value for each fact, asked by the direction of the prompt's last part",
    space=Space("one", (Number("threshold", 0.5, 0.99), Number("lr", 0.05, 2.0, log=True))),
    unranked="it has not been run there yet",
)
@dataclass(frozen=True)
@checked
class Horen(OneLayer, Extendable[HopfieldEdit]):
    """Normalized Hopfield retrieval.

    The key of a fact is the direction of the coefficients that enter the layer's value matrix, averaged over the last
    `part` of its prompt's tokens. `HopfieldEdit` says when an entry answers. Its value is learned by gradient, as
    GRACE's is (`editing.memory_based.grace.learn_value`): -log P of the target and the end token after the bare prompt.
    Facts do not meet while they are learned. A later fact about the same thing takes the place of the earlier entry.

    What departs from the authors: each fact has an entry of its own (their code can widen one for facts that are near
    and answer alike); the value stands from the prompt's last token on (theirs at the last token alone,
    ``replace=last``), starts from the FFN's output (theirs at random), is done when its loss is low, and has a rate
    relative to that output (theirs is 1); queries are of the last half of the prompt (their settings for Llama 3.1 name
    the last 60 %); the layer is 0.84 of the depth (theirs 29 of 32 there).

    Attributes:
        layer: the layer; None for 0.84 of the depth.
        alpha: see `HopfieldEdit`.
        beta: see there.
        threshold: see there.
        part: see there.
        steps: gradient steps for a value, at most.
        lr: Adam's learning rate, in units of the root mean square of the FFN output that the value starts from.
        stop: the loss per token at which a value is done.
        replace: at which tokens the value stands (`corrigenda.edits.codebook.Replace`).
        name: what results call it.
    """

    depth: ClassVar[float] = 0.84

    layer: int | None = None
    alpha: Share = 0.1
    beta: Positive = 20.0
    threshold: Share = 0.85
    part: ShareAboveZero = 0.5
    steps: AtLeastOne = 50
    lr: Positive = 0.5
    stop: NotNegative = 0.05
    replace: Replace = "onwards"
    name: str = "horen"

    @together
    def extend(self, lm: LanguageModel, previous: Edit | None, facts: Sequence[Fact]) -> HopfieldEdit:
        """The codebook of an earlier edit with further facts; the earlier edit itself stays as it is.

        Raises:
            EditRefusedError: a fact asks for an erasure, or no fact is left; or `previous` is of another kind, model,
                layer, `part` or `replace`, or has no state.
            FactRefusedError: a fact's prompt has one token, or is too long; or its loss is not finite.
            IndexError: the model has no such layer.
        """
        require_targets(self.name, facts)
        lm.architecture.require_decoder(self.name)
        layer = self.resolved_layer(lm)
        own = check_previous(self.name, lm, [layer], previous, HopfieldEdit)
        state = HorenState(()) if own is None else state_of(self.name, own, HorenState)
        if own is not None and (own.part, own.replace) != (self.part, self.replace):
            raise EditRefusedError(
                f"{self.name}: the edit to go on from was made with part={own.part} and replace={own.replace!r}, this "
                f"editor has part={self.part} and replace={self.replace!r}"
            )
        kept = state.kept(facts)
        with without(lm, previous):
            side = SideLayer(lm, layer)
            rows = self._rows(side, facts)
            keys = [_key(row, self.part) for row in rows]
            asked = list(zip(rows, facts, strict=True))
            learned = [self._learn(side, row, fact) for row, fact in in_turn(asked, self.name)]
        values = [value for value, _ in learned]
        parts = torch.stack(keys), torch.stack(values)
        if own is not None:
            parts = torch.cat([own.keys[kept], parts[0]]), torch.cat([own.values[kept], parts[1]])
        origin = Origin.of(lm, self, *reports_after(own, facts, [report for _, report in learned]))
        return HopfieldEdit(
            origin,
            layer,
            lm.memory(layer).path,
            *parts,
            alpha=self.alpha,
            beta=self.beta,
            threshold=self.threshold,
            part=self.part,
            replace=self.replace,
            state=state.followed(kept, facts),
        )

    def _rows(self, side: SideLayer, facts: Sequence[Fact]) -> list[Rows]:
        """Of each fact its prompt, target and end token.

        Raises:
            FactRefusedError: the state at the prompt's last token is an outlier or not finite, or see `target_rows`.
        """
        whole = side.run([target_rows(side.lm, fact) for fact in facts])
        whole.require_finite(facts)
        whole.require_ordinary(facts)
        return [whole.pick([number]) for number in range(len(facts))]

    def _learn(self, side: SideLayer, row: Rows, fact: Fact) -> tuple[Tensor, dict[str, Any]]:
        """The value of a fact, (d_model,), on the CPU, and its report."""
        last = row.coefficients[0][row.prompts[0] - 1].to(side.memory.weight.device)
        start = side.memory.read(last[None])[0].float()
        settings = self.replace, self.steps, self.lr, self.stop
        value, losses = learn_value(RowsForward(side, row), side, start, *settings)
        if not math.isfinite(losses[-1]):
            raise FactRefusedError(fact, "the loss is not finite")
        return value.cpu(), {"steps": len(losses) - 1, "loss": min(losses), "step_losses": losses}


def _key(row: Rows, part: float) -> Tensor:
    """The key of a prompt, (d_ffn,), of length 1, on the CPU."""
    length = row.prompts[0]
    places = torch.arange(1, length + 1)[None]
    return direction(row.coefficients[0][None, :length].cpu(), in_last(part, places, torch.tensor([[length]])))[0]
