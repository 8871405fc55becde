"""What circuits give: of a fact (`Circuit`), without and with an edit (`CircuitChange`), of facts (`CircuitSurvey`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
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
from locate.circuits.faithfulness import Bounded, areas
from locate.circuits.graph import Graph
from locate.circuits.pictures import circuit_picture, faithfulness_picture
from locate.saving import SavedResult

LISTED, DRAWN = 10, 60
"""So many edges are listed, and drawn."""
SHOWN = 0.01
"""The share of edges that two circuits are compared by."""


@dataclass(frozen=True, eq=False)
class Circuit(SavedResult, file="circuit"):
    """The scores of all edges for one fact, and how much circuits of the best ones do of what the model does.

    Attributes:
        fact: the fact.
        prompt: its prompt, as the model read it.
        other: the fact whose subject stands in the counterfactual; None where there is none.
        counterfactual: the counterfactual prompt.
        objects: the tokens that are told apart, the fact's and the counterfactual's.
        method: by which edges were scored.
        steps: of its integral.
        metric: m.
        ablation: what stood for ablated sources.
        ranking: whether edges were ranked by the amount of their scores or with their sign.
        graph: the model's.
        scores: of each edge, (edge,), in units of m: by how much m falls without the edge.
        exact_edges: the edges whose exact scores were taken, the first of the ranking and those that were named, (n,).
        exact: these, (n,).
        shares: of all edges that circuits had.
        by: by what their edges were ranked: score, controls (`locate.circuits.faithfulness`), before (an edit).
        values: m of the circuits, (by, share).
        ends: m with no edge and with all, (2,).
    """

    fact: Fact
    prompt: str
    other: Fact | None
    counterfactual: str
    objects: tuple[str, str]
    method: str
    steps: int
    metric: str
    ablation: str
    ranking: str
    graph: Graph
    scores: Tensor
    exact_edges: Tensor
    exact: Tensor
    shares: tuple[float, ...]
    by: tuple[str, ...]
    values: Tensor
    ends: Tensor

    @property
    def order(self) -> Tensor:
        """The edges by the ranking, the first first, (edge,)."""
        ranked = self.scores.abs() if self.ranking == "absolute" else self.scores
        return ranked.argsort(descending=True, stable=True)

    @property
    def faithfulness(self) -> Tensor:
        """F of the circuits, (by, share)."""
        none, everything = self.ends.tolist()
        return (self.values - none) / (everything - none)

    def areas(self) -> dict[str, tuple[float, float]]:
        """By what ranked the edges: CPR and CMD."""
        return {by: areas(self.shares, curve) for by, curve in zip(self.by, self.faithfulness.tolist(), strict=True)}

    @property
    def weights(self) -> Tensor:
        """The share of each edge in the sum of all scores' amounts, (edge,)."""
        return self.scores.abs() / self.scores.abs().sum()

    def written_by(self) -> Tensor:
        """The sum over each source's outgoing edges, (source,)."""
        return self.scores.new_zeros(self.graph.n_sources).index_add(0, self.graph.edges[:, 1], self.scores)

    def top(self, n: int = LISTED) -> list[tuple[str, str, float]]:
        """The source, the reader and the score of the first n edges of the ranking."""
        return [(*self.edge(edge), float(self.scores[edge])) for edge in self.order[:n].tolist()]

    def by_number(self) -> dict[int, float]:
        """By edge the exact scores that were taken."""
        return dict(zip(self.exact_edges.tolist(), self.exact.tolist(), strict=True))

    def edge(self, number: int) -> tuple[str, str]:
        """The names of an edge's source and reader."""
        reader, source = self.graph.edges[number].tolist()
        return self.graph.sources[source], self.graph.readers[reader]

    def curves(self) -> dict[str, list[Bounded]]:
        """Faithfulness by what ranked the edges, for a picture."""
        return {by: [(f, None, None) for f in row] for by, row in zip(self.by, self.faithfulness.tolist(), strict=True)}

    def panel(self, more: str = "") -> tuple[str, list[int], Tensor]:
        """The first edges for a picture, with a title."""
        return f"{self.prompt} → {self.objects[0]}{more}", self.order[:DRAWN].tolist(), self.scores

    def summary(self) -> dict[str, Any]:
        """The figures in plain values."""
        none, everything = self.ends.tolist()
        return {
            "prompt": self.prompt,
            "counterfactual": self.counterfactual,
            "objects": list(self.objects),
            "n_edges": self.graph.n_edges,
            "metric_with_all": everything,
            "metric_with_none": none,
            "cpr": {by: cpr for by, (cpr, _) in self.areas().items()},
            "cmd": {by: cmd for by, (_, cmd) in self.areas().items()},
            "faithfulness": dict(zip(map(str, self.shares), self.faithfulness[0].tolist(), strict=True)),
            "top": [list(each) for each in self.top()],
            "exact": [[*self.edge(edge), score] for edge, score in self.by_number().items()],
        }

    def table(self) -> Table:
        """A table for a terminal: the first edges, and those whose exact scores were taken."""
        (cpr, cmd), exact = self.areas()["score"], self.by_number()
        title = f"{escape(self.prompt)} {escape(self.objects[0])} (against {escape(self.counterfactual)})"
        table = Table("source", "reader", "score", "exact", title=title)
        for edge in dict.fromkeys([*self.order[:LISTED].tolist(), *exact]):
            checked = f"{exact[edge]:.3f}" if edge in exact else ""
            table.add_row(*self.edge(edge), f"{float(self.scores[edge]):.3f}", checked)
        table.caption = f"{self.graph.n_edges} edges; CPR {cpr:.3f}, CMD {cmd:.3f}"
        return table

    def plot(self, path: str | Path) -> None:
        """Draws the first edges between layers, and faithfulness by the share of edges, as PNG, PDF or SVG."""
        circuit_picture(path, self.graph, [self.panel()], self.shares, self.curves())


