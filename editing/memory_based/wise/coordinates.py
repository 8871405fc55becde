"""What all edits of a side memory at one layer share: its coordinates, and what unrelated prompts do there."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.moments.second_moment import second_moment
from editing.memory_based.wise.settings import WiseSettings
from editing.memory_based.wise.unrelated import Kinds, unrelated_coefficients
from editing.shared.training_rows import Rows


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Coordinates and scales of a layer; see `editing.memory_based.wise.wise.Wise`.

    Attributes:
        whitening: W, (d_ffn, d_ffn); None for the identity.
        unrelated: by kind, W^T m of each unrelated prompt's tokens, (its tokens, d_ffn).
        unit: u, the median over unrelated prompts of the mean || m V ||.
        spread: s, the 95 % quantile of the same over its median.
        size: what the norm of Theta is measured by.
        key: what it was made from.
    """

    whitening: Tensor | None
    unrelated: Kinds
    unit: float
    spread: float
    size: float
    key: Hashable

    @classmethod
    @torch.no_grad()
    def of(cls, lm: LanguageModel, layer: int, settings: WiseSettings, known: Coordinates | None = None) -> Coordinates:
        """Those of a layer; the expensive parts are kept on disk, and some may be known already."""
        key = (lm.cache_key, layer, settings.whiten, settings.ridge, settings.text, settings.unrelated)
        if known is not None and known.key == key:
            return known
        values = lm.memory(layer).values
        V = lm.edits.untouched.get(layer, values).float().cpu()
        kinds = unrelated_coefficients(lm, layer, settings.unrelated)
        norms = torch.stack([(m @ V).norm(dim=1).mean() for prompts in kinds.values() for m in prompts])
        unit = float(norms.median())
        spread = float(norms.quantile(0.95)) / unit
        if not settings.whiten:
            return cls(None, kinds, unit, spread, float(V.norm()), key)
        moment = second_moment(lm, layer, settings.text)
        W = moment.whitening(settings.ridge).float()
        # The root of E || m V ||^2.
        output = float(((V.double().T @ moment.matrix) * V.double().T).sum().clamp(min=0).sqrt())
        # Theta's norm is the root mean square of || m (V' - V) || over text, but for the ridge.
        found = cls(W.to(values.device), {}, unit, spread, output, key)
        turned = {kind: found.turned(prompts) for kind, prompts in kinds.items()}
        return dataclasses.replace(found, unrelated=turned)

    def whitened(self, rows: Rows) -> Rows:
        """Rows with their coefficients in these coordinates."""
        return dataclasses.replace(rows, coefficients=tuple(self.turned(rows.coefficients)))

    def delta(self, theta: Tensor) -> Tensor:
        """V' - V, (d_ffn, d_model), for Theta."""
        return theta if self.whitening is None else self.whitening.to(theta.device) @ theta

    def turned(self, prompts: Sequence[Tensor]) -> list[Tensor]:
        """Prompts' coefficients in these coordinates."""
        return list(prompts) if self.whitening is None else [m @ self.whitening.cpu() for m in prompts]
