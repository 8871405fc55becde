"""What linear relations give: of one relation (`LinearRelation`), and of several together (`RelationSurvey`)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table
from scipy import stats
from torch import Tensor

from corrigenda.intervals import interval
from corrigenda.linear_relations import low_rank_inverses
from locate.saving import SavedResult

CONTROLS = ("identity", "translation", "bias", "embedding")
"""o = s; o = s + mean(o - s); o = b; the map from the embedding of the subject's last token."""


@dataclass(frozen=True, eq=False)
class LinearRelation(SavedResult, file="relation"):
    """The affine map of one relation, and how far the model goes by it.

    Attributes:
        relation: its name.
        prompt: how it is asked.
        training: the subjects whose Jacobians make the map.
        tests: the subjects that it is measured on.
        objects: their true objects.
        says: the first token that the model says of each.
        decoded: the one that the map says.
        layer: which layer the subject's state enters.
        beta: by what W s is multiplied.
        rank: of the inverse.
        weight: W, (d_model, d_model), without beta.
        bias: b, (d_model,).
        layers: among which the layer was chosen.
        betas: among which beta was.
        ranks: among which the rank was.
        held_out: the share of training samples that the map of the others is faithful to, (layer, beta).
        by_rank: the causality over training samples at the layer, (rank,).
        known: whether the model says the true object's first token, (test,).
        faithful: whether the map says what the model says, (test,).
        controls: the same for each of `CONTROLS`, (test,).
        pairs: of known tests: whose state was changed, and whose object was wanted; the two have unlike objects.
        causal: whether the model then said it, (pair,).
        substituted: whether it did with the other subject's own state in the place of its subject's, (pair,).
    """

    relation: str
    prompt: str
    training: tuple[str, ...]
    tests: tuple[str, ...]
    objects: tuple[str, ...]
    says: tuple[str, ...]
    decoded: tuple[str, ...]
    layer: int
    beta: float
    rank: int
    weight: Tensor
    bias: Tensor
    layers: tuple[int, ...]
    betas: tuple[float, ...]
    ranks: tuple[int, ...]
    held_out: Tensor
    by_rank: Tensor
    known: Tensor
    faithful: Tensor
    controls: Mapping[str, Tensor]
    pairs: tuple[tuple[int, int], ...]
    causal: Tensor
    substituted: Tensor

    def delta(self, difference: Tensor) -> Tensor:
        """W_r^+ (o' - o), (..., d_model): what to add to a subject's state, of differences (..., d_model)."""
        return difference @ low_rank_inverses(self.weight, [self.rank])[0].to(difference).T

    @property
    def accuracy(self) -> float:
        """The share of the tests whose object the model says."""
        return float(self.known.float().mean())

    def shares(self) -> dict[str, tuple[float, float | None, float | None]]:
        """Accuracy, faithfulness (also of the controls) and causality, each with its 95 % interval over subjects.

        Faithfulness is over the tests whose object the model says, as published; what cannot be measured is absent.
        """
        subjects = [name for name, known in zip(self.tests, self.known.tolist(), strict=True) if known]
        rows = {"accuracy": (self.known, self.tests), "faithfulness": (self.faithful[self.known], subjects)}
        rows |= {name: (hits[self.known], subjects) for name, hits in self.controls.items()}
        changed = [self.tests[i] for i, _ in self.pairs]
        rows |= {"causality": (self.causal, changed), "substitution": (self.substituted, changed)}
        return {name: _share(hits.float().tolist(), of) for name, (hits, of) in rows.items() if len(hits)}

    def summary(self) -> dict[str, Any]:
        """The figures in plain values."""
        return {
            "relation": self.relation,
            "layer": self.layer,
            "beta": self.beta,
            "rank": self.rank,
            "n_training": len(self.training),
            "n_tests": len(self.tests),
            "n_known": int(self.known.sum()),
            "n_pairs": len(self.pairs),
            **{name: {"share": share, "low": low, "high": high} for name, (share, low, high) in self.shares().items()},
        }

    def table(self) -> Table:
        """A table for a terminal: the map beside the controls, and what its inverse does."""
        title = f"{escape(self.relation)}: layer {self.layer}, beta {self.beta:g}, rank {self.rank}"
        table = Table("figure", "share (%)", "95 % interval", title=title)
        for name, (share, low, high) in self.shares().items():
            inside = "" if low is None or high is None else f"{100 * low:.1f} to {100 * high:.1f}"
            table.add_row(NAMES.get(name, f"faithfulness: {name}"), f"{100 * share:.1f}", inside)
        return table

    def plot(self, path: str | Path) -> None:
        """Draws the held-out faithfulness by layer, and the figures on the tests, as PNG, PDF or SVG."""
        from locate.flow.pictures import relation_by_layer

        figures = {NAMES.get(name, name): share for name, share in self.shares().items() if name != "accuracy"}
        place = self.betas.index(self.beta)
        title = (
            f"{self.relation}: layer {self.layer}, beta {self.beta:g}, rank {self.rank}; {len(self.training)} samples"
        )
        relation_by_layer(path, self.layers, self.held_out[:, place], self.held_out.amax(1), self.layer, figures, title)


