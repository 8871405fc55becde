"""`BlocksEdit`: low-rank changes of one layer's values, of which the prompt chooses one, or none.

Yu, Chen, Zhou and He 2024, "MELO: Enhancing Model Editing with Neuron-Indexed Dynamic LoRA".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from corrigenda.edits.codebook import nearest_keys
from corrigenda.edits.edit import Editable
from corrigenda.edits.origin import require_finite
from corrigenda.edits.routed import RoutedEdit
from corrigenda.models.routes import MAIN, Passage


@dataclass(frozen=True, eq=False)
class BlocksEdit(RoutedEdit):
    """Blocks of one LoRA beside the values of one layer, chosen by a codebook of clusters.

    The key of a prompt are the coefficients that enter the layer's value matrix at the prompt's last token. If it lies
    within the nearest cluster (Euclidean distance to the centre at most the radius), the block b of that cluster's
    nearest member answers: at every token the FFN's output is m (V + A_b B_b). Otherwise nothing changes. Decided when
    the prompt is seen, for all that follows it (`corrigenda.edits.routed`).

    Attributes:
        keys: of the members, (member, d_ffn), in float32 on the CPU.
        clusters: (member,), the cluster of each; one without members answers nothing.
        blocks: (member,), the block of each.
        centres: (cluster, d_ffn).
        radii: (cluster,).
        left: A, (block, d_ffn, rank).
        right: B, (block, rank, d_model).

    Raises:
        EditRefusedError: a tensor is not finite.
        ValueError: shapes do not fit one another.
    """

    keys: Tensor
    clusters: Tensor
    blocks: Tensor
    centres: Tensor
    radii: Tensor
    left: Tensor
    right: Tensor
    kind: ClassVar[str] = "blocks"
    saved_tensors: ClassVar[tuple[str, ...]] = ("keys", "clusters", "blocks", "centres", "radii", "left", "right")

    def __post_init__(self) -> None:
        for name in self.saved_tensors:
            whole = name in ("clusters", "blocks")
            tensor = getattr(self, name).detach().cpu()
            object.__setattr__(self, name, tensor.long() if whole else tensor.float())
        members, width = self.keys.shape
        fits = (
            self.clusters.shape == self.blocks.shape == (members,)
            and self.centres.shape == (len(self.radii), width)
            and self.left.shape[:2] == (len(self.right), width)
            and self.left.shape[2] == self.right.shape[1]
            and _numbers(self.clusters, len(self.radii))
            and _numbers(self.blocks, len(self.right))
        )
        if not fits or bool((self.radii < 0).any()):
            shapes = ", ".join(f"{name} {tuple(getattr(self, name).shape)}" for name in self.saved_tensors)
            raise ValueError(f"blocks, members and clusters do not fit one another, or a radius is negative: {shapes}")
        require_finite(self.kind, {name: getattr(self, name) for name in ("keys", "centres", "radii", "left", "right")})

    @property
    def _shape(self) -> tuple[int, int]:
        return self.keys.shape[1], self.right.shape[2]

    def _on(self, lm: Editable) -> dict[str, Tensor]:
        return dict(zip(self.saved_tensors, super()._on(lm), strict=True))

    def _route(self, placed: dict[str, Tensor], coefficients: Tensor, passage: Passage) -> Tensor:
        route = torch.full((len(coefficients),), MAIN, device=coefficients.device)
        last = passage.prompt & passage.tail  # none where the prompt's last token did not run
        rows = last.any(1).nonzero()[:, 0]
        if len(self.keys) and len(rows):
            route[rows] = chosen_blocks(placed, coefficients[last].float())
        return route

    def _answer(
        self, placed: dict[str, Tensor], coefficients: Tensor, output: Tensor, memory: int, passage: Passage
    ) -> Tensor:
        added = coefficients.float() @ placed["left"][memory] @ placed["right"][memory]
        return (output.float() + added).to(output.dtype)

    def _summary(self) -> str:
        count, _, rank = self.left.shape
        return f"layer {self.layer}, {count} blocks of rank {rank}, {len(self.keys)} keys in {len(self.radii)} clusters"


def chosen_blocks(placed: Mapping[str, Tensor], queries: Tensor) -> Tensor:
    """The block of each query (n, d_ffn), or `MAIN`, (n,); `placed` has the tensors of a `BlocksEdit` by name."""
    nearest, distance = nearest_keys(queries, placed["centres"])
    apart = torch.cdist(queries, placed["keys"], compute_mode="donot_use_mm_for_euclid_dist")
    apart = apart.masked_fill(placed["clusters"] != nearest[:, None], torch.inf)
    closest, member = apart.min(1)
    inside = (distance <= placed["radii"][nearest]) & closest.isfinite()
    return torch.where(inside, placed["blocks"][member], MAIN)


def _numbers(found: Tensor, count: int) -> bool:
    return not len(found) or (int(found.min()) >= 0 and int(found.max()) < count)
