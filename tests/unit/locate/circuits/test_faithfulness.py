from dataclasses import replace

import pytest
import tiny
import torch

from locate.circuits.faithfulness import areas, carried_shares, rankings
from locate.circuits.forward import graph_of
from locate.circuits.scores import Ablation, ablation, written

PROMPT, OTHER = [5, 9, 14, 22, 31, 8], [5, 9, 17, 25, 31, 8]


@pytest.fixture(scope="module", params=["llama", "gpt2", "phi"])
def task(request: pytest.FixtureRequest) -> Ablation:
    """Also with biases, and with attention beside the FFN."""
    lm = tiny.build(request.param)
    graph = graph_of(lm, PROMPT)
    return ablation(lm, graph, PROMPT, lambda logits: logits[:, 33] - logits[:, 34], written(lm, graph, OTHER))


def by_activation(task: Ablation) -> torch.Tensor:
    return rankings(task, torch.zeros(task.graph.n_edges), True, ["activation"], 0)["activation"]


def test_cpr_and_cmd_by_hand() -> None:
    """F is 0 at 0, 0.5 at half of the edges and 1 at all of them, or 2 at half of them."""
    assert areas((0.5, 1.0), [0.5, 1.0]) == pytest.approx((0.5, 0.5))
    assert areas((0.5, 1.0), [2.0, 1.0]) == pytest.approx((0.5 * 1 + 0.5 * 1.5, 0.5 * 1 + 0.5 * 0.5))


def test_what_an_edge_carries_by_hand(task: Ablation) -> None:
    """Of what the logits read, at each position; and all that the first layer's attention reads is the embedding."""
    shares, graph = carried_shares(task), task.graph
    first = [graph.number("embedding", f"0.head {head}.{part}") for head in range(graph.n_heads) for part in "qkv"]
    assert shares[first].tolist() == pytest.approx([1.0] * len(first))
    wanted = torch.zeros(graph.n_sources)
    for position in range(len(PROMPT)):
        read = sum(task.clean[:, position]) + task.constants[-1][position]
        near = [max(0.0, float(read.abs().sum() - (read - z).abs().sum())) for z in task.clean[:, position]]
        wanted += torch.tensor(near) / sum(near) / len(PROMPT)
    assert shares[-graph.n_sources :].tolist() == pytest.approx(wanted.tolist(), abs=1e-5)


def test_huge_states_at_the_first_token_rank_no_edge(task: Ablation) -> None:
    """What all sources write there is the same in both prompts, and may be hundreds of times as large."""
    huge = torch.ones(len(PROMPT))
    huge[0] = 512.0
    larger = replace(task, clean=task.clean * huge[:, None], constants=task.constants * huge[:, None])
    assert torch.equal(by_activation(task), by_activation(larger))


def test_deep_states_do_not_come_before_the_embedding(task: Ablation) -> None:
    """Each layer writes ten times as much as the one before: what reads only the embedding still reads all of it."""
    graph = task.graph
    growth = torch.ones(graph.n_sources)
    for layer in range(graph.n_layers):
        growth[graph.first_head(layer) :] *= 10
    deep = replace(task, clean=task.clean * growth[:, None, None], constants=torch.zeros_like(task.constants))
    first = graph.edges[by_activation(deep)[: 3 * graph.n_heads]]
    assert set(first[:, 1].tolist()) == {0}
