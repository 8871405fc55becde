import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.errors import UnsupportedModelError
from corrigenda.forward.recording import forward_logits
from locate.circuits.forward import graph_of
from locate.circuits.scores import Ablation, ablation, attribute, exact, written

NORMS = {
    "llama": ("input_layernorm", "post_attention_layernorm"),
    "bloom": ("input_layernorm", "post_attention_layernorm"),
    "falcon": ("input_layernorm",),
    "gpt_neo": ("ln_1", "ln_2"),
    "gptj": ("ln_1",),
}
"""What stands before attention and the FFN; one norm where these stand side by side."""
PROMPT, OTHER = [5, 9, 14, 22, 31, 8], [5, 9, 17, 25, 31, 8]


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


class ByHooks:
    """A model with plain hooks: what sources write, and m where a reader reads something else of one source."""

    def __init__(self, family: str) -> None:
        self.lm, self.family = tiny.build(family), family
        self.norms = [[getattr(block, name) for name in NORMS[family]] for block in self.lm.architecture.blocks]

    def written(self, ids: list[int]) -> dict[str, Tensor]:
        parts, found = self.lm.architecture, dict[str, Tensor]()
        hooks = [parts.block(0).register_forward_pre_hook(lambda _m, args: found.update(embedding=args[0]))]
        for layer in range(4):

            def heads(module: torch.nn.Module, args: tuple[Tensor], layer: int = layer) -> None:
                for head, (z, columns) in enumerate(zip(args[0].split(8, -1), module.weight.split(8, 1), strict=True)):
                    found[f"{layer}.head {head}"] = z @ columns.T

            def ffn(_module: torch.nn.Module, _args: Any, output: Tensor, layer: int = layer) -> None:
                found[f"{layer}.ffn"] = output.clone()

            hooks += [parts.attention_output(layer).register_forward_pre_hook(heads)]
            hooks += [parts.values(layer).register_forward_hook(ffn)]
        self.metric(ids, hooks)
        return found

    def metric(self, ids: list[int], hooks: list[Any]) -> float:
        try:
            return plain(self.lm, ids)
        finally:
            for hook in hooks:
                hook.remove()

    def without(self, reader: str, change: Tensor) -> tuple[float, list[str]]:
        """M where a reader reads so much more; and all readers that then do: heads may share a key and a value."""
        if reader == "logits":
            hook = self.lm.architecture.final_norm.register_forward_pre_hook(lambda _m, args: (args[0] + change,))
            return self.metric(PROMPT, [hook]), [reader]
        layer, _, part = reader.partition(".")
        block, norm, readers = self.lm.architecture.block(int(layer)), self.norms[int(layer)][0], [reader]
        if part == "ffn":
            module, columns, norm = self.lm.architecture.keys(int(layer)), slice(None), self.norms[int(layer)][-1]
        else:
            head, kind = int(part[5]), "qkv".index(part[-1])
            if self.family in ("gptj", "gpt_neo"):
                around = block.attn if self.family == "gptj" else block.attn.attention
                module, columns = getattr(around, f"{part[-1]}_proj"), slice(8 * head, 8 * head + 8)
            else:  # one matrix: of BLOOM by head, of Falcon all queries and the one key and value of all heads
                place = 3 * head + kind if self.family == "bloom" else (head, 4, 5)[kind]
                module, columns = block.self_attention.query_key_value, slice(8 * place, 8 * place + 8)
                if self.family == "falcon" and kind:
                    readers = [f"{layer}.head {each}.{part[-1]}" for each in range(4)]
        read: list[Tensor] = []

        def changed(_module: torch.nn.Module, _args: Any, output: Tensor) -> Tensor:
            output = output.clone()
            output[..., columns] = module.forward(norm.forward(read[0] + change))[..., columns]
            return output

        hooks = [norm.register_forward_pre_hook(lambda _m, args: read.append(args[0]))]
        return self.metric(PROMPT, [*hooks, module.register_forward_hook(changed)]), readers


@pytest.mark.parametrize("family", ["bloom", "falcon", "gpt_neo", "gptj"])
def test_exact_scores_are_those_by_plain_hooks(family: str) -> None:
    """Each fifth edge; of Falcon's keys and values, which its heads share, those of all heads together."""
    by_hooks = ByHooks(family)
    task, written_there, instead = task_of(by_hooks.lm), by_hooks.written(PROMPT), by_hooks.written(OTHER)
    for source, output in written_there.items():
        assert torch.allclose(task.clean[task.graph.sources.index(source)], output, atol=1e-5)
    graph, edges, everything = task.graph, range(0, task.graph.n_edges, 5), plain(by_hooks.lm, PROMPT)
    for edge, score in zip(edges, exact(task, edges).tolist(), strict=True):
        reader, source = graph.readers[graph.edges[edge, 0]], graph.sources[graph.edges[edge, 1]]
        without, readers = by_hooks.without(reader, instead[source] - written_there[source])
        if len(readers) > 1:
            kept = torch.ones(1, graph.n_edges, dtype=torch.bool)
            kept[0, [graph.number(source, each) for each in readers]] = False
            score = everything - float(task.values(kept))
        assert score == pytest.approx(everything - without, abs=2e-5), (edge, source, reader)


