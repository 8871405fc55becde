"""How much of what a model does its circuits do.

f(C) = (m(C) - m(none)) / (m(all) - m(none)), m(C) that of a forward in which the edges outside C are ablated. Over
circuits of growing size (Mueller et al. 2025, "MIB: A Mechanistic Interpretability Benchmark") CPR is the area under f,
higher is better, and CMD the area of |1 - f|, lower is better: both by trapezoids over the share of edges, on a linear
axis, from 0, where f is 0, to 1, where it is 1. The authors' program begins at the smallest circuit in the place of 0:
with its 0.1 % CMD is 0.0005 to 0.001 less there. It also drops kept edges to which no kept path leads from the
embedding, which with the counterfactual's states in their place is the same.

Edges are ranked by their scores, and, for comparison, by nothing (``random``) and by ``activation``: the share that an
edge carries of what its reader reads, the mean over positions of

    c(s, r) = p(s, r) / sum over s of p(s, r),      p(s, r) = max(0, |x_r|_1 - |x_r - z_s|_1)

(Ferrando & Voita 2024, "Information Flow Routes"; one of MIB's methods, too). The norm of z_s would be no comparison:
states grow with depth, and at the first token they can be hundreds of times as large. Then the embedding, through which
alone the prompts differ, comes nearly last, and no circuit without it does anything.
"""

from collections.abc import Collection, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from locate.circuits.scores import Ablation

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Of all edges."""
Control = Literal["random", "activation"]
Bounded = tuple[float, float | None, float | None]
"""A mean, and the bounds of its 95 % interval; none of one subject."""


@torch.no_grad()
def metric_by_size(task: Ablation, orders: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """M of circuits of the sizes `SHARES`, (order, share), in real forwards, and of no edge and of all edges, (2,).

    Orders are rankings of all edges, (edge,) each, the first kept first.
    """
    n = task.graph.n_edges
    sizes = torch.tensor([size for share in SHARES if (size := round(share * n)) < n])
    kept = torch.stack([order.argsort() < sizes[:, None] for order in orders])  # the place of each edge in the order
    ends = torch.stack([torch.zeros(n, dtype=torch.bool), torch.ones(n, dtype=torch.bool)])
    found = task.values(torch.cat([ends, kept.flatten(0, 1)])).cpu()
    by_size = found[2:].view(len(orders), -1)
    whole = found[1].expand(len(orders), len(SHARES) - len(sizes))  # all edges are the same ones in any order
    return torch.cat([by_size, whole], 1), found[:2]


def rankings(
    task: Ablation, scores: Tensor, absolute: bool, controls: Collection[Control], seed: int
) -> dict[str, Tensor]:
    """All edges by their score, and by the controls, (edge,) each; of equals the order is drawn."""
    drawn = torch.randperm(task.graph.n_edges, generator=torch.Generator().manual_seed(seed))
    found = {"score": scores.abs() if absolute else scores}
    if "random" in controls:
        found["random"] = torch.zeros(len(drawn))
    if "activation" in controls:
        found["activation"] = carried_shares(task)
    return {by: drawn[each.cpu()[drawn].argsort(descending=True, stable=True)] for by, each in found.items()}


def carried_shares(task: Ablation) -> Tensor:
    """The share that each edge carries of what its reader reads, c, (edge,); those into a reader sum to 1."""
    graph = task.graph
    found = task.clean.new_zeros(graph.n_readers, graph.n_sources)
    for n in graph.counts.unique().tolist():  # readers of one place read the same
        carried = task.clean[:n]
        read = carried.sum(0) + task.constants_after(n)
        near = (read.abs().sum(-1) - (read - carried).abs().sum(-1)).clamp(min=0)
        found[graph.counts == n, :n] = (near / near.sum(0).clamp(min=torch.finfo(near.dtype).tiny)).mean(1)
    return found[graph.exists]


def areas(shares: Sequence[float], faithfulness: Sequence[Any]) -> tuple[Any, Any]:
    """CPR and CMD of f at each share of edges: numbers, or arrays of one shape."""
    x, y = [0.0, *shares], [0 * faithfulness[0], *faithfulness]

    def area(values: Sequence[Any]) -> Any:
        steps = zip(x, x[1:], values, values[1:], strict=False)
        return sum((right - left) * (one + two) / 2 for left, right, one, two in steps)

    return area(y), area([abs(1 - each) for each in y])
