"""Scores of edges: by how much a metric m of the logits falls when an edge is ablated.

For an edge from source s to reader r, with z_s what the source writes, z'_s what is put in its place, x_r what the
reader reads and m higher where the model says the object:

    eap                   sum over positions of (z_s - z'_s) . dm/dx_r, at the prompt (Syed et al. 2023)
    eap_ig                with the mean gradient at z'_0 + (k / n)(z_0 - z'_0), k = 1 .. n, z_0 the embedding (Hanna et
                          al. 2024, "Have Faith in Faithfulness")
    eap_ig_activations    with the mean gradient where what the source's own module writes is z' + (k / n)(z - z')
    exact                 m(all) - m(all but the edge), by a forward of its own

The first three take m to be linear in x_r. Their signs are those of the authors, whose metric is a loss. In the third
their program takes for each edge the mean over the runs of all modules, not of the source's own alone, as here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.differentiable import differentiable
from locate.circuits.forward import SplitForward, Stream
from locate.circuits.graph import Graph

Method = Literal["eap", "eap_ig", "eap_ig_activations"]
MAX_TOKENS = 4096
"""So many tokens, counted at each reader of a layer, run at once without gradients; a quarter of that with them."""


@dataclass(frozen=True, eq=False)
class Ablation:
    """A prompt, and what stands for its sources where they are ablated.

    Attributes:
        graph: the model's.
        forward: of the prompt.
        metric: from the logits after the prompt, (n, vocabulary), to m, (n,).
        clean: what each source writes in the prompt, (source, position, d_model).
        constants: what belongs to no source before the first layer and behind each layer's attention, (1 + layer,
            position, d_model).
        ablated: what is put in the place of what each source writes, (source, position, d_model).
    """

    graph: Graph
    forward: SplitForward
    metric: Callable[[Tensor], Tensor]
    clean: Tensor
    constants: Tensor
    ablated: Tensor

    def values(self, kept: Tensor, known: int = 1) -> Tensor:
        """M of circuits, (circuit,), in real forwards: what is not `kept`, (circuit, edge), is read as in `ablated`.

        Of the first `known` sources all edges are kept, and all those between them.
        """
        found = []
        for some in kept.split(self._rows(MAX_TOKENS)):
            reads = _Patched(self.graph, self.graph.kept(some).to(self.clean), self.ablated)
            rows = self.clean[None, :known].expand(len(some), -1, -1, -1)
            found.append(self.metric(self.forward.run(reads, rows, self.constants_after(known), keep=True)[0]))
        return torch.cat(found)

    def gradients(self, known: Tensor) -> Tensor:
        """The mean over rows of dm/dx_r at each reader, (reader, position, d_model); zeros at those that do not run.

        `known` is what the first sources write in each row, (n, source, position, d_model).
        """
        found = known.new_zeros(self.graph.n_readers, *known.shape[2:])
        for some in known.split(self._rows(MAX_TOKENS // 4)):
            reads = _Watched()
            with differentiable():
                rows = some.detach().requires_grad_()
                logits, _ = self.forward.run(reads, rows, self.constants_after(known.shape[1]))
                gradients = torch.autograd.grad(self.metric(logits).sum(), [inputs for _, inputs in reads.seen])
            for (readers, _), gradient in zip(reads.seen, gradients, strict=True):
                found[readers] += gradient.unflatten(0, (len(some), -1)).sum(0) / len(known)
        return found

    def _rows(self, tokens: int) -> int:
        return max(1, tokens // (3 * self.graph.n_heads * self.clean.shape[1]))

    def constants_after(self, known: int) -> Tensor:
        """What belongs to no source in what the first `known` sources write, (position, d_model)."""
        layers = sum(known > self.graph.first_head(layer) for layer in range(self.graph.n_layers))
        return self.constants[layers]


def ablation(
    lm: LanguageModel, graph: Graph, ids: Sequence[int], metric: Callable[[Tensor], Tensor], ablated: Tensor
) -> Ablation:
    """Runs a prompt once, for what its edges carry; `ablated` as in `Ablation`, or zeros, (1, 1, 1)."""
    forward = SplitForward(lm, graph, list(ids))
    with torch.no_grad():
        _, stream = forward.run(keep=True)
    clean = stream.kept[0]
    constants = torch.cat([torch.zeros_like(clean[:1]), *stream.history])
    return Ablation(graph, forward, metric, clean, constants, ablated.expand(clean.shape))


def written(lm: LanguageModel, graph: Graph, ids: Sequence[int]) -> Tensor:
    """What each source writes after a prompt, (source, position, d_model)."""
    with torch.no_grad():
        return SplitForward(lm, graph, list(ids)).run(keep=True)[1].kept[0]


def attribute(task: Ablation, method: Method, steps: int) -> Tensor:
    """The scores of all edges, (edge,), to first order."""
    graph, embedding = task.graph, slice(0, 1)
    difference = (task.clean - task.ablated).flatten(1)
    if method != "eap_ig_activations":
        known = task.clean[None, :1] if method == "eap" else _interpolated(task, embedding, steps)
        return (task.gradients(known).flatten(1) @ difference.T)[graph.exists]
    parts = [embedding]
    for layer in range(graph.n_layers):
        parts += [slice(graph.first_head(layer), graph.ffn(layer)), slice(graph.ffn(layer), graph.ffn(layer) + 1)]
    gradients = (task.gradients(_interpolated(task, part, steps)).flatten(1) for part in parts)
    return torch.cat([each @ difference[part].T for each, part in zip(gradients, parts, strict=True)], 1)[graph.exists]


@torch.no_grad()
def exact(task: Ablation, edges: Sequence[int]) -> Tensor:
    """The exact scores of some edges, (n,) in float32: m(all) - m(all but the edge), a forward each."""
    graph, chosen = task.graph, torch.tensor(edges, dtype=torch.long)
    found = torch.zeros(len(chosen), device=task.clean.device)
    layers = graph.edges[chosen, 0] // (3 * graph.n_heads + 1)
    for layer in layers.unique().tolist():  # the layers below are as in the prompt
        among = layers == layer
        kept = torch.ones(int(among.sum()) + 1, graph.n_edges, dtype=torch.bool)
        kept[:-1].scatter_(1, chosen[among, None], False)
        values = task.values(kept, graph.first_head(layer))
        found[among] = (values[-1] - values[:-1]).float()
    return found


def _interpolated(task: Ablation, part: slice, steps: int) -> Tensor:
    """What is known where some sources write what lies between, (step, source, position, d_model)."""
    graph, end = task.graph, part.stop
    if graph.parallel and end > 1:  # the FFN beside heads does not read them
        end = -(-(end - 1) // (graph.n_heads + 1)) * (graph.n_heads + 1) + 1
    rows = task.clean[None, :end].repeat(steps, 1, 1, 1)
    share = (torch.arange(1, steps + 1, device=rows.device) / steps).to(rows)[:, None, None, None]
    rows[:, part] = task.ablated[part] + share * (task.clean - task.ablated)[part]
    return rows


class _Watched:
    """Readers read the whole stream, and what each reads can be asked for a gradient."""

    def __init__(self) -> None:
        self.seen: list[tuple[slice, Tensor]] = []

    def __call__(self, stream: Stream, readers: slice) -> tuple[Tensor, Tensor]:
        n = readers.stop - readers.start
        states = stream.total.repeat_interleave(n, 0)
        self.seen.append((readers, states))
        return states, torch.arange(len(states), device=states.device).view(-1, n)


@dataclass(frozen=True, eq=False)
class _Patched:
    """Readers read what the kept edges carry, and of the others what is put in their place."""

    graph: Graph
    kept: Tensor
    ablated: Tensor

    def __call__(self, stream: Stream, readers: slice) -> tuple[Tensor, Tensor]:
        n = int(self.graph.counts[readers.start])
        ablated, states, which, n_states = self.ablated[:n], [], [], 0
        without = ablated.sum(0)
        for row, kept in enumerate(self.kept[:, readers, :n]):
            alike, number = kept.unique(dim=0, return_inverse=True)  # readers of the same edges read the same
            carried = (alike @ (stream.kept[row, :n] - ablated).flatten(1)).unflatten(1, without.shape)
            states.append(carried + (without + stream.constants[row]))
            which.append(n_states + number)
            n_states += len(alike)
        return torch.cat(states), torch.stack(which)