NAMES = {
    "accuracy": "the model says the object",
    "faithfulness": "faithfulness: the map",
    "causality": "causality: the inverse",
    "substitution": "the other subject's state",
}


@dataclass(frozen=True, eq=False)
class RelationSurvey(SavedResult, file="relations"):
    """Relations side by side, with means over them and their 95 % intervals.

    Attributes:
        figures: by relation what `LinearRelation.summary` says.
        means: by figure the mean over the relations that have it, and the interval's bounds (None of one relation).
        correlation: Spearman's of faithfulness with the model's own accuracy, over relations, with the interval; None
            for fewer than four relations, or where one of the two is the same in all.
    """

    figures: Mapping[str, Mapping[str, Any]]
    means: Mapping[str, tuple[float, float | None, float | None]]
    correlation: tuple[float, float, float] | None

    @classmethod
    def of(cls, results: Sequence[LinearRelation]) -> "RelationSurvey":
        """Puts results together. Raises ValueError: there is none."""
        if not results:
            raise ValueError("no relation was measured, and of none there is no mean")
        return cls.of_figures({result.relation: result.summary() for result in results})

    @classmethod
    def of_figures(cls, figures: Mapping[str, Mapping[str, Any]]) -> "RelationSurvey":
        """Puts together what `LinearRelation.summary` said of relations, by name."""
        shares: dict[str, dict[str, float]] = {
            relation: {name: one["share"] for name, one in each.items() if isinstance(one, Mapping)}
            for relation, each in figures.items()
        }
        means = {}
        for name in dict.fromkeys(name for each in shares.values() for name in each):
            having = [relation for relation, each in shares.items() if name in each]
            means[name] = _share([shares[relation][name] for relation in having], having)
        pairs = [(each["accuracy"], each["faithfulness"]) for each in shares.values()]
        return cls(figures, means, _correlation(pairs))

    def summary(self) -> dict[str, Any]:
        """The means, and whether faithfulness and accuracy go together."""
        return {
            "n_relations": len(self.figures),
            "means": {name: {"mean": mean, "low": low, "high": high} for name, (mean, low, high) in self.means.items()},
            "faithfulness_with_accuracy": self.correlation,
        }

    def table(self) -> Table:
        """A table for a terminal: a relation a row."""
        columns = [name for name in ("accuracy", "faithfulness", *CONTROLS, "causality") if name in self.means]
        table = Table("relation", "layer", "beta", "rank", *(f"{name} (%)" for name in columns))
        for relation, figures in self.figures.items():
            cells = (f"{100 * figures[name]['share']:.0f}" if name in figures else "" for name in columns)
            table.add_row(escape(relation), *(f"{figures[name]:g}" for name in ("layer", "beta", "rank")), *cells)
        table.add_row("mean", "", "", "", *(f"{100 * self.means[name][0]:.0f}" for name in columns))
        if self.correlation is not None:
            rho, low, high = self.correlation
            table.caption = f"faithfulness with accuracy: Spearman's rho {rho:.2f} ({low:.2f} to {high:.2f})"
        return table

    def plot(self, path: str | Path) -> None:
        """Draws faithfulness, the controls, causality and accuracy, a relation a row, as PNG, PDF or SVG."""
        from locate.flow.pictures import relations_side_by_side

        relations_side_by_side(path, self.figures, ("accuracy", "faithfulness", *CONTROLS, "causality"))


def _share(hits: Sequence[float], groups: Sequence[str]) -> tuple[float, float | None, float | None]:
    bounds = interval([hits], groups, shares=True)
    return (fmean(hits), None, None) if bounds is None else (fmean(hits), *bounds)


def _correlation(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float] | None:
    """Spearman's rho and the bootstrap's interval over relations (percentiles; draws without a rank left out)."""
    if len(pairs) < 4 or any(len(set(side)) < 2 for side in zip(*pairs, strict=True)):
        return None
    values = np.array(pairs)
    draw = np.random.default_rng(0)
    found = []
    for _ in range(2000):
        some = values[draw.integers(0, len(values), len(values))]
        if all(len(set(side)) > 1 for side in some.T.tolist()):
            found.append(float(stats.spearmanr(some).statistic))
    low, high = np.quantile(found, [0.025, 0.975])
    rho = float(stats.spearmanr(values).statistic)
    return (rho, float(low), float(high)) if math.isfinite(rho) else None
