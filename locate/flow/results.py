"""What attention knockout gives: of one fact (`AttentionKnockoutResult`), and of many together (`AverageKnockout`)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from corrigenda import Fact
from corrigenda.intervals import interval
from corrigenda.system.progress import counted
from corrigenda.text.joints import joined
from locate.saving import SavedResult


@dataclass(frozen=True, eq=False)
class AttentionKnockoutResult(SavedResult, file="knockout"):
    """What became of one answer when one group of positions could not read others.

    Attributes:
        fact: the fact.
        prompt: its prompt, as the model read it.
        answer: the answer whose probability is followed.
        answer_ids: its tokens; where there are several, their probabilities are multiplied.
        reader: the group of positions that could not read (`locate.flow.knockout.Group`).
        sources: the groups that it could not read.
        window: in how many layers at once.
        p_clean: P(answer) of the model as it is.
        probabilities: P(answer) with a source knocked out in the window around each layer, (source, layer).
    """

    fact: Fact
    prompt: str
    answer: str
    answer_ids: tuple[int, ...]
    reader: str
    sources: tuple[str, ...]
    window: int
    p_clean: float
    probabilities: Tensor

    @property
    def changes(self) -> Tensor:
        """The relative change of the probability, (P - P_clean) / P_clean, (source, layer): -1 if nothing is left."""
        return self.probabilities / self.p_clean - 1

    def summary(self) -> dict[str, Any]:
        """The figures in plain values: for each source the largest fall, and around which layer it lies."""
        return {
            "prompt": self.prompt,
            "answer": self.answer,
            "reader": self.reader,
            "window": self.window,
            "p_clean": self.p_clean,
            "sources": {
                source: {"largest_fall": float(change.min()), "layer": int(change.argmin())}
                for source, change in zip(self.sources, self.changes, strict=True)
            },
        }

    def table(self) -> Table:
        """A table for a terminal: for each source where its knockout takes most away."""
        title = f"P({escape(self.answer)}) {100 * self.p_clean:.1f} %, windows of {self.window} layers"
        table = Table("what the reader cannot read", "largest fall around layer", "change of P (%)", title=title)
        for source, change in zip(self.sources, self.changes, strict=True):
            table.add_row(f"{self.reader} -> {source}", str(int(change.argmin())), f"{100 * float(change.min()):.1f}")
        return table

    def plot(self, path: str | Path) -> None:
        """Draws the change by the window's centre, a curve a source, as PNG, PDF or SVG, by the path's suffix."""
        from locate.flow.pictures import knockout_curves

        curves = {source: (change, None, None) for source, change in zip(self.sources, self.changes, strict=True)}
        knockout_curves(path, curves, self.reader, self.window, joined(self.prompt, self.answer))


@dataclass(frozen=True, eq=False)
class AverageKnockout(SavedResult, file="knockout_average"):
    """The mean relative change over facts, with 95 % bootstrap intervals over subjects.

    Attributes:
        reader: the group of positions that could not read.
        window: in how many layers at once.
        n_facts: the number of facts.
        p_clean: the mean of P(answer) of the model as it is.
        counts: by source, the number of facts whose prompts have it.
        changes: by source, the mean of (P - P_clean) / P_clean, (layer,).
        low: the intervals' lower bounds; NaN where there is none (fewer than two subjects).
        high: the upper bounds.
    """

    reader: str
    window: int
    n_facts: int
    p_clean: float
    counts: Mapping[str, int]
    changes: Mapping[str, Tensor]
    low: Mapping[str, Tensor]
    high: Mapping[str, Tensor]

    def summary(self) -> dict[str, Any]:
        """The figures in plain values: for each source the largest mean fall, its interval, and its layer."""
        found = {}
        for source, change in self.changes.items():
            layer = int(change.argmin())
            bounds = [float(side[source][layer]) for side in (self.low, self.high)]
            low, high = (None if math.isnan(bound) else bound for bound in bounds)
            found[source] = {
                "n": self.counts[source],
                "largest_fall": float(change[layer]),
                "low": low,
                "high": high,
                "layer": layer,
            }
        return {
            "reader": self.reader,
            "window": self.window,
            "n_facts": self.n_facts,
            "p_clean": self.p_clean,
            "sources": found,
        }

    def table(self) -> Table:
        """A table for a terminal: for each source where its knockout takes most away."""
        title = f"{counted(self.n_facts, 'fact')}, windows of {self.window} layers"
        table = Table("what cannot be read", "facts", "largest fall around layer", "change of P (%)", title=title)
        for source, figures in self.summary()["sources"].items():
            change = f"{100 * figures['largest_fall']:.1f}"
            if figures["low"] is not None:
                change += f" ({100 * figures['low']:.1f} to {100 * figures['high']:.1f})"
            table.add_row(f"{self.reader} -> {source}", str(figures["n"]), str(figures["layer"]), change)
        return table

    def plot(self, path: str | Path) -> None:
        """Draws the mean change by the window's centre, a curve a source, as PNG, PDF or SVG, by the path's suffix."""
        from locate.flow.pictures import knockout_curves

        curves = {source: (self.changes[source], self.low[source], self.high[source]) for source in self.changes}
        knockout_curves(path, curves, self.reader, self.window, f"mean of {counted(self.n_facts, 'fact')}")


def average_knockouts(results: Sequence[AttentionKnockoutResult]) -> AverageKnockout:
    """The mean of several facts' relative changes, each source's over the facts whose prompts have it.

    Raises:
        ValueError: there is none, or they were made with different settings or models of different depths.
    """
    made = {(each.reader, each.window, each.probabilities.shape[1]) for each in results}
    if len(made) != 1:
        raise ValueError(
            "results of no fact cannot be averaged"
            if not made
            else f"results of different readers, windows or depths cannot be averaged: {sorted(made)}"
        )
    reader, window, depth = made.pop()
    sources = list(dict.fromkeys(source for each in results for source in each.sources))
    changes, low, high, counts = {}, {}, {}, {}
    for source in sources:
        having = [each for each in results if source in each.sources]
        rows = torch.stack([each.changes[each.sources.index(source)] for each in having]).double()
        subjects = [each.fact.subject for each in having]
        bounds = [interval([rows[:, layer].tolist()], subjects) or (math.nan, math.nan) for layer in range(depth)]
        counts[source], changes[source] = len(having), rows.mean(0)
        low[source], high[source] = torch.tensor(bounds, dtype=torch.float64).T.contiguous()
    return AverageKnockout(
        reader=reader,
        window=window,
        n_facts=len(results),
        p_clean=fmean(each.p_clean for each in results),
        counts=counts,
        changes=changes,
        low=low,
        high=high,
    )
