"""Running normalisation: the mean and the deviation of all rows seen so far, kept from edit to edit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from corrigenda.edits.state import EditorState, StoredState

FLOOR = 1e-6
"""A deviation below this share of the largest one is rounding, and counts as this much."""


@dataclass(frozen=True, eq=False)
class RunningMoments:
    """The number, the mean and the squared deviations of rows, (width,) each, float64.

    Added batch by batch as Welford's algorithm has it for batches (Chan, Golub and LeVeque 1979): the same as of all
    rows at once.
    """

    count: int
    mean: Tensor
    squares: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> RunningMoments:
        """Those of rows, (n, width)."""
        rows = rows.double()
        mean = rows.mean(0)
        return cls(len(rows), mean, (rows - mean).square().sum(0))

    def __add__(self, other: RunningMoments) -> RunningMoments:
        """Those of the rows of both."""
        count = self.count + other.count
        apart = other.mean - self.mean
        squares = self.squares + other.squares + apart.square() * (self.count * other.count / count)
        return RunningMoments(count, self.mean + apart * (other.count / count), squares)

    @property
    def deviation(self) -> Tensor:
        """The standard deviation of each column (with n - 1), (width,).

        Raises:
            ValueError: there are fewer than two rows.
        """
        if self.count < 2:
            raise ValueError(f"the deviation of {self.count} row(s) is not known: it takes two")
        found = (self.squares / (self.count - 1)).sqrt()
        return found.clamp(min=max(FLOOR * float(found.max()), torch.finfo(found.dtype).tiny))

    def normalised(self, rows: Tensor) -> Tensor:
        """(x - mean) / deviation of each row, (n, width), float64."""
        return (rows.double() - self.mean) / self.deviation


@dataclass(frozen=True, eq=False)
class RunningNormalisation(EditorState):
    """What `UltraEdit` goes on from: the running moments of each layer's keys and gradients, and its scales.

    It does not grow with the number of facts.

    Attributes:
        keys: by layer, of the keys.
        gradients: by layer, of the gradients.
        etas: by layer eta, as the first turn had it.
        weights: by layer the weight of the ridge, as the first turn had it.
        n_written: how many facts were written.
    """

    keys: Mapping[int, RunningMoments] = field(default_factory=dict)
    gradients: Mapping[int, RunningMoments] = field(default_factory=dict)
    etas: Mapping[int, float] = field(default_factory=dict)
    weights: Mapping[int, float] = field(default_factory=dict)
    n_written: int = 0
    kind: ClassVar[str] = "running_normalisation"

    def stored(self) -> StoredState:
        """Means and squares as tensors, the rest as plain values."""
        tensors = {
            f"{layer}.{what}.{part}": getattr(moments, part)
            for what, of_layers in (("keys", self.keys), ("gradients", self.gradients))
            for layer, moments in of_layers.items()
            for part in ("mean", "squares")
        }
        values = {
            "counts": {str(layer): [self.keys[layer].count, self.gradients[layer].count] for layer in self.keys},
            "etas": {str(layer): eta for layer, eta in self.etas.items()},
            "weights": {str(layer): weight for layer, weight in self.weights.items()},
            "n_written": self.n_written,
        }
        return StoredState(self.kind, tensors, values)

    @classmethod
    def restore(cls, stored: StoredState) -> RunningNormalisation:
        """The state that `stored` gave."""

        def moments(what: str, place: int) -> dict[int, RunningMoments]:
            return {
                int(layer): RunningMoments(
                    int(counts[place]),
                    stored.tensors[f"{layer}.{what}.mean"],
                    stored.tensors[f"{layer}.{what}.squares"],
                )
                for layer, counts in stored.values["counts"].items()
            }

        return cls(
            moments("keys", 0),
            moments("gradients", 1),
            {int(layer): float(eta) for layer, eta in stored.values["etas"].items()},
            {int(layer): float(weight) for layer, weight in stored.values["weights"].items()},
            int(stored.values["n_written"]),
        )
