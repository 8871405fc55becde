"""TIES: the low-rank changes of several edits made one, as PEFT merges adapters.

Yadav et al. 2023, "TIES-Merging: Resolving Interference When Merging Models".
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

How = Literal["ties_svd", "ties"]
"""PEFT's names of the two ways: of whole changes, whose result is cut to a rank; or of A and B, each by itself."""

Factors = tuple[Tensor, Tensor]
"""A, (d_ffn, rank), and B, (rank, d_model)."""


def merged_factors(pairs: Sequence[Factors], weights: Sequence[float], density: float, how: How, rank: int) -> Factors:
    """What TIES makes of the changes A B of a layer, as `add_weighted_adapter` of PEFT's does.

    `density` is the share of entries, the largest, that is kept of each. With "ties_svd" the result has at most `rank`;
    with "ties" all have the same.
    """
    if how == "ties_svd":
        whole = _ties([left @ right for left, right in pairs], weights, density)
        left, scale, right = torch.linalg.svd(whole, full_matrices=False)
        return (left * scale)[:, :rank], right[:rank]
    roots = [abs(weight) ** 0.5 for weight in weights]  # of A and of B, so that their product has the weight
    signed = [root if weight >= 0 else -root for root, weight in zip(roots, weights, strict=True)]
    return (_ties([left for left, _ in pairs], signed, density), _ties([right for _, right in pairs], roots, density))


def _ties(parts: Sequence[Tensor], weights: Sequence[float], density: float) -> Tensor:
    from peft.utils import merge_utils  # takes a second or two

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The density 1")  # where everything is kept
        return merge_utils.ties(list(parts), torch.tensor(weights), density)
