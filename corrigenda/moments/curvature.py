"""K-FAC: which changes of a layer's values the model's answers to running text are most sensitive to.

The Gauss-Newton matrix of the loss over text, as a function of V, is approximated by a Kronecker product (Martens and
Grosse 2015, "Optimizing Neural Networks with Kronecker-factored Approximate Curvature"; for weights that all tokens
share, Eschenhagen et al. 2023, "expand"):

    A (x) G,    A = E[m m^T] of the coefficients,    G = E[g g^T]

g is the gradient, at a token, of the loss of that and all later next tokens with respect to the FFN's output. A is the
second moment that closed forms use, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from corrigenda.forward.gradients import output_gradients
from corrigenda.language_model import LanguageModel
from corrigenda.models.memory import FFNMemory
from corrigenda.moments.second_moment import SecondMoment, kept_moment, second_moment
from corrigenda.moments.sums import SquareSum
from corrigenda.moments.text import Text
from corrigenda.system.files import cache_folder
from corrigenda.system.progress import track

ROWS = 8
"""Sequences run at once; the logits of all their tokens are needed."""

TOKENS = 8
"""G is taken over so many tokens for each of its rows, if the text has them; each costs a backward."""

Labels = Literal["sampled", "text"]
"""The next tokens of the loss. ``sampled``: drawn, at each token, from the model's own prediction; the mean of g g^T is
then the Gauss-Newton matrix's factor (Martens 2020). ``text``: the text's own (the empirical Fisher matrix); nearly the
same on text that the model itself wrote."""


@dataclass(frozen=True, eq=False)
class Curvature:
    """The factors of one layer: A of the coefficients, (d_ffn, d_ffn), and G of the gradients, (d_model, d_model)."""

    coefficients: SecondMoment
    gradients: SecondMoment

    @cached_property
    def eigenvalues(self) -> Tensor:
        """Those of A (x) G but for its scale: the products of the factors' own, (d_ffn, d_model), float64."""
        left, right = (factor.eigen[0].clamp(min=0) for factor in (self.coefficients, self.gradients))
        return left[:, None] * right

    def low(self, share: float) -> LowCurvature:
        """The directions without those of the largest eigenvalues, as few as hold this share of the trace at least.

        0 leaves all directions, 1 those only that the text never uses. Raises ValueError: it is no share.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"share={share} must be a share of the trace, from 0 to 1")
        size, _ = self.eigenvalues.flatten().sort(descending=True)
        held = size.cumsum(0)
        n_high = int((held < share * held[-1]).sum()) + 1
        free = (
            self.eigenvalues < size[min(n_high, len(size)) - 1]
            if share > 0
            else torch.ones_like(self.eigenvalues, dtype=torch.bool)
        )
        return LowCurvature(self.coefficients.eigen[1].float(), self.gradients.eigen[1].float(), free)


@dataclass(frozen=True, eq=False)
class LowCurvature:
    """Changes of V to which the text is hardly sensitive: a subspace, and the projection on it.

    No matrix of (d_ffn d_model)^2 entries is formed: in the factors' eigenvectors the projection is a mask.

    Attributes:
        left: A's eigenvectors as columns, (d_ffn, d_ffn), float32.
        right: G's, (d_model, d_model), float32.
        free: (d_ffn, d_model), True for the pairs of eigenvectors in the subspace.
    """

    left: Tensor
    right: Tensor
    free: Tensor

    def project(self, change: Tensor) -> Tensor:
        """The part of a change of V, (d_ffn, d_model), in the subspace; in the change's precision, on its device."""
        left, right = self.left.to(change), self.right.to(change)
        return left @ ((left.T @ change @ right) * self.free.to(change.device)) @ right.T


def curvature(lm: LanguageModel, layer: int, text: Text | None = None, labels: Labels = "sampled") -> Curvature:
    """The factors of one layer, taken from the disk, or computed and kept there; see `second_moments`.

    `labels` are the next tokens of the loss; G is taken over the text's first sequences. Raises IndexError: the model
    has no such layer.
    """
    text = (text or Text()).fitting(lm)
    memory = lm.memory(layer)
    sequences = min(text.n_sequences, -(-TOKENS * memory.d_model // text.length))
    name = f"{lm.cache_key}-layer{memory.layer}-{text.key(lm)}-gradients-{sequences}-{labels}.safetensors"
    path = cache_folder() / "moments" / name

    def computed() -> None:
        _compute(lm, memory, path, text, sequences, labels)

    if not path.is_file():
        computed()
    return Curvature(second_moment(lm, memory.layer, text), kept_moment(lm, path, memory.layer, text, computed))


def _compute(lm: LanguageModel, memory: FFNMemory, path: Path, text: Text, n_sequences: int, labels: Labels) -> None:
    """Runs the text's beginning forward and back once, from the first batch that the sum lacks."""
    layer, total = memory.layer, SquareSum(memory.d_model, path)
    with lm.edits.suspended():
        sequences = text.sequences(lm)[:n_sequences]
        batches = [sequences[i : i + ROWS] for i in range(0, len(sequences), ROWS)]
        for number, rows in enumerate(track(batches, f"Curvature of layer {layer}")):
            if number < total.done:
                continue
            # Every batch has its own random numbers, so that the factor does not depend on where it was interrupted.
            total.add(_gradients(lm, layer, rows, labels, torch.Generator().manual_seed((text.seed << 20) + number)))
    total.finish()


def _gradients(
    lm: LanguageModel, layer: int, rows: Sequence[Sequence[int]], labels: Labels, generator: torch.Generator
) -> Tensor:
    """The gradients g at each token that has a next one, (token, d_model)."""
    batch = lm.batch(rows)
    at = batch.attention_mask.bool().roll(-1, 1)
    at[:, -1] = False
    own = batch.input_ids.roll(-1, 1)[at]

    def loss(logits: Tensor) -> Tensor:
        logits = logits.float()
        if labels == "text":
            return nn.functional.cross_entropy(logits, own.to(logits.device), reduction="sum")
        drawn = torch.multinomial(logits.detach().softmax(-1).cpu(), 1, generator=generator)[:, 0]
        return nn.functional.cross_entropy(logits, drawn.to(logits.device), reduction="sum")

    return output_gradients(lm, batch, at, [layer], loss)[layer].gradients