@dataclass(frozen=True, eq=False)
class CircuitChange(SavedResult, file="circuit_change"):
    """Which edges say the old object before an edit, and which the new one with it.

    Attributes:
        before: of the true object, without the edit.
        after: of the new object, with it; its last circuits are of the edges that were first before.
    """

    before: Circuit
    after: Circuit

    @property
    def overlap(self) -> float:
        """Of the first edges (`SHOWN` of all), those that are first both times, over those that are once or twice."""
        return _in_common(_first(self.before), _first(self.after))

    @property
    def gains(self) -> Tensor:
        """By how much each edge's share of the sum of all scores' amounts rose, (edge,)."""
        return self.after.weights - self.before.weights

    def taken_over(self) -> list[int]:
        """The edges that gained most, `LISTED` of them."""
        first: list[int] = self.gains.argsort(descending=True, stable=True)[:LISTED].tolist()
        return first

    def summary(self) -> dict[str, Any]:
        """The figures in plain values."""
        return {
            "overlap": self.overlap,
            "taken_over": [[*self.after.edge(edge), float(self.gains[edge])] for edge in self.taken_over()],
            "before": self.before.summary(),
            "after": self.after.summary(),
        }

    def table(self) -> Table:
        """A table for a terminal: the edges that gained most."""
        (cpr, _), (old, _) = self.after.areas()["score"], self.after.areas()["before"]
        old_object, new_object = (escape(each.objects[0]) for each in (self.before, self.after))
        table = Table("source", "reader", f"score for {old_object}", f"for {new_object}, edited", "gain (%)")
        for edge in self.taken_over():
            scores = (f"{float(each.scores[edge]):.3f}" for each in (self.before, self.after))
            table.add_row(*self.after.edge(edge), *scores, f"{100 * float(self.gains[edge]):.2f}")
        table.caption = (
            f"{100 * self.overlap:.0f} % of the first {100 * SHOWN:g} % of edges in common; with the edit CPR "
            f"{cpr:.3f}, by the ranking of before {old:.3f}"
        )
        return table

    def plot(self, path: str | Path) -> None:
        """Draws both circuits, and faithfulness with the edit, as PNG, PDF or SVG."""
        panels = [self.before.panel(), self.after.panel(" (edited)")]
        circuit_picture(path, self.after.graph, panels, self.after.shares, self.after.curves())


