"""Steering by a feature of a dictionary: a multiple of its row of the decoder joins the FFN's output.

Steering by features of dictionaries is of Templeton et al. 2024, "Scaling Monosemanticity". That the feature is chosen
by what it does to the facts' new objects, to first order, is this project's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from corrigenda import CoefficientEdit, Fact, LanguageModel, Origin
from corrigenda.dictionaries.dictionary import FIRST, FeatureDictionary
from corrigenda.dictionaries.layouts import dictionary_for
from corrigenda.edits.coefficients import ScaledAt
from corrigenda.forward.gradients import OutputGradients, output_gradients
from corrigenda.models.alone import one_thread
from corrigenda.prompts import encode_target
from corrigenda.settings.checked import Count, NotNegative, checked
from editing.editor import EditRefusedError, FactRefusedError, refusing_long, require_room, require_targets
from editing.registry import register
from editing.shared.together import together
from editing.spaces import Number, Space

EXACT = 1e-3
"""The share of the row by which what is added may differ from it."""


@register(
    "feature",
    paper="Templeton et al. 2024, Scaling Monosemanticity",
    aim="steers by a feature of a dictionary, in every prompt",
    space=Space("none", (Number("strength", 0.1, 10.0, log=True),)),
    unranked="it steers every prompt alike",
)
@dataclass(frozen=True)
@checked
class FeatureSteering:
    """A multiple of one feature's row of the decoder joins the output of the dictionary's FFN.

    The edit drives the layer's coefficients: of all changes c with c V = the multiple, by the least. What a layer's
    values do not span cannot be added so.

    Attributes:
        dictionary: its folder, or a hub's id (`corrigenda.dictionaries.layouts.read_dictionary`).
        layer: of the FFN, where the folder has several.
        feature: its number; None for the one whose row raises the mean log-probability of the facts' new objects most,
            by the gradient at the tokens at which the edit acts, but the first of a prompt.
        strength: the length of what is added, in lengths of the FFN's output (the mean over these tokens).
        positions: as in `CoefficientEdit`.
    """

    name: ClassVar[str] = "feature"

    dictionary: str | None = None
    layer: int | None = None
    feature: Count | None = None
    strength: NotNegative = 1.0
    positions: ScaledAt = "all"

    @one_thread
    def prepare(self, lm: LanguageModel) -> None:
        """Looks for the dictionary, so that its lack is said at once.

        Raises:
            IndexError: it has no such feature.
            ValueError: as `dictionary_for` says.
        """
        self._read(lm)

    @one_thread
    @together
    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> CoefficientEdit:
        """One edit for all facts.

        Raises:
            EditRefusedError: there is no fact, one asks for an erasure, the layer's values do not span the row, or the
                model gives no finite numbers.
            FactRefusedError: a fact is longer than the model reads.
        """
        require_targets(self.name, facts)
        one = self._read(lm)
        rows = normalize(one.decoder.float().cpu(), dim=1)
        found = [self._at(lm, one.layer, fact) for fact in facts]
        gains = torch.stack([rows @ each.gradients.float().sum(0) for each in found])
        feature = int(gains.mean(0).argmax()) if self.feature is None else self.feature
        length = torch.cat([each.outputs.float().norm(dim=1) for each in found]).mean()
        amounts = self._driving(lm, one, self.strength * float(length) * rows[feature])
        report = [{"feature": feature, "gain": float(gain)} for gain in gains[:, feature]]
        scales = {one.layer: (torch.arange(len(amounts)), amounts)}
        return CoefficientEdit(Origin.of(lm, self, facts, report), scales, self.positions, "add")

    def _read(self, lm: LanguageModel) -> FeatureDictionary:
        one = dictionary_for(lm, self.name, self.dictionary, self.layer)
        if self.feature is not None and self.feature >= one.n_features:
            raise IndexError(f"{self.name}: feature={self.feature}: {one.name} has features 0 to {one.n_features - 1}")
        return one

    def _at(self, lm: LanguageModel, layer: int, fact: Fact) -> OutputGradients:
        """The FFN's output at the tokens that count, and how the new object's log-probability goes with it."""
        with refusing_long(fact):
            ids = lm.tokens(fact.statement)
            assert fact.target_new is not None
            target = encode_target(lm.tokenizer, lm.reads(fact.statement), fact.target_new, fact.joint)
            require_room(lm, fact, len(ids) + len(target))
        first = FIRST if self.positions == "all" else len(ids) - 1
        if len(ids) <= first:
            raise FactRefusedError(fact, f"{self.name}: its prompt is one token, and there no dictionary looks")
        batch = lm.batch([[*ids, *target[:-1]]], [len(ids)])
        at = torch.zeros_like(batch.input_ids, dtype=torch.bool)
        at[:, first:] = True

        def said(logits: Tensor) -> Tensor:
            logs = logits[-len(target) :].float().log_softmax(-1)
            return logs.gather(1, torch.tensor(target, device=logs.device)[:, None]).mean()

        found = output_gradients(lm, batch, at, [layer], said)[layer]
        if not bool(found.gradients.isfinite().all() and found.outputs.isfinite().all()):
            raise FactRefusedError(fact, f"{self.name}: outputs or gradients at layer {layer} are not finite")
        return found

    def _driving(self, lm: LanguageModel, one: FeatureDictionary, wanted: Tensor) -> Tensor:
        """The least change of coefficients, (d_ffn,), that adds a vector, (d_model,), to the FFN's output."""
        values = lm.memory(one.layer).values.double().cpu()
        amounts = torch.linalg.lstsq(values.T, wanted.double()[:, None], driver="gelsd").solution[:, 0]
        left = float((amounts @ values - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30))
        if not left <= EXACT:
            raise EditRefusedError(
                f"{self.name}: the values of layer {one.layer} of {lm.name} span all but {100 * left:.2g} % of the "
                "feature's row; take another feature"
            )
        return amounts.float()
