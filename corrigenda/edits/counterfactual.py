"""`CounterfactualEdit`: statements that a prompt is read behind, by the model with a low-rank change beside it.

Mitchell, Lin, Bosselut, Manning and Finn 2022, "Memory-Based Model Editing at Scale".
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from corrigenda.edits.edit import Editable
from corrigenda.edits.hooked import HookedEdit
from corrigenda.edits.origin import require_finite
from corrigenda.edits.retrieval import RetrievalEdit
from corrigenda.edits.routed import RoutedLayer, answering, prompt_text
from corrigenda.models.routes import MAIN, Passage
from corrigenda.prompts import encode


class PlacedLayer(NamedTuple):
    """What a layer adds, on the model's device, and when: left (d_ffn, rank), right (rank, d_model).

    `shown` are the statements, as the model's tokenizer gives them back.
    """

    left: Tensor
    right: Tensor
    shown: tuple[str, ...]
    text: Callable[[list[int]], str]


@dataclass(frozen=True, eq=False)
class CounterfactualLayer(RoutedLayer):
    """The low-rank change of one layer's values, in the rows whose prompt has one of the statements.

    It is `left`, (d_ffn, rank), times `right`, (rank, d_model); `shown` gives the statements as a model's tokenizer
    gives them back.
    """

    layer: int
    module: str
    left: Tensor
    right: Tensor
    shown: Callable[[Editable], tuple[str, ...]]
    kind: ClassVar[str] = "counterfactual"
    saved_tensors: ClassVar[tuple[str, ...]] = ("left", "right")

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self.left), self.right.shape[1]

    def _on(self, lm: Editable) -> PlacedLayer:
        left, right = super()._on(lm)
        return PlacedLayer(left, right, self.shown(lm), lm.text)

    def _route(self, placed: PlacedLayer, coefficients: Tensor, passage: Passage) -> Tensor:
        texts = (prompt_text(self.kind, placed.text, passage, row) for row in range(len(coefficients)))
        return torch.tensor([0 if any(one in text for one in placed.shown) else MAIN for text in texts])

    def _answer(
        self, placed: PlacedLayer, coefficients: Tensor, output: Tensor, memory: int, passage: Passage
    ) -> Tensor:
        return (output.float() + coefficients.float() @ placed.left @ placed.right).to(output.dtype)


@dataclass(frozen=True, eq=False)
class CounterfactualEdit(HookedEdit, RetrievalEdit):
    """Puts the nearest statement before a prompt in its scope, and reads both with a low-rank change of some layers.

    With z = the encoder's vector of a prompt, z_j that of statement j, and S the scope classifier:

        s_j = exp(-|z S - z_j S|^2)            j* = argmax over j of s_j
        s_j* > threshold:  the prompt is read behind statement j*, and there FFN_l(x) = m (V_l + A_l B_l)

    The low-rank change acts at every token of the rows in whose prompt one of the statements stands, which is decided
    when the prompt is seen (`corrigenda.edits.routed`). No output of another row is touched.

    Attributes:
        texts: the statements, each with what stands between it and the prompt.
        keys: z_j, of length 1, (text, width), in float32 on the CPU, as other tensors are.
        threshold: a share, from 0 to 1.
        scope: S, (width, n).
        layers: where something is added.
        modules: of each layer the name of the module that holds its values.
        left: A, (layer, d_ffn, rank).
        right: B, (layer, rank, d_model).

    `RetrievalEdit` has the others; `k` is 1, `by_subject` False and `index` "exact".

    Raises:
        EditRefusedError: a tensor is not finite.
        ValueError: shapes do not fit one another, or the threshold is no share.
    """

    scope: Tensor = field(kw_only=True)
    layers: tuple[int, ...] = field(kw_only=True)
    modules: tuple[str, ...] = field(kw_only=True)
    left: Tensor = field(kw_only=True)
    right: Tensor = field(kw_only=True)
    kind: ClassVar[str] = CounterfactualLayer.kind
    elsewhere: ClassVar[str] = "it looks up a statement for each prompt, and reads some prompts only with its change"
    saved_tensors: ClassVar[tuple[str, ...]] = ("keys", "scope", "left", "right")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("scope", "left", "right"):
            object.__setattr__(self, name, getattr(self, name).detach().float().cpu())
        for name in ("layers", "modules"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        n, width = len(self.layers), self.keys.shape[1]
        fits = (
            (self.scope.ndim, self.left.ndim, self.right.ndim) == (2, 3, 3)
            and len(self.scope) == width
            and len(self.left) == len(self.right) == len(self.modules) == n
            and self.left.shape[2] == self.right.shape[1]
        )
        if not fits or self.threshold < 0:
            shapes = ", ".join(f"{name} {tuple(getattr(self, name).shape)}" for name in self.saved_tensors)
            raise ValueError(
                f"a counterfactual edit of {n} layers, threshold={self.threshold!r}, has parts that do not fit one "
                f"another, or a negative threshold: {shapes}"
            )
        require_finite(self.kind, {name: getattr(self, name) for name in ("scope", "left", "right")})

    def near(self, lm: Editable, prompt: str) -> list[int]:
        """The number of the statement in whose scope a prompt is; none, where it is in that of none."""
        query = self._encoder(lm, [prompt]) @ self.scope
        best = (self._mapped - query).square().sum(1).neg().exp().max(0)
        return [int(best.indices)] if float(best.values) > self.threshold else []

    def decides(self, lm: Editable) -> bool:
        """Always."""
        return True

    @cached_property
    def _mapped(self) -> Tensor:
        return self.keys @ self.scope

    @cached_property
    def _parts(self) -> tuple[CounterfactualLayer, ...]:
        read: WeakKeyDictionary[Editable, tuple[str, ...]] = WeakKeyDictionary()

        def shown(lm: Editable) -> tuple[str, ...]:
            if lm not in read:
                read[lm] = tuple(lm.text(encode(lm.tokenizer, text.strip())) for text in self.texts)
            return read[lm]

        each = zip(self.layers, self.modules, self.left, self.right, strict=True)
        return tuple(CounterfactualLayer(*one, shown) for one in each)

    def _hooks(self, lm: Editable) -> AbstractContextManager[None]:
        return answering(lm, self._parts)

    def _check(self, lm: Editable) -> None:
        super()._check(lm)
        for part in self._parts:
            part._check(lm)

    def _summary(self) -> str:
        return (
            f"{len(self.texts)} statements; that in whose scope a prompt is, by {self.encoder} above "
            f"{self.threshold:.3g}, stands before it, and is read with a change of rank {self.left.shape[2]} of layers "
            f"{list(self.layers)}"
        )

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"layers": list(self.layers), "modules": list(self.modules)}