@pytest.mark.parametrize("method", ["eap", "eap_ig", "eap_ig_activations"])
def test_equal_inputs_give_zero(method: str) -> None:
    lm, task = llama()
    same = ablation(lm, task.graph, PROMPT, metric, task.clean)
    assert not attribute(same, method, 2).any()
    assert exact(same, [0, 100, 478]).abs().max() < 1e-6


@pytest.mark.parametrize("family", NORMS)
def test_edges_into_a_node_sum_to_its_score(family: str) -> None:
    """(x - x') . dm/dx, x what a norm is given, from plain hooks: before attention (all q, k, v), FFN and logits."""
    lm = tiny.build(family)
    task = task_of(lm)
    scores = task.graph.kept(torch.ones(1, task.graph.n_edges, dtype=torch.bool))[0].to(task.clean)
    scores[task.graph.exists] = attribute(task, "eap", 1)
    by_reader = scores.sum(1)
    for layer in range(4):
        attention, ffn = (by_reader[each(layer)].sum() for each in (task.graph.reads_attention, task.graph.reads_ffn))
        norms = [getattr(lm.architecture.block(layer), name) for name in NORMS[family]]
        found = [attention, ffn] if len(norms) == 2 else [attention + ffn]
        assert torch.stack(found).tolist() == pytest.approx([node_score(lm, norm) for norm in norms], abs=1e-5)
    assert float(by_reader[-1]) == pytest.approx(node_score(lm, lm.architecture.final_norm), abs=1e-5)


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


@pytest.mark.parametrize("family", [*tiny.DECODERS, *tiny.MIXTURES])
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


@pytest.mark.parametrize("family", NORMS)
def test_integrated_scores_of_the_embedding_sum_to_the_difference_of_the_metric(family: str) -> None:
    """Integrated gradients are complete: over the embedding's edges, m after the prompt less m after the other one."""
    lm = tiny.build(family)
    task = task_of(lm)
    of_embedding = task.graph.edges[:, 1] == 0
    total = float(attribute(task, "eap_ig", 200)[of_embedding].sum())
    assert total == pytest.approx(plain(lm, PROMPT) - plain(lm, OTHER), abs=5e-3)


@pytest.mark.parametrize("family", [*NORMS, "phi"])
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


def test_attention_that_keeps_nothing_in_the_cache_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny.build("llama")
    monkeypatch.setattr(lm.model, "forward", partial(without_cache, lm.model.forward))
    with pytest.raises(UnsupportedModelError, match="cannot be taken apart by head"):
        graph_of(lm, PROMPT)


def without_cache(forward: Callable[..., Any], **given: Any) -> Any:
    return forward(**given | {"past_key_values": None, "use_cache": False})


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_in_other_precisions_scores_are_those_of_the_same_weights(family: str, dtype: torch.dtype) -> None:
    """Also where the first token's state is a hundred times the others'."""
    found = []
    for precision in (torch.float32, dtype):
        lm = tiny.build(family)
        with torch.no_grad():
            lm.model.get_input_embeddings().weight[PROMPT[0], 3] = 100.0
        lm.model.bfloat16().to(precision)
        graph = graph_of(lm, PROMPT)
        task = ablation(lm, graph, PROMPT, lambda logits: metric(logits.float()), written(lm, graph, OTHER))
        with torch.no_grad():
            ends = task.values(torch.stack([torch.ones(graph.n_edges), torch.zeros(graph.n_edges)]).bool())
        found.append((ends, exact(task, range(0, graph.n_edges, 7)), attribute(task, "eap_ig", 3)))
    half = dtype == torch.bfloat16
    for wanted, given in zip(*found, strict=True):
        assert given.dtype in (torch.float32, dtype)
        near = 0.05 * float(wanted.abs().max()) + 0.01 if half else 1e-4
        assert float((given - wanted).abs().max()) < near
    assert float((found[1][2] - found[0][2]).norm() / found[0][2].norm()) < (0.1 if half else 1e-4)