@dataclass(frozen=True, eq=False)
class CircuitSurvey(SavedResult, file="circuits"):
    """The faithfulness of circuits over facts: of means of m, as published; 95 % intervals over subjects.

    Attributes:
        n_facts: how many facts.
        shares: of edges.
        faithfulness: by what ranked the edges, f at each share.
        cpr: likewise the area under f.
        cmd: likewise the area of |1 - f|.
        shared: the mean, over pairs of facts, of the first edges (`SHOWN`) that two circuits have in common, over those
            that one or both have; None of one fact.
    """

    n_facts: int
    shares: tuple[float, ...]
    faithfulness: Mapping[str, tuple[Bounded, ...]]
    cpr: Mapping[str, Bounded]
    cmd: Mapping[str, Bounded]
    shared: float | None

    @classmethod
    def of(cls, circuits: Sequence[Circuit]) -> "CircuitSurvey":
        """Puts circuits of one model together.

        Raises:
            ValueError: there is none, or their circuits are of unlike sizes or rankings.
        """
        if not circuits:
            raise ValueError("no circuit was found, and of none there is no mean")
        shares, by = circuits[0].shares, circuits[0].by
        if any((each.shares, each.by) != (shares, by) for each in circuits):
            raise ValueError("these circuits are of unlike sizes or rankings; put together those of one run")
        values = {name: torch.stack([each.values[row] for each in circuits]).tolist() for row, name in enumerate(by)}
        ends = torch.stack([each.ends for each in circuits]).tolist()
        subjects = [each.fact.subject for each in circuits]
        shared = [_in_common(*pair) for pair in combinations(map(_first, circuits), 2)]
        return cls.of_values(subjects, shares, values, ends, fmean(shared) if shared else None)

    @classmethod
    def of_values(
        cls,
        subjects: Sequence[str],
        shares: Sequence[float],
        values: Mapping[str, Sequence[Sequence[float]]],
        ends: Sequence[Sequence[float]],
        shared: float | None = None,
    ) -> "CircuitSurvey":
        """Puts circuits' m together: by what ranked the edges, each fact's by share, and with no edge and all."""
        none, everything = zip(*ends, strict=True)
        curves, cpr, cmd = {}, {}, {}
        for name, rows in values.items():
            columns = [*zip(*rows, strict=True)]
            curves[name] = tuple(
                _bounded([column, none, everything], subjects, lambda *means: _ratios(*means)[0]) for column in columns
            )
            whole = [*columns, none, everything]
            cpr[name] = _bounded(whole, subjects, lambda *means: areas(shares, _ratios(*means))[0])
            cmd[name] = _bounded(whole, subjects, lambda *means: areas(shares, _ratios(*means))[1])
        return cls(len(subjects), tuple(shares), curves, cpr, cmd, shared)

    def summary(self) -> dict[str, Any]:
        """The figures in plain values."""
        return {
            "n_facts": self.n_facts,
            "cpr": {name: _named(each) for name, each in self.cpr.items()},
            "cmd": {name: _named(each) for name, each in self.cmd.items()},
            "faithfulness": {
                name: {str(share): _named(each) for share, each in zip(self.shares, curve, strict=True)}
                for name, curve in self.faithfulness.items()
            },
            "shared": self.shared,
        }

    def table(self) -> Table:
        """A table for a terminal: faithfulness by size, CPR and CMD."""
        table = Table("edges kept", *self.faithfulness, title="faithfulness of circuits, by what ranked their edges")
        for place, share in enumerate(self.shares):
            table.add_row(f"{100 * share:g} %", *(f"{curve[place][0]:.2f}" for curve in self.faithfulness.values()))
        for name, areas_of in (("CPR", self.cpr), ("CMD", self.cmd)):
            table.add_row(name, *(f"{areas_of[by][0]:.3f}" for by in self.faithfulness))
        table.caption = f"over {counted(self.n_facts, 'fact')}"
        return table

    def plot(self, path: str | Path) -> None:
        """Draws faithfulness by the share of edges, with intervals, as PNG, PDF or SVG."""
        faithfulness_picture(path, f"circuits of {counted(self.n_facts, 'fact')}", self.shares, self.faithfulness)


def _ratios(*means: Any) -> list[Any]:
    *kept, none, everything = means
    return [(each - none) / (everything - none) for each in kept]


def _bounded(columns: Sequence[Sequence[float]], groups: Sequence[str], combine: Any) -> Bounded:
    mean = float(combine(*(sum(column) / len(column) for column in columns)))
    bounds = interval(columns, groups, combine)
    return (mean, None, None) if bounds is None else (mean, *bounds)


def _named(value: Bounded) -> dict[str, float | None]:
    return dict(zip(("mean", "low", "high"), value, strict=True))


def _first(circuit: Circuit) -> set[int]:
    """The first edges of a circuit's ranking, `SHOWN` of all."""
    return set(circuit.order[: max(1, round(SHOWN * circuit.graph.n_edges))].tolist())


def _in_common(one: set[int], two: set[int]) -> float:
    return len(one & two) / len(one | two)
