"""`CodebookEdit`: learned FFN outputs for prompts whose last token's key lies near a stored one.

Hartvigsen et al. 2023, "Aging with GRACE: Lifelong Model Editing with Discrete Key-Value Adaptors".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from corrigenda.edits.origin import Origin, require_finite
from corrigenda.edits.routed import RoutedEdit
from corrigenda.edits.state import EditorState
from corrigenda.models.memory import FFNMemory
from corrigenda.models.routes import MAIN, Passage

Replace = Literal["onwards", "last", "prompt", "all"]
"""At which tokens an entry's value takes the place of the FFN's output; `CodebookEdit` says what each means."""


@dataclass(frozen=True, eq=False)
class CodebookEdit(RoutedEdit):
    """A codebook beside the values of one layer.

    The key of a prompt are the coefficients that enter the layer's value matrix at the prompt's last token. If it lies
    within the ball of the nearest entry (Euclidean distance at most `widen` times that entry's radius), the entry's
    value takes the place of the FFN's output; otherwise nothing changes. Decided when the prompt is seen, for all that
    follows it (`corrigenda.edits.routed`). It takes its place at the tokens that `replace` says:

    - ``onwards``: the prompt's last token and all after it. This is our default, and none of the authors' choices;
    - ``last``: the prompt's last token alone, which is where the key is taken (the authors' ``replace_last``);
    - ``prompt``: the prompt's tokens before its last (``replace_prompt``, which their published configuration names);
    - ``all``: every token of the text (``replace_all``).

    Attributes:
        keys: (entry, d_ffn), in float32 on the CPU.
        values: (entry, d_model).
        radii: (entry,), the balls' radii, epsilon.
        replace: at which tokens.
        widen: what the radii are multiplied by when a prompt is routed; 1 is GRACE. Balls may then lie in one another:
            the nearest entry is asked, as ever.
    """

    keys: Tensor
    values: Tensor
    radii: Tensor
    replace: Replace = "onwards"
    widen: float = 1.0
    kind: ClassVar[str] = "codebook"
    saved_tensors: ClassVar[tuple[str, ...]] = ("keys", "values", "radii")
    saved_settings: ClassVar[tuple[str, ...]] = ("layer", "module", "replace", "widen")

    def __post_init__(self) -> None:
        for name in self.saved_tensors:
            object.__setattr__(self, name, getattr(self, name).detach().float().cpu())
        n = len(self.keys)
        if self.keys.ndim != 2 or self.values.ndim != 2 or len(self.values) != n:
            raise ValueError(f"a codebook with keys {tuple(self.keys.shape)} and values {tuple(self.values.shape)}")
        if self.radii.shape != (n,) or bool((self.radii < 0).any()):
            raise ValueError(f"a codebook of {n} entries needs as many radii, none negative: {self.radii.tolist()}")
        if self.replace not in get_args(Replace):
            raise ValueError(f"a codebook's replace={self.replace!r} must be one of {', '.join(get_args(Replace))}")
        if not 0 < self.widen < math.inf:
            raise ValueError(f"a codebook's widen={self.widen!r} must be a positive number")
        require_finite(self.kind, self._tensors())

    @classmethod
    def of(
        cls,
        memory: FFNMemory,
        origin: Origin,
        keys: Tensor,
        values: Tensor,
        radii: Tensor,
        state: EditorState | None = None,
        replace: Replace = "onwards",
        widen: float = 1.0,
    ) -> CodebookEdit:
        """A codebook at one layer of a model."""
        return cls(origin, memory.layer, memory.path, keys, values, radii, replace, widen, state=state)

    @property
    def _shape(self) -> tuple[int, int]:
        return self.keys.shape[1], self.values.shape[1]

    def _route(self, placed: list[Tensor], coefficients: Tensor, passage: Passage) -> Tensor:
        keys, _, radii = placed
        route = torch.full((len(coefficients),), MAIN, device=coefficients.device)
        last = passage.prompt & passage.tail  # none where the prompt's last token did not run
        rows = last.any(1).nonzero()[:, 0]
        if len(keys) and len(rows):
            nearest, distance = nearest_keys(coefficients[last].to(keys.dtype), keys)
            route[rows] = torch.where(distance <= self.widen * radii[nearest], nearest, MAIN)
        return route

    def _answer(
        self, placed: list[Tensor], coefficients: Tensor, output: Tensor, memory: int, passage: Passage
    ) -> Tensor:
        _, values, _ = placed
        at = replaced(self.replace, passage.prompt, passage.tail)
        return torch.where(at[..., None], values[memory].to(output.dtype), output)

    def _summary(self) -> str:
        if not len(self.keys):
            return f"layer {self.layer}, an empty codebook"
        low, high = float(self.radii.min()), float(self.radii.max())
        where = "" if self.replace == "onwards" else f", values at {self.replace}"
        where += "" if self.widen == 1 else f", widened {self.widen:g} times"
        return f"layer {self.layer}, {len(self.keys)} entries, radii {low:.3g} to {high:.3g}{where}"


def replaced(replace: Replace, prompt: Tensor, tail: Tensor) -> Tensor:
    """At which tokens a value takes the place of the FFN's output, (batch, position), by `CodebookEdit.replace`.

    `prompt`, (batch, position), are the tokens of the prompt, `tail` its last token and all after it.
    """
    if replace == "onwards":
        return tail
    if replace == "last":
        return prompt & tail
    return prompt & ~tail if replace == "prompt" else prompt | tail


def nearest_keys(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """For each query (n, d) the nearest of the keys (m, d) and its Euclidean distance: (n,) and (n,)."""
    # Without the expansion |a|^2 - 2ab + |b|^2, whose rounding would push an edit's own key out of a small ball.
    distance, nearest = torch.cdist(queries, keys, compute_mode="donot_use_mm_for_euclid_dist").min(1)
    return nearest, distance
