"""`HopfieldEdit`: learned FFN outputs for prompts that one step of a Hopfield network brings near a stored key.

Fang, Xie and Ran 2026, "HoReN: Normalized Hopfield Retrieval for Large-Scale Sequential Model Editing".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, get_args

import torch
from torch import Tensor
from torch.nn import functional

from corrigenda.edits.codebook import Replace, replaced
from corrigenda.edits.masked_memory import mean_coefficients
from corrigenda.edits.origin import require_finite
from corrigenda.edits.routed import RoutedEdit
from corrigenda.models.routes import MAIN, Passage


@dataclass(frozen=True, eq=False)
class HopfieldEdit(RoutedEdit):
    """A codebook beside the values of one layer, asked by direction.

    The query q of a prompt is the direction of its mean coefficients over the last `part` of its tokens. With unit keys
    K, one damped step of a modern Hopfield network and then the nearest key:

        q' = (1 - alpha) q + alpha softmax(beta q K^T) K,  of length 1
        j* = argmax q' K^T, and value j* stands in for the FFN's output if q' k_j* >= threshold; else nothing changes

    Decided when the prompt is seen, for all that follows it (`corrigenda.edits.routed`).

    Attributes:
        keys: K, (entry, d_ffn), in float32 on the CPU, each of length 1.
        values: (entry, d_model).
        alpha: how far the query is drawn towards what is recalled, 0 to 1.
        beta: the inverse temperature.
        threshold: the cosine from which on an entry answers.
        part: the share of the prompt's tokens, from its end, that the query is made of; at least one token.
        replace: at which tokens the value stands (`CodebookEdit`).

    Raises:
        EditRefusedError: a tensor is not finite.
        ValueError: shapes do not fit one another, keys are not of length 1, or a setting is out of its range.
    """

    keys: Tensor
    values: Tensor
    alpha: float
    beta: float
    threshold: float
    part: float
    replace: Replace
    kind: ClassVar[str] = "hopfield"
    saved_tensors: ClassVar[tuple[str, ...]] = ("keys", "values")
    saved_settings: ClassVar[tuple[str, ...]] = ("layer", "module", "alpha", "beta", "threshold", "part", "replace")

    def __post_init__(self) -> None:
        for name in self.saved_tensors:
            object.__setattr__(self, name, getattr(self, name).detach().float().cpu())
        if self.keys.ndim != 2 or self.values.ndim != 2 or not 0 < len(self.values) == len(self.keys):
            raise ValueError(f"entries with keys {tuple(self.keys.shape)} and values {tuple(self.values.shape)}")
        require_finite(self.kind, self._tensors())
        if bool(((self.keys.norm(dim=1) - 1).abs() > 1e-3).any()):
            raise ValueError("the keys of a hopfield edit must be of length 1")
        if not (0 <= self.alpha <= 1 and 0 < self.beta < math.inf and -1 <= self.threshold <= 1 and 0 < self.part <= 1):
            raise ValueError(
                f"alpha={self.alpha!r} must lie in 0 to 1, beta={self.beta!r} be positive, "
                f"threshold={self.threshold!r} be a cosine, part={self.part!r} a share above 0"
            )
        if self.replace not in get_args(Replace):
            raise ValueError(f"replace={self.replace!r} must be one of {', '.join(get_args(Replace))}")

    @property
    def _shape(self) -> tuple[int, int]:
        return self.keys.shape[1], self.values.shape[1]

    def _route(self, placed: list[Tensor], coefficients: Tensor, passage: Passage) -> Tensor:
        keys, _ = placed
        lengths = passage.prompt.sum(1, keepdim=True)
        counted = passage.prompt & in_last(self.part, passage.place, lengths)
        q = direction(coefficients, counted)
        recalled = (self.beta * q @ keys.T).softmax(1) @ keys
        drawn = functional.normalize((1 - self.alpha) * q + self.alpha * recalled, dim=1)
        cosine, entry = (drawn @ keys.T).max(1)
        return torch.where((lengths[:, 0] > 0) & (cosine >= self.threshold), entry, MAIN)

    def _answer(
        self, placed: list[Tensor], coefficients: Tensor, output: Tensor, memory: int, passage: Passage
    ) -> Tensor:
        _, values = placed
        at = replaced(self.replace, passage.prompt, passage.tail)
        return torch.where(at[..., None], values[memory].to(output.dtype), output)

    def _summary(self) -> str:
        return f"layer {self.layer}, {len(self.keys)} entries, asked at a cosine of {self.threshold:g} and above"


def in_last(part: float, places: Tensor, lengths: Tensor) -> Tensor:
    """Whether places, counted from 1, are of the last part of prompts of some lengths: as bool.

    Keys and queries both ask here: rounded otherwise, a key would count a token that its own prompt's query does not.
    """
    return places > lengths * (1 - part)


def direction(coefficients: Tensor, counted: Tensor) -> Tensor:
    """The direction of each row's mean coefficients over the counted positions: (batch, d_ffn), of length 1.

    Coefficients are (batch, position, d_ffn), `counted` (batch, position).
    """
    return functional.normalize(mean_coefficients(coefficients, counted), dim=1)
