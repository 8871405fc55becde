"""`WiseState`: what WISE goes on from."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from corrigenda.edits.state import EditorState, StoredState
from editing.memory_based.wise.coordinates import Coordinates
from editing.memory_based.wise.margins import Margins
from editing.memory_based.wise.other_subjects import OtherSubject
from editing.shared.training_rows import Rows


@dataclass(frozen=True, eq=False)
class WiseState(EditorState):
    """The shards of a side memory, and the facts that they hold.

    Attributes:
        shards: Theta of each shard, (shard, d_ffn, d_model).
        rows: the bare rows of the facts that count, in the order of `held`, in the layer's coordinates.
        held: the numbers of those facts among the edit's.
        shard_of: for each fact of the edit its shard; None for one that was refused.
        others: other subjects, each with a fact's prompt about it.
        smallest_scores: of each side memory the smallest score of its facts; None for one without facts.
        unrelated_scores: of each the 99 % quantile of the scores of unrelated prompts.
        near_scores: the same of those that have the form of facts.
        margins: of the margin loss.
        contradictions: how many facts contradict an earlier one.
        coordinates: of the layer; not saved, but computed again.
    """

    shards: Tensor
    rows: Rows
    held: tuple[int, ...]
    shard_of: tuple[int | None, ...]
    others: tuple[OtherSubject, ...]
    smallest_scores: tuple[float | None, ...]
    unrelated_scores: tuple[float, ...]
    near_scores: tuple[float, ...]
    margins: Margins
    contradictions: int
    coordinates: Coordinates | None = field(default=None, repr=False)
    kind: ClassVar[str] = "wise"

    def stored(self) -> StoredState:
        """Everything but the coordinates."""
        tensors = {"shards": self.shards} | {f"rows.{name}": part for name, part in self.rows.tensors().items()}
        if self.others:
            tensors["others"] = torch.cat([m for _, m in self.others])
        values = {
            "held": list(self.held),
            "shard_of": list(self.shard_of),
            "others": [[subject, len(m)] for subject, m in self.others],
            "smallest_scores": list(self.smallest_scores),
            "unrelated_scores": list(self.unrelated_scores),
            "near_scores": list(self.near_scores),
            "margins": dataclasses.asdict(self.margins),
            "contradictions": self.contradictions,
        }
        return StoredState(self.kind, tensors, values)

    @classmethod
    def restore(cls, stored: StoredState) -> WiseState:
        """The state that `stored` gave."""
        tensors, values = stored.tensors, stored.values
        rows = {name[len("rows.") :]: part for name, part in tensors.items() if name.startswith("rows.")}
        lengths = [length for _, length in values["others"]]
        parts = tensors["others"].split(lengths) if lengths else ()
        return cls(
            tensors["shards"],
            Rows.from_tensors(rows),
            tuple(values["held"]),
            tuple(values["shard_of"]),
            tuple((subject, m) for (subject, _), m in zip(values["others"], parts, strict=True)),
            tuple(values["smallest_scores"]),
            tuple(values["unrelated_scores"]),
            tuple(values["near_scores"]),
            Margins(**values["margins"]),
            int(values["contradictions"]),
        )
