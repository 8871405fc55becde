"""Generalized cross-attention: an FFN is attention to a knowledge base, folded into weights.

With entries E (n, d_E), which all layers share, a layer with hidden states H (N, d_model) computes

    C = f(H W_Q (E W_K)^T / sqrt(d_k) + B1(E)) (E W_V) + b2

(Guo & Chen 2025, "Decoupling Knowledge and Reasoning in Transformers: A Modular Architecture with Generalized
Cross-Attention"). Nothing in it but H depends on the text. So E, the projections and the thresholds fold into the
weights of a plain FFN, and an FFN unfolds into them (`corrigenda.knowledge.unfolding`):

    W1 = W_Q (E W_K)^T / sqrt(d_k)      b1 = B1(E)      W2 = E W_V

f is ReLU in the paper, and any activation here. A gated FFN has two matches with the entries, and their answers are
multiplied: m = f(S) * S'.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

Activation = Callable[[Tensor], Tensor]
"""f, applied to each score by itself."""


@dataclass(frozen=True, eq=False)
class Match:
    """How a layer matches hidden states with entries: S = H W_Q (E W_K)^T / sqrt(d_k) + B1(E).

    B1(E) is read off the entries by one more column: B1(E) = E b. That is no restriction, since an entry may hold its
    threshold for a layer as one of its numbers.

    Attributes:
        query: W_Q, (d_model, d_k).
        key: W_K, (d_E, d_k).
        threshold: b, (d_E,).
    """

    query: Tensor
    key: Tensor
    threshold: Tensor

    def __post_init__(self) -> None:
        if self.query.ndim != 2 or self.key.ndim != 2 or self.query.shape[1] != self.key.shape[1]:
            raise ValueError(
                f"a match needs W_Q (d_model, d_k) and W_K (d_E, d_k), got {tuple(self.query.shape)} and "
                f"{tuple(self.key.shape)}"
            )
        if self.threshold.shape != self.key.shape[:1]:
            raise ValueError(f"a match of d_E = {len(self.key)} needs as many b, got {tuple(self.threshold.shape)}")

    def scores(self, hidden: Tensor, entries: Tensor) -> Tensor:
        """S, (..., d_model) with (n, d_E) -> (..., n)."""
        scale = math.sqrt(self.key.shape[1])
        return (hidden @ self.query) @ (entries @ self.key).T / scale + entries @ self.threshold

    def fold(self, entries: Tensor) -> tuple[Tensor, Tensor]:
        """W1 = W_Q (E W_K)^T / sqrt(d_k), (d_model, n), and b1 = B1(E), (n,)."""
        scale = math.sqrt(self.key.shape[1])
        return self.query @ (entries @ self.key).T / scale, entries @ self.threshold


@dataclass(frozen=True, eq=False)
class FoldedFFN:
    """An FFN as a function of its input: m = f(x W1 + b1), or f(x W1 + b1) * (x W1' + b1'); FFN(x) = m W2 + b2.

    Attributes:
        first: W1, (d_model, n), and b1, (n,).
        values: W2, (n, d_model).
        bias: b2, (d_model,); None for none.
        activation: f.
        factor: W1' and b1' of a gated FFN; None for a plain one.
    """

    first: tuple[Tensor, Tensor]
    values: Tensor
    bias: Tensor | None
    activation: Activation
    factor: tuple[Tensor, Tensor] | None = None

    def scores(self, hidden: Tensor) -> Tensor:
        """The scores x W1 + b1, (..., d_model) -> (..., n)."""
        weight, threshold = self.first
        return hidden @ weight + threshold

    def coefficients(self, hidden: Tensor) -> Tensor:
        """m, (..., d_model) -> (..., n)."""
        return _coefficients(self.activation, self.scores(hidden), self._factor(hidden))

    def __call__(self, hidden: Tensor) -> Tensor:
        """FFN(x), (..., d_model) -> (..., d_model)."""
        return with_bias(self.coefficients(hidden) @ self.values, self.bias)

    def _factor(self, hidden: Tensor) -> Tensor | None:
        return None if self.factor is None else hidden @ self.factor[0] + self.factor[1]


@dataclass(frozen=True, eq=False)
class CrossAttention:
    """One layer's generalized cross-attention to entries.

    Attributes:
        entries: E, (n, d_E); layers may share it.
        match: what f is applied to.
        value: W_V, (d_E, d_model).
        bias: b2, (d_model,); None for none.
        activation: f.
        factor: the second match of a gated layer; None for a plain one.
    """

    entries: Tensor
    match: Match
    value: Tensor
    bias: Tensor | None
    activation: Activation
    factor: Match | None = None

    def __post_init__(self) -> None:
        if self.entries.ndim != 2:
            raise ValueError(f"entries are (n, d_E), not of shape {tuple(self.entries.shape)}")
        width = self.entries.shape[1]
        read = {"value": self.value, "match": self.match.key}
        if self.factor is not None:
            read["factor"] = self.factor.key
        for name, projection in read.items():
            if len(projection) != width:
                raise ValueError(f"{name} reads entries of {len(projection)} numbers, and these have {width}")

    def coefficients(self, hidden: Tensor) -> Tensor:
        """How much each entry answers, (..., d_model) -> (..., n)."""
        factor = None if self.factor is None else self.factor.scores(hidden, self.entries)
        return _coefficients(self.activation, self.match.scores(hidden, self.entries), factor)

    def __call__(self, hidden: Tensor) -> Tensor:
        """C, (..., d_model) -> (..., d_model)."""
        return with_bias(self.coefficients(hidden) @ (self.entries @ self.value), self.bias)

    def fold(self) -> FoldedFFN:
        """The FFN that computes the same."""
        factor = None if self.factor is None else self.factor.fold(self.entries)
        values = self.entries @ self.value
        return FoldedFFN(self.match.fold(self.entries), values, self.bias, self.activation, factor)


def _coefficients(activation: Activation, scores: Tensor, factor: Tensor | None) -> Tensor:
    answers = activation(scores)
    return answers if factor is None else answers * factor


def with_bias(answer: Tensor, bias: Tensor | None) -> Tensor:
    """An answer with b2 added, where there is one."""
    return answer if bias is None else answer + bias
