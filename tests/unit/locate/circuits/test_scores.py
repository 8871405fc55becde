import functools

import pytest
import tiny
import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.errors import UnsupportedModelError
from corrigenda.forward.recording import forward_logits
from locate.circuits.forward import graph_of
from locate.circuits.scores import Ablation, ablation, attribute, exact, written

PROMPT, OTHER = [5, 9, 14, 22, 31, 8], [5, 9, 17, 25, 31, 8]
REFUSED = ["bloom", "falcon", "gpt_neo", "gptj"]
FAMILIES = [each for each in [*tiny.DECODERS, *tiny.MIXTURES] if each not in REFUSED]


def metric(logits: Tensor) -> Tensor:
    return logits[:, 33] - logits[:, 34]


def plain(lm: LanguageModel, ids: list[int]) -> float:
    batch = lm.batch([ids])
    with torch.no_grad():
        return float(metric(forward_logits(lm, batch, batch.lengths - 1)))


def task_of(lm: LanguageModel) -> Ablation:
    graph = graph_of(lm, PROMPT)
    return ablation(lm, graph, PROMPT, metric, written(lm, graph, OTHER))


@functools.cache
def llama() -> tuple[LanguageModel, Ablation]:
    lm = tiny.build("llama")
    return lm, task_of(lm)


