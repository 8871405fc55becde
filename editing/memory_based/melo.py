"""MELO: blocks of one LoRA beside the values of a layer, chosen by a codebook of clusters.

Yu, Chen, Zhou and He 2024, "MELO: Enhancing Model Editing with Neuron-Indexed Dynamic LoRA".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from corrigenda import BlocksEdit, Edit, Fact, LanguageModel, Origin
from corrigenda.edits.codebook import nearest_keys
from corrigenda.edits.state import EditorState
from corrigenda.forward.differentiable import differentiable
from corrigenda.models.alone import one_thread
from corrigenda.moments.text import Text
from corrigenda.settings.checked import AtLeastOne, NotNegative, Positive, Seed, checked
from editing.editor import EditRefusedError, require_targets
from editing.memory_based.grace import slack, usual_distance
from editing.registry import register
from editing.shared.entries import label_of
from editing.shared.epochs import in_epochs, in_turn
from editing.shared.extending import Extendable, check_previous, state_of, without
from editing.shared.layers import OneLayer
from editing.shared.together import together
from editing.shared.training_rows import Rows, RowsForward, SideLayer, target_rows
from editing.spaces import Number, Space


@dataclass(frozen=True, eq=False)
class MeloState(EditorState):
    """What MELO goes on from, besides the blocks: the answer that each cluster stands for."""

    labels: tuple[str, ...]
    kind: ClassVar[str] = "melo"


@register(
    "melo",
    paper="Yu et al. 2024, MELO: Enhancing Model Editing with Neuron-Indexed Dynamic LoRA",
    aim="beside the weights: a small LoRA block for each few facts, where a prompt is near theirs",
    space=Space("one", (Number("relative_radius", 0.05, 2.0, log=True), Number("lr", 1e-3, 1e-1, log=True))),
)
@dataclass(frozen=True)
@checked
class Melo(OneLayer, Extendable[BlocksEdit]):
    """Model editing with dynamic LoRA.

    Facts are taken in groups of `per_block`. A group trains a block of its own, A B of rank `rank`, and where a prompt
    is near one of the group's the FFN answers with V + A B at every token. Which prompts are near says a codebook of
    clusters. The key h of a fact are the coefficients that enter the value matrix at the prompt's last token; c is the
    nearest cluster, at the distance d to its centre. By the authors' rules, with `radius` as the least radius r0:

    - no cluster, or d > r_c + r0: a *new* one (centre h, radius r0);
    - otherwise, c has the same answer: h *joins* it; the centre is the mean of its members, the radius the largest
      distance of a member to it (and a little more, so that rounding does not shut that one out), and at least r0;
    - otherwise they conflict and c is *split*: r_c = d / 2 (less a little, so that nothing lies in both), members
      farther from the centre than that are forgotten, and h is a new cluster with the radius d / 2.

    A fact that contradicts an earlier one in the same words has its very key, d = 0: its cluster is *replaced*.

    What departs from the authors: the adapter is on the layer's values, whose coefficients are the key, and not on the
    first matrices of the FFNs of later layers; nothing multiplies A B (their number of blocks does); the end token is
    learned, too; the learning rate stays; training ends when all of a group are learned; and where `radius` is not
    given, it is relative to the model's own distances.

    Attributes:
        layer: the layer; None for 0.84 of the depth.
        per_block: facts that share a block.
        rank: of a block.
        radius: the least radius r0; None for `relative_radius` times the median distance between the keys of unrelated
            texts.
        relative_radius: see `radius`.
        steps: gradient steps for a block, at most.
        lr: Adam's learning rate.
        stop: a block is done when no fact's loss, per token, is above this.
        text: the unrelated texts; each key is taken at the end of a sequence.
        seed: for the first values of A; B begins at zero.
    """

    name: ClassVar[str] = "melo"
    depth: ClassVar[float] = 0.84  # as `Grace`'s

    layer: int | None = None
    per_block: AtLeastOne = 4
    rank: AtLeastOne = 2
    radius: Positive | None = None
    relative_radius: Positive = 0.25
    steps: AtLeastOne = 50
    lr: Positive = 1e-2
    stop: NotNegative = 0.02
    text: Text = field(default_factory=lambda: Text(tokens=64 * 24, length=24))
    seed: Seed = 0

    @one_thread
    def prepare(self, lm: LanguageModel) -> None:
        """Samples the unrelated texts, which are kept on disk."""
        if self.radius is None:
            self.text.sequences(lm)

    @together
    def extend(self, lm: LanguageModel, previous: Edit | None, facts: Sequence[Fact]) -> BlocksEdit:
        """The blocks of an earlier edit and further ones; the earlier edit itself stays as it is.

        Raises:
            EditRefusedError: a fact asks for an erasure; the loss is not finite; or `previous` is of another kind,
                layer, model or rank, or has no state.
            IndexError: the model has no such layer.
        """
        require_targets("MELO", facts)
        lm.architecture.require_causal("MELO")
        layer = self.resolved_layer(lm)
        own = check_previous("MELO", lm, [layer], previous, BlocksEdit)
        labels = () if own is None else state_of("MELO", own, MeloState).labels
        if own is not None and own.left.shape[2] != self.rank:
            raise EditRefusedError(
                f"MELO: the edit to go on from has blocks of rank {own.left.shape[2]}, this editor rank={self.rank}"
            )
        with without(lm, previous):
            side = SideLayer(lm, layer)
            rows = side.run([target_rows(lm, fact) for fact in facts])
            rows.require_ordinary(facts)
            radius = self.relative_radius * usual_distance(side, self.text) if self.radius is None else self.radius
            clusters = Clusters(radius, own, labels, lm.dtype)
            factors: list[tuple[Tensor, Tensor]] = [] if own is None else [*zip(own.left, own.right, strict=True)]
            figures: list[dict[str, Any]] = []
            for begin in in_turn(range(0, len(facts), self.per_block), "MELO", "block"):
                group = range(begin, min(begin + self.per_block, len(facts)))
                pair, said = self._block(side, rows.pick(group), [facts[number] for number in group], len(factors))
                for number, report in zip(group, said, strict=True):
                    key = rows.coefficients[number][rows.prompts[number] - 1]
                    figures.append(report | clusters.add(key, len(factors), label_of(facts[number])))
                factors.append(pair)
        before, reports = ((), ()) if own is None else (own.origin.facts, own.origin.report)
        origin = Origin.of(lm, self, [*before, *facts], [*reports, *figures])
        blocks = [torch.stack(parts) for parts in zip(*factors, strict=True)]
        state = MeloState(tuple(clusters.labels))
        return BlocksEdit(origin, layer, side.memory.path, *clusters.tensors(), *blocks, state=state)

    @differentiable()
    def _block(
        self, side: SideLayer, rows: Rows, facts: Sequence[Fact], number: int
    ) -> tuple[tuple[Tensor, Tensor], list[dict[str, Any]]]:
        """A, (d_ffn, rank), and B, (rank, d_model), that make some facts hold, and what is to be said of each."""
        memory = side.memory
        draw = torch.Generator().manual_seed(self.seed + number)
        bound = 1 / math.sqrt(memory.d_ffn)
        first = (2 * torch.rand(memory.d_ffn, self.rank, generator=draw) - 1) * bound
        left = first.to(memory.weight.device).requires_grad_()
        right = torch.zeros(self.rank, memory.d_model, device=memory.weight.device, requires_grad=True)
        optimiser = torch.optim.Adam([left, right], lr=self.lr)
        forward = RowsForward(side, rows)
        order = list(range(len(facts)))

        def losses(batch: list[int]) -> Tensor:
            return forward.nll(forward.coefficients @ left @ right)[batch]

        def step(loss: Tensor) -> None:
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

        figures = in_epochs(self.name, facts, losses, step, self.steps, len(order), self.stop, self.seed)
        return (left.detach().cpu(), right.detach().cpu()), figures


class Clusters:
    """The clusters while facts are added to them, on the CPU: those of an earlier edit with their answers, or none."""

    def __init__(
        self, radius: float, previous: BlocksEdit | None, labels: Sequence[str], dtype: torch.dtype = torch.float32
    ) -> None:
        self.radius, self.labels, self.dtype = radius, list(labels), dtype
        self.members: list[list[tuple[Tensor, int]]] = [[] for _ in labels]
        self.centres: list[Tensor] = [] if previous is None else list(previous.centres)
        self.radii: list[float] = [] if previous is None else previous.radii.tolist()
        if previous is not None:
            for key, cluster, block in zip(previous.keys, previous.clusters, previous.blocks, strict=True):
                self.members[int(cluster)].append((key, int(block)))

    def add(self, key: Tensor, block: int, label: str) -> dict[str, Any]:
        """Adds the key of a fact that a block answers; returns the rule, and the distance to the nearest centre."""
        if not self.labels:
            self._append(key, block, label, self.radius)
            return {"rule": "new", "distance": None}
        found = nearest_keys(key[None], torch.stack(self.centres))
        nearest, distance = int(found[0]), float(found[1])
        if distance > self.radii[nearest] + self.radius:
            rule = "new"
            self._append(key, block, label, self.radius)
        elif self.labels[nearest] == label:
            rule = "joined"
            self.members[nearest].append((key, block))
            keys = torch.stack([member for member, _ in self.members[nearest]])
            self.centres[nearest] = keys.mean(0)
            farthest = float((keys - keys.mean(0)).norm(dim=1).max())
            self.radii[nearest] = max(farthest + slack(key, self.dtype), self.radius)
        elif distance <= slack(key, self.dtype):
            rule = "replaced"
            self.members[nearest], self.centres[nearest], self.labels[nearest] = [(key, block)], key, label
        else:
            rule = "split"
            half = distance / 2 * (1 - 1e-5)
            centre, self.radii[nearest] = self.centres[nearest], half
            kept = [member for member in self.members[nearest] if float((member[0] - centre).norm()) <= half]
            self.members[nearest] = kept
            self._append(key, block, label, distance / 2)
        return {"rule": rule, "distance": distance}

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Keys, clusters and blocks of the members, centres and radii: as `BlocksEdit` has them."""
        found = [(key, number, block) for number, one in enumerate(self.members) for key, block in one]
        keys, clusters, blocks = zip(*found, strict=True)
        return (
            torch.stack(keys),
            torch.tensor(clusters),
            torch.tensor(blocks),
            torch.stack(self.centres),
            torch.tensor(self.radii),
        )

    def _append(self, key: Tensor, block: int, label: str, radius: float) -> None:
        self.members.append([(key, block)])
        self.centres.append(key)
        self.radii.append(radius)
        self.labels.append(label)
