"""The part of a fact's page that shows its circuit, and which edges an edit took over."""

from collections.abc import Sequence

import torch

from jobs.explain.grids import Field, Grid, cells, from_the_last
from jobs.explain.part import PageContext
from locate import Circuit, CircuitChange, Circuits

LISTED = 5
"""So many of a source's edges are listed."""


def find_circuit(asked: PageContext) -> tuple[Circuit | CircuitChange, ...]:
    """The circuit; with the edit, how it changed."""
    locator = Circuits(exact=0, controls=(), seed=asked.settings.seed)
    if asked.before:
        return (locator.after(asked.lm, asked.before[0], asked.answer),)
    return (locator.find(asked.lm, asked.fact, asked.answer),)


def circuit_grids(asked: PageContext, found: Sequence[Circuit | CircuitChange]) -> list[Grid]:
    """What each source gives to its readers, and which edges gained most by the edit."""
    [one] = found
    return [_sources(one.after), _taken_over(one)] if isinstance(one, CircuitChange) else [_sources(one)]


def _sources(circuit: Circuit) -> Grid:
    graph, written = circuit.graph, circuit.written_by()
    by_reader = circuit.scores.new_zeros(graph.exists.shape)
    by_reader[graph.exists] = circuit.scores
    largest = by_reader.abs().topk(min(LISTED, graph.n_readers), dim=0).indices

    def edges(source: int) -> list[str]:
        readers = [reader for reader in largest[:, source].tolist() if graph.exists[reader, source]]
        return [f"to {graph.readers[reader]}: {float(by_reader[reader, source]):+.3f}" for reader in readers]

    none, everything = circuit.ends.tolist()
    shares = dict(zip(circuit.shares, circuit.faithfulness[0].tolist(), strict=True))
    (cpr, cmd), numbers = circuit.areas()["score"], torch.arange(1, graph.n_sources).view(graph.n_layers, -1)
    return Grid(
        title=f"{circuit.objects[0]!r} against {circuit.objects[1]!r}",
        note=f"The logit's difference is {everything:.3f}, and {none:.3f} after {circuit.counterfactual!r}. "
        f"Faithfulness is {shares[0.01]:.2f} with 1 % of the {graph.n_edges} edges, {shares[0.1]:.2f} with 10 % (CPR "
        f"{cpr:.3f}, CMD {cmd:.3f}). The embedding's edges give {float(written[0]):+.3f}: {'; '.join(edges(0))}.",
        row="layer",
        column="source",
        rows=tuple(map(str, reversed(range(graph.n_layers)))),
        columns=(*(f"head {head}" for head in range(graph.n_heads)), "FFN"),
        fields=(
            Field("its edges give", "number", from_the_last(cells(written[numbers])), colours=True),
            Field(
                "the largest", "lines", from_the_last([[edges(source) for source in row] for row in numbers.tolist()])
            ),
        ),
    )


def _taken_over(change: CircuitChange) -> Grid:
    sides, edges = (change.before, change.after), change.taken_over()
    return Grid(
        title="the edges that gained most by the edit",
        note=f"Of the first edges of both circuits {100 * change.overlap:.0f} % are the same. The share is that of the "
        "sum of all scores' amounts.",
        row="edge",
        column="circuit",
        rows=tuple(" to ".join(change.after.edge(edge)) for edge in edges),
        columns=("before", "with the edit"),
        fields=(
            Field("score", "number", [[float(each.scores[edge]) for each in sides] for edge in edges], colours=True),
            Field("share", "share", [[float(each.weights[edge]) for each in sides] for edge in edges]),
        ),
        shown="score",
    )
