"""The subspaces that shards are learned in, and merging the shards of a side memory into one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Merge = Literal["ties", "mean"]

Masks = Literal["disjoint", "independent"]


def subspace(rho: float, masks: Masks, seed: int, shard: int, shape: torch.Size) -> Tensor:
    """The entries that a shard may change: a mask of a shape, (d_ffn, d_model), true for a share `rho` of them.

    "disjoint" masks of 1 / rho shards in a row have no entry in common; "independent" ones are drawn each for itself,
    so that k of them share about rho^k of the entries (WISE, section 2.3.2). The seed is the same for all shards of a
    side memory.
    """
    if masks == "independent":
        seed, shard = random.Random(f"{seed} {shard} mask").getrandbits(63), 0
    draw = torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    return (draw - shard * rho) % 1.0 < rho


def merge_shards(shards: Sequence[Tensor], how: Merge, keep: float = 1.0) -> Tensor:
    """One matrix from those that were learned in different subspaces.

    - ``ties`` (Yadav et al. 2023): of each shard the entries of largest magnitude are kept; for each entry the sign is
      elected that has the larger sum; and the mean is taken over the shards whose entry has that sign. Done by PEFT.
    - ``mean``: the plain average. Shards whose subspaces do not overlap are thinned by their number.

    Args:
        shards: matrices of one shape, one at least.
        how: see above.
        keep: with ``ties`` the share of each shard's learned (non-zero) entries that is kept.
    """
    if how == "mean":
        return torch.stack(list(shards)).mean(0)
    from peft.utils import merge_utils  # takes a second or two

    # PEFT trims to a share of all entries; here it is a share of those that a shard has learned.
    trimmed = [
        shard
        if keep == 1.0 or not bool(shard.any())
        else merge_utils.prune(shard, keep * float(shard.count_nonzero()) / shard.numel(), method="magnitude")
        for shard in shards
    ]
    stacked = torch.stack(trimmed)
    elected = merge_utils.calculate_majority_sign_mask(stacked, method="total")
    return merge_utils.disjoint_merge(stacked, elected)
