"""How much of what a model does its circuits do.

f(C) = (m(C) - m(none)) / (m(all) - m(none)), m(C) that of a forward in which the edges outside C are ablated. Over
circuits of growing size (Mueller et al. 2025, "MIB: A Mechanistic Interpretability Benchmark") CPR is the area under f,
higher is better, and CMD the area of |1 - f|, lower is better: both by trapezoids over the share of edges from 0, where
f is 0, to 1, where it is 1.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from locate.circuits.scores import Ablation

SHARES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Of all edges."""
BY = ("score", "random", "activation")
"""By what edges are ranked: their scores; nothing; how much their sources write (the norm, whoever reads it)."""


@torch.no_grad()
def metric_by_size(task: Ablation, orders: Sequence[Tensor], shares: Sequence[float] = SHARES) -> tuple[Tensor, Tensor]:
    """M of circuits of growing size, in real forwards.

    Args:
        task: the prompt.
        orders: rankings of all edges, (edge,) each, the first kept first.
        shares: which shares of all edges are kept, in rising order.

    Returns:
        m of the circuits, (order, share), and of no edge and of all edges, (2,).
    """
    n = task.graph.n_edges
    sizes = torch.tensor([size for share in shares if (size := round(share * n)) < n])
    kept = torch.zeros(len(orders), len(sizes), n, dtype=torch.bool)
    for number, order in enumerate(orders):
        kept[number] = torch.empty_like(order).scatter(0, order, torch.arange(n)) < sizes[:, None]
    ends = torch.stack([torch.zeros(n, dtype=torch.bool), torch.ones(n, dtype=torch.bool)])
    found = task.values(torch.cat([ends, kept.flatten(0, 1)])).cpu()
    by_size = found[2:].view(len(orders), -1)
    whole = found[1].expand(len(orders), len(shares) - len(sizes))  # all edges are the same ones in any order
    return torch.cat([by_size, whole], 1), found[:2]


def rankings(task: Ablation, scores: Tensor, absolute: bool, seed: int) -> list[Tensor]:
    """The rankings `BY` of all edges, (edge,) each; of equals, as of the readers of a source, the order is drawn."""
    drawn = torch.randperm(task.graph.n_edges, generator=torch.Generator().manual_seed(seed))
    amount = task.clean.flatten(1).norm(dim=1).cpu()[task.graph.edges[:, 1]]
    ranked = (scores.abs() if absolute else scores).cpu()
    by_score, by_amount = (drawn[each[drawn].argsort(descending=True, stable=True)] for each in (ranked, amount))
    return [by_score, drawn, by_amount]


def areas(shares: Sequence[float], faithfulness: Sequence[Any]) -> tuple[Any, Any]:
    """CPR and CMD.

    Args:
        shares: of edges.
        faithfulness: f at each: numbers, or arrays of one shape.
    """
    x, y = [0.0, *shares], [0 * faithfulness[0], *faithfulness]

    def area(values: Sequence[Any]) -> Any:
        steps = zip(x, x[1:], values, values[1:], strict=False)
        return sum((right - left) * (one + two) / 2 for left, right, one, two in steps)

    return area(y), area([abs(1 - each) for each in y])
