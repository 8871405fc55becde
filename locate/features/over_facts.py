"""`FeatureSurvey`: the features that facts share, and what edits of each do to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from locate.features.facts import PLACES, FactFeatures
from locate.lens.by_layer import Mean, mean_of
from locate.pictures import chart, token_label
from locate.saving import SavedResult

LISTED = 10
"""So many features of each place are listed."""


@dataclass(frozen=True)
class SharedFeature:
    """A feature of several facts.

    Attributes:
        number: in the dictionary.
        facts: at how many it fires without an edit.
        added: at how many it fires with the fact's edit alone.
        words: that it promotes; none where it is not among those that a fact describes.
    """

    number: int
    facts: int
    added: int
    words: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class FeatureSurvey(SavedResult, file="features_together"):
    """What the features of facts come to together, by the places of `locate.features.facts.PLACES`.

    Attributes:
        n_facts: how many facts.
        layer: of the FFN.
        errors: of what the dictionary makes of the FFN's output, as a share of its norm.
        kept: of the features that fire without a fact's edit or with it, the share that do both; empty without edits.
        shared: the features of most facts; where there are edits those that most of them add.
    """

    n_facts: int
    layer: int
    errors: tuple[Mean, ...]
    kept: tuple[Mean, ...]
    shared: tuple[tuple[SharedFeature, ...], ...]

    @classmethod
    def of(cls, results: Sequence[FactFeatures]) -> FeatureSurvey:
        """Puts the results of facts together; those of one dictionary, all with an edit or none."""
        words = {each.number: each.words for result in results for each in result.described}
        errors, kept, shared = [], [], []
        for row in range(len(PLACES)):
            fires = [{*result.before[row].nonzero()[:, 0].tolist()} for result in results]
            edited = [{*r.after[row].nonzero()[:, 0].tolist()} for r in results if r.after is not None]
            pairs = [*zip(fires, edited, strict=False)]
            both = mean_of([len(one & two) / max(1, len(one | two)) for one, two in pairs], shares=True)
            error = mean_of([float(result.error[row]) for result in results])
            errors += [] if error is None else [error]
            kept += [] if both is None else [both]
            facts, added = Counter(n for one in fires for n in one), Counter(n for one, two in pairs for n in two - one)
            best = sorted({*facts, *added}, key=lambda n: (-added[n], -facts[n], n))[:LISTED]
            shared.append(tuple(SharedFeature(n, facts[n], added[n], words.get(n, ())) for n in best))
        return cls(len(results), results[0].layer, tuple(errors), tuple(kept), tuple(shared))

    def summary(self) -> dict[str, Any]:
        """The figures in plain values."""
        found: dict[str, Any] = {"n_facts": self.n_facts, "layer": self.layer}
        for row, place in enumerate(PLACES):
            means = {"error": self.errors[row]} | ({"kept": self.kept[row]} if self.kept else {})
            shared = [[each.number, each.facts, each.added, list(each.words)] for each in self.shared[row]]
            found[place] = {name: mean.summary() for name, mean in means.items()} | {"shared": shared}
        return found

    def table(self) -> Table:
        """A table for a terminal: the features of most facts, or that most edits add."""
        table = Table("place", "feature", "facts", "added by edits", "promotes", title=f"{self.n_facts} facts")
        for place, rows in zip(PLACES, self.shared, strict=True):
            for one in rows:
                words = escape(", ".join(map(repr, one.words[:5])))
                table.add_row(place, str(one.number), str(one.facts), str(one.added), words)
        errors = ", ".join(f"{e.text(percent=True)} % at the {p}" for p, e in zip(PLACES, self.errors, strict=True))
        table.caption = f"layer {self.layer}; what the dictionary leaves of the FFN's output: {errors}"
        return table

    def plot(self, path: str | Path) -> None:
        """Draws at how many facts the features of the prompt's end fire, as PNG, PDF or SVG."""
        rows = self.shared[PLACES.index("end")]
        with chart(path, f"features at the prompt's end, layer {self.layer}, {self.n_facts} facts") as axes:
            axes.barh(range(len(rows)), [each.facts for each in rows], 0.4, label="unedited")
            if self.kept:
                places = [place + 0.4 for place in range(len(rows))]
                axes.barh(places, [each.added for each in rows], 0.4, label="added by the fact's edit")
            names = [" ".join([str(each.number), *(token_label(word, 12) for word in each.words[:3])]) for each in rows]
            axes.set_yticks(range(len(rows)), names)
            axes.invert_yaxis()
            axes.set_xlabel("facts")
