"""Editing by shifting: a rank-one update from one forward, without a gradient.

Katz, Belinkov, Geva and Wolf 2024, "Backward Lens: Projecting Language Model Gradients into the Vocabulary Space",
section 7 ("forward pass shifting").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel, LowRankEdit, Origin
from corrigenda.prompts import encode, encode_target
from corrigenda.settings.checked import Positive, checked
from editing.editor import FactRefusedError, refusing_long, require_room, require_targets
from editing.registry import register
from editing.shared.directions import raising
from editing.shared.layers import OneLayer
from editing.shared.outliers import WHY, norms_of, outliers, reading_states
from editing.shared.together import together
from editing.spaces import Number, Space


@register(
    "shift",
    paper="Katz et al. 2024, Backward Lens: Projecting Language Model Gradients into the Vocabulary Space",
    aim="a look at what one step of a gradient writes",
    space=Space("one", (Number("strength", 0.1, 3.0, log=True),)),
    unranked="shows what one step of a gradient writes, with a strength that is tuned on no model",
)
@dataclass(frozen=True)
@checked
class Shift(OneLayer):
    """Shifts the values that a prompt selects towards the embedding of its new object.

    The gradient of V at the token before the object is, up to a factor, the outer product of the coefficients m there
    and of a vector near the object's embedding d (`locate.lens.backward`). So the update is made of these two, with no
    way back:

        delta V = eta m^T d           eta = strength |h| / (|m|^2 |d|)

    at one layer. The paper gives eta itself (0.24 at layer 35 of GPT2-XL's 48); here it follows from `strength`, how
    large a step the residual stream h takes where the object is predicted, relative to its own length, so that one
    number serves all models. d is the unembedding row of the object's token, taken back through the final norm
    (`editing.shared.directions.raising`), of length one. An object of several tokens has one outer product for each,
    with the earlier ones given, as its gradient has.

    The coefficients of a prompt's last token have much in common in all prompts, so that the edit is heard by others:
    it is a look at what a gradient does, and a cheap baseline.

    Attributes:
        layer: the layer to edit; None for the paper's share of the depth.
        strength: see above.
    """

    name: ClassVar[str] = "shift"
    depth: ClassVar[float] = 35 / 48  # the paper's layer of GPT2-XL

    layer: int | None = None
    strength: Positive = 0.5

    @together
    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> LowRankEdit:
        """An update of one layer, of a rank of one for each token of the facts' objects.

        Raises:
            EditRefusedError: a fact asks for an erasure, or is longer than an edit is computed on.
            IndexError: the model has no such layer.
        """
        require_targets("shift", facts)
        lm.architecture.require_causal("shift")
        layer = self.resolved_layer(lm)
        parts = [self._factors(lm, fact, layer) for fact in facts]
        left = torch.cat([part[0] for part in parts], dim=1)
        right = torch.cat([part[1] for part in parts])
        report = [{"layer": layer, "tokens": len(part[1])} for part in parts]
        return LowRankEdit.of(lm, Origin.of(lm, self, facts, report), {layer: (left, right)})

    def _factors(self, lm: LanguageModel, fact: Fact, layer: int) -> tuple[Tensor, Tensor]:
        """The factors of one fact's update, (d_ffn, token) and (token, d_model)."""
        assert fact.target_new is not None
        prompt = lm.reads(fact.statement)
        ids = encode(lm.tokenizer, prompt)
        with refusing_long(fact):
            target = encode_target(lm.tokenizer, prompt, fact.target_new, fact.joint)
        require_room(lm, fact, len(ids) + len(target))
        batch = lm.batch([[*ids, *target[:-1]]], [len(ids)])
        at = torch.zeros_like(batch.input_ids, dtype=torch.bool)
        at[0, len(ids) - 1 :] = True
        with lm.memory(layer).capture(at) as seen, reading_states(lm, [layer]) as after:
            [directions] = raising(lm, batch, at, [torch.tensor(target)])
        [norms] = norms_of(after, batch.lengths.tolist())
        if outliers([norms], [len(ids) - 1])[0]:
            raise FactRefusedError(fact, WHY)
        coefficients, lengths = seen.coefficients.detach().float(), norms[0, len(ids) - 1 :]
        steps = self.strength * lengths / coefficients.square().sum(1)
        return coefficients.T, steps[:, None] * directions
