"""The shards of a side memory while facts are added to them, and which facts they hold."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from corrigenda import Fact
from corrigenda.data.requests import Request
from editing.editor import EditRefusedError
from editing.memory_based.wise.coordinates import Coordinates
from editing.memory_based.wise.margins import (
    Margins,
    high_score,
    prompt_scores,
    rounding,
    threshold_between,
    threshold_smallest,
)
from editing.memory_based.wise.merging import merge_shards
from editing.memory_based.wise.other_subjects import OtherSubject, not_edited
from editing.memory_based.wise.settings import WiseSettings
from editing.memory_based.wise.state import WiseState
from editing.memory_based.wise.unrelated import NEAR, OTHER_SUBJECTS, Kinds
from editing.shared.training_rows import Rows, RowsForward


class Memories:
    """The shards, in the layer's coordinates, and the facts in them, by their numbers among all facts of the edit.

    Args:
        settings: the editor's.
        coordinates: of the layer.
        margins: of the margin loss.
        state: what to go on from.
        facts: all facts, those of earlier edits first.
        shape: (d_ffn, d_model).
        device: where the shards are learned.

    Attributes:
        shards: Theta of each, (d_ffn, d_model).
        rows: the bare rows of the facts that count, in the order of `held`.
        held: the numbers of those facts.
        shard_of: the shard of every fact; None for those that were refused.
        others: other subjects, each with a fact's prompt about it.
    """

    def __init__(
        self,
        settings: WiseSettings,
        coordinates: Coordinates,
        margins: Margins,
        state: WiseState | None,
        facts: Sequence[Fact],
        shape: torch.Size,
        device: torch.device,
    ) -> None:
        self.settings, self.coordinates, self.margins = settings, coordinates, margins
        self.shape, self.device = shape, device
        self.requests = [Request.of(fact) for fact in facts]
        self.shards: list[Tensor] = []
        self.rows = Rows()
        self.held: list[int] = []
        self.shard_of: list[int | None] = []
        self.others: list[OtherSubject] = []
        if state is not None:
            self.shards = [shard.clone().to(device) for shard in state.shards]
            self.rows, self.held, self.shard_of = state.rows, list(state.held), list(state.shard_of)
            self.others = not_edited(state.others, {fact.subject for fact in facts})

    def assign(self, notes: Sequence[dict[str, int]]) -> None:
        """Says which shard each new fact goes to, by what it is to an earlier one (`corrigenda.data.requests.history`).

        Raises EditRefusedError: they are more than the shards hold.
        """
        settings = self.settings
        # A fact that takes another's place, or repeats one, needs no place of its own.
        taken = sum(shard is not None and not note for shard, note in zip(self.shard_of, notes, strict=False))
        for note in notes[len(self.shard_of) :]:
            earlier = note.get("repeats", note.get("contradicts"))
            if earlier is not None and self.shard_of[earlier] is not None:
                self.shard_of.append(self.shard_of[earlier])
                continue
            self.shard_of.append(taken // settings.edits_per_shard)
            taken += 1
        if settings.variant == "merge" and taken > settings.shards * settings.edits_per_shard:
            raise EditRefusedError(
                f"WISE: {taken} facts, and {settings.shards} shards of {settings.edits_per_shard} hold "
                f"{settings.shards * settings.edits_per_shard}; give it more shards or more edits_per_shard, or use "
                "the retrieve variant, which opens another side memory when one is full"
            )

    def start(self, shard: int) -> Tensor:
        """Theta that a shard is learned on from: as it is, or zero for one that is opened now."""
        opened = shard < len(self.shards)
        return self.shards[shard].clone() if opened else torch.zeros(self.shape, device=self.device)

    def superseded(self, numbers: Sequence[int]) -> set[int]:
        """The facts held whose place some others take: those that are about the same thing."""
        asked = [self.requests[n] for n in numbers]
        return {n for n in self.held if any(self.requests[n].same_thing(other) for other in asked)}

    def replayed(self, shard: int, superseded: Collection[int]) -> list[int]:
        """Where in `held` the facts are that are replayed while a shard is learned."""
        everywhere = self.settings.in_place
        return [
            place
            for place, n in enumerate(self.held)
            if n not in superseded and (everywhere or self.shard_of[n] == shard)
        ]

    def take(
        self,
        numbers: Sequence[int],
        shard: int,
        theta: Tensor,
        rows: Rows,
        others: Sequence[OtherSubject],
        superseded: Collection[int],
    ) -> None:
        """Takes facts that were learned, their shard and bare rows, instead of those that they supersede."""
        while len(self.shards) < shard:  # one whose facts were all refused
            self.shards.append(torch.zeros_like(theta))
        self.shards[shard : shard + 1] = [theta]
        kept = [place for place, n in enumerate(self.held) if n not in superseded]
        self.held = [self.held[place] for place in kept] + list(numbers)
        self.rows = self.rows.pick(kept) + rows
        self.others += others

    # -- what a shard is learned with

    def prompts(self, places: Sequence[int]) -> list[Tensor]:
        """What D is taken over of some held facts' bare prompts, each (its tokens but the first, d_ffn)."""
        return [self.rows.coefficients[i][1 : self.rows.prompts[i]] for i in places]

    def kinds(self) -> Kinds:
        """The unrelated prompts by kind, those of earlier facts about other subjects among them."""
        return dict(self.coordinates.unrelated) | {OTHER_SUBJECTS: [m for _, m in self.others]}

    def beside(self, shard: int) -> tuple[Tensor, float]:
        """What the other shards add to the memory that answers in a shard's losses, and the weight of its own part."""
        others = [part for number, part in enumerate(self.shards) if number != shard]
        if not others or not self.settings.in_place:
            return torch.zeros((), device=self.device), 1.0
        if self.settings.merge == "mean":
            n = len(others) + 1
            return torch.stack(others).sum(0) / n, 1 / n
        # Exactly what TIES makes of shards without common entries. (Of an entry that is zero TIES knows no gradient.)
        return self._merged(others), 1.0

    @torch.no_grad()
    def rivals(self, forward: RowsForward, shard: int) -> Tensor | None:
        """The largest D that another side memory has for each row; None where it makes no difference."""
        others = [part for number, part in enumerate(self.shards) if number != shard]
        if not others or not self.settings.in_view:
            return None
        return torch.stack([forward.scores(part) for part in others]).amax(0)

    @torch.no_grad()
    def elsewhere(self, shard: int, superseded: Collection[int]) -> dict[int, float]:
        """Where in `held` other side memories' facts are, and their D there; none where it makes no difference."""
        found: dict[int, float] = {}
        if not self.settings.in_view:
            return found
        for other, part in enumerate(self.shards):
            places = [i for i, n in enumerate(self.held) if self.shard_of[n] == other and n not in superseded]
            if other != shard and places:
                found |= zip(places, prompt_scores(part, self.prompts(places)).tolist(), strict=True)
        return found

    # -- what they make

    def thetas(self) -> list[Tensor]:
        """Theta of each side memory."""
        n = self.settings.shards_of_memory
        return [self._merged(self.shards[first : first + n]) for first in range(0, len(self.shards), n)]

    @torch.no_grad()
    def result(
        self, contradictions: int, after_edit: Sequence[float], dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, WiseState]:
        """V' - V of each side memory, (memory, d_ffn, d_model), epsilon, (memory,), and what to go on from.

        `contradictions` facts contradict an earlier one; `after_edit` is D of each held fact right after its own edit,
        and `dtype` the precision of the model.
        """
        share = rounding(dtype)
        thetas, everything = self.thetas(), self.prompts(range(len(self.rows)))
        scores = torch.stack([prompt_scores(theta, everything).cpu() for theta in thetas])  # (memory, fact)
        shards = [shard for n in self.held if (shard := self.shard_of[n]) is not None]
        memories = torch.tensor(shards, dtype=torch.long) // self.settings.shards_of_memory
        none = torch.full((len(thetas),), math.inf)
        lowest = none.scatter_reduce(0, memories, scores[memories, torch.arange(len(memories))], "amin")
        # A memory that holds no fact any more answers nothing: its smallest score is infinite.
        kinds = self.kinds()
        far = [m for kind, found in kinds.items() if kind not in NEAR for m in found]
        near = [m for kind in NEAR for m in kinds.get(kind, ())]
        high_far, high_near = (torch.tensor([high_score(theta, found) for theta in thetas]) for found in (far, near))
        if self.settings.threshold == "between":
            epsilons = threshold_between(lowest, high_far, high_near, self.settings.margin, share)
        elif self.settings.threshold == "smallest":
            epsilons = threshold_smallest(lowest, share)
        else:
            epsilons = threshold_smallest(none.scatter_reduce(0, memories, torch.tensor(after_edit), "amin"), share)
        state = WiseState(
            torch.stack(self.shards).cpu(),
            self.rows,
            tuple(self.held),
            tuple(self.shard_of),
            tuple(self.others),
            tuple(value if math.isfinite(value) else None for value in lowest.tolist()),
            tuple(high_far.tolist()),
            tuple(high_near.tolist()),
            self.margins,
            contradictions,
            coordinates=self.coordinates,
        )
        return torch.stack([self.coordinates.delta(theta) for theta in thetas]), epsilons, state

    def _merged(self, shards: Sequence[Tensor]) -> Tensor:
        if len(shards) == 1 and self.settings.keep == 1:
            return shards[0]
        return merge_shards(shards, self.settings.merge, self.settings.keep)
