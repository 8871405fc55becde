"""One edit of an update's factors, and of those of the edit that it goes on from."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from corrigenda import LanguageModel, LowRankEdit, Origin, ValueEdit, WeightEdit
from editing.locate_then_edit.least_squares import Factors


def joined(
    lm: LanguageModel, own: WeightEdit | None, factors: Mapping[int, Factors], origin: Origin
) -> LowRankEdit | ValueEdit:
    """An edit of the new factors, and of those of the edit that it goes on from.

    Factors are kept while their rank is at most half of d_ffn.
    """
    if own is None or isinstance(own, LowRankEdit):
        both = dict(factors) if own is None else {n: _beside(own.factors[n], pair) for n, pair in factors.items()}
        if all(2 * left.shape[1] <= left.shape[0] for left, _ in both.values()):
            return LowRankEdit.of(lm, origin, both)
    whole = {layer: left @ right for layer, (left, right) in factors.items()}
    if own is not None:
        whole = {layer: own.delta(layer).double() + delta for layer, delta in whole.items()}
    return ValueEdit.of(lm, origin, whole)


def _beside(one: Factors, other: Factors) -> Factors:
    """The factors of the sum of two changes."""
    return torch.cat([one[0].double(), other[0]], 1), torch.cat([one[1].double(), other[1]])