class ByHand:
    """A Llama with shared keys and values, written out in float64: what each source writes, and m without one edge."""

    def __init__(self, lm: LanguageModel) -> None:
        self.weights = {name: each.double() for name, each in lm.model.state_dict().items()}
        self.embed = self.weights["model.embed_tokens.weight"]
        angles = torch.arange(6.0, dtype=torch.float64)[:, None] / 10000.0 ** (torch.arange(0, 8, 2) / 8.0).double()
        self.cos, self.sin = (each(angles).repeat(1, 2) for each in (torch.cos, torch.sin))

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.weights[name]

    def turned(self, x: Tensor) -> Tensor:
        return x * self.cos + torch.cat([-x[:, 4:], x[:, :4]], -1) * self.sin

    def run(self, ids: list[int], dropped: tuple[str, str] | None = None, instead: dict[str, Tensor] | None = None):
        """M, and what each source writes; the reader of a dropped edge (source, reader) reads something else of it."""
        written = {"embedding": self.embed[ids]}

        def read(reader: str) -> Tensor:
            return sum(instead[s] if dropped == (s, reader) else z for s, z in written.items())  # type: ignore[misc]

        for layer in range(4):
            at = f"model.layers.{layer}"
            heads = {}
            for head in range(4):
                part = {}
                for name in "qkv":
                    group = head if name == "q" else head // 2
                    rows = self.weights[f"{at}.self_attn.{name}_proj.weight"][8 * group : 8 * group + 8]
                    x = self.norm(read(f"{layer}.head {head}.{name}"), f"{at}.input_layernorm.weight")
                    part[name] = x @ rows.T
                scores = self.turned(part["q"]) @ self.turned(part["k"]).T / 8**0.5
                scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf).softmax(-1)
                columns = self.weights[f"{at}.self_attn.o_proj.weight"][:, 8 * head : 8 * head + 8]
                heads[f"{layer}.head {head}"] = scores @ part["v"] @ columns.T
            written |= heads
            x = self.norm(read(f"{layer}.ffn"), f"{at}.post_attention_layernorm.weight")
            gate, up, down = (self.weights[f"{at}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
            written[f"{layer}.ffn"] = (torch.nn.functional.silu(x @ gate.T) * (x @ up.T)) @ down.T
        logits = self.norm(read("logits"), "model.norm.weight")[-1:] @ self.weights["lm_head.weight"].T
        return float(metric(logits)), written


def test_exact_scores_are_those_by_brute_force() -> None:
    """Each third edge of a Llama of four layers, four heads and two groups, in a forward written out by hand."""
    lm, task = llama()
    by_hand = ByHand(lm)
    everything, written_there = by_hand.run(PROMPT)
    instead = by_hand.run(OTHER)[1]
    for source, output in written_there.items():
        assert torch.allclose(task.clean[task.graph.sources.index(source)].double(), output, atol=1e-4)
    graph, edges = task.graph, range(0, task.graph.n_edges, 3)
    for edge, score in zip(edges, exact(task, edges).tolist(), strict=True):
        reader, source = graph.edges[edge].tolist()
        without, _ = by_hand.run(PROMPT, (graph.sources[source], graph.readers[reader]), instead)
        assert score == pytest.approx(everything - without, abs=2e-5), (edge, source, reader)


@pytest.mark.parametrize("method", ["eap", "eap_ig", "eap_ig_activations"])
def test_equal_inputs_give_zero(method: str) -> None:
    lm, task = llama()
    same = ablation(lm, task.graph, PROMPT, metric, task.clean)
    assert not attribute(same, method, 2).any()
    assert exact(same, [0, 100, 478]).abs().max() < 1e-6


def test_edges_into_a_node_sum_to_its_score() -> None:
    """(x - x') . dm/dx, x what a norm is given, from plain hooks: before attention (all q, k, v), FFN and logits."""
    lm, task = llama()
    scores = task.graph.kept(torch.ones(1, task.graph.n_edges, dtype=torch.bool))[0].to(task.clean)
    scores[task.graph.exists] = attribute(task, "eap", 1)
    by_reader = scores.sum(1)
    for layer in range(4):
        block = lm.model.model.layers[layer]
        attention, ffn = node_score(lm, block.input_layernorm), node_score(lm, block.post_attention_layernorm)
        assert float(by_reader[task.graph.reads_attention(layer)].sum()) == pytest.approx(attention, abs=1e-5)
        assert float(by_reader[task.graph.reads_ffn(layer)].sum()) == pytest.approx(ffn, abs=1e-5)
    assert float(by_reader[-1]) == pytest.approx(node_score(lm, lm.model.model.norm), abs=1e-5)


def node_score(lm: LanguageModel, norm: torch.nn.Module) -> float:
    seen: list[Tensor] = []

    def keep(_module: torch.nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        seen.append(args[0].detach().requires_grad_() if not seen else args[0])
        return (seen[-1],)

    hook = norm.register_forward_pre_hook(keep)
    try:
        with torch.enable_grad():
            [gradient] = torch.autograd.grad(metric(lm.model(torch.tensor([PROMPT])).logits[:, -1]).sum(), seen[:1])
        lm.model(torch.tensor([OTHER]))
    finally:
        hook.remove()
    return float(((seen[0] - seen[1]).detach() * gradient).sum())


@pytest.mark.parametrize("family", FAMILIES)
def test_in_every_family_all_edges_give_the_prompt_and_none_the_counterfactual(family: str) -> None:
    """And to first order a small ablation is what the gradients say, for all edges."""
    lm = tiny.build(family)
    task = task_of(lm)
    kept = torch.stack([torch.ones(task.graph.n_edges), torch.zeros(task.graph.n_edges)]).bool()
    with torch.no_grad():
        everything, none = task.values(kept).tolist()
    assert (everything, none) == (pytest.approx(plain(lm, PROMPT), abs=1e-5), pytest.approx(plain(lm, OTHER), abs=1e-5))
    small = ablation(lm, task.graph, PROMPT, metric, task.clean + 0.02 * (task.ablated - task.clean))
    edges = torch.randperm(task.graph.n_edges, generator=torch.Generator().manual_seed(0))[:40].tolist()
    found, linear = exact(small, edges), attribute(small, "eap", 1)[edges]
    assert (found - linear).norm() < 0.1 * found.norm() + 2e-6
    assert lm.model.config._attn_implementation != "corrigenda_circuits"
    assert not any("forward" in vars(block) for block in lm.architecture.blocks)


def test_integrated_scores_of_the_embedding_sum_to_the_difference_of_the_metric() -> None:
    """Integrated gradients are complete: over the embedding's edges, m after the prompt less m after the other one."""
    lm, task = llama()
    of_embedding = task.graph.edges[:, 1] == 0
    total = float(attribute(task, "eap_ig", 200)[of_embedding].sum())
    assert total == pytest.approx(plain(lm, PROMPT) - plain(lm, OTHER), abs=5e-3)


@pytest.mark.parametrize("family", ["llama", "phi"])
def test_integrated_scores_of_a_module_sum_to_what_patching_it_does(family: str) -> None:
    """Also where attention and the FFN stand side by side."""
    lm = tiny.build(family)
    task = task_of(lm)
    graph = task.graph
    scores = attribute(task, "eap_ig_activations", 40)
    for part in (range(graph.first_head(1), graph.ffn(1)), [graph.ffn(2)]):
        chosen = torch.isin(graph.edges[:, 1], torch.tensor(list(part)))
        kept = torch.stack([torch.ones(graph.n_edges, dtype=torch.bool), ~chosen])
        with torch.no_grad():
            everything, without = task.values(kept).tolist()
        assert float(scores[chosen].sum()) == pytest.approx(
            everything - without, abs=0.02 * abs(everything - without) + 1e-3
        )


@pytest.mark.parametrize("family", REFUSED)
def test_attention_that_cannot_be_taken_apart_is_refused(family: str) -> None:
    with pytest.raises(UnsupportedModelError, match="cannot be taken apart by head"):
        graph_of(tiny.build(family), PROMPT)
