"""Forwards of a decoder in which every reader of the residual stream has an input of its own.

A layer is run as it is, in three calls: on the readers' inputs up to the attention's output matrix, where each head's
result is taken; on nothing, with these results, for what attention adds; and on the FFN's input with attention taken
away, for what the FFN adds. In the first a head is a row, which gets its keys and values from two other rows through a
cache that exchanges them. So attention, norms, factors, biases and gates are the model's own. A head's part goes
through a norm behind attention with the scale that the whole had. What belongs to no source is a constant.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from corrigenda import LanguageModel
from corrigenda.errors import UnsupportedModelError
from corrigenda.forward.recording import ReachedError, forward_logits, forward_to, watching
from corrigenda.models.families import name_of
from corrigenda.models.matrices import in_out, is_matrix
from corrigenda.models.sites import Site, leaving, running, state_entering, through
from locate.circuits.graph import Graph
from locate.lens.parts import rows_of

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}
"""By precision, how far (total variation) the probabilities of the parts' sum may be from a plain forward's."""


class _Exchange(DynamicCache):
    """A cache that keeps nothing, in which rows get the keys and values of others.

    `sources` says for the next attention whose keys and whose values each row gets, (2, row).
    """

    sources: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **_options: Any) -> tuple[Tensor, Tensor]:
        if self.sources is None:
            return key_states, value_states
        of_key, of_value = self.sources
        self.sources = None
        return key_states[of_key], value_states[of_value]


class Stream:
    """What has been written to the residual stream in a forward of n rows.

    Attributes:
        total: (n, position, d_model).
        n_known: how many sources have been written.
        constants: what was written that belongs to no source, (n, position, d_model); counted where sources are kept.
        history: the same behind each layer's attention that ran.
        keeps: whether what each source writes is kept.
        kept: that, (n, source, position, d_model); zeros of later ones.
    """

    def __init__(self, known: Tensor, constants: Tensor | float, n_sources: int) -> None:
        self.n_known = known.shape[1]
        self.total = known.sum(1) + constants
        self.constants = torch.zeros_like(known[:, 0]) + constants
        self.history: list[Tensor] = []
        self.keeps = n_sources > 0
        self.kept = known.new_zeros(len(known), n_sources, *known.shape[2:])
        if self.keeps:
            self.kept[:, : self.n_known] = known

    def add(self, n: int, whole: Tensor, parts: Tensor | None = None) -> None:
        """Writes what n sources give together, and, where they are kept, one by one: (n rows, n, position, d_model)."""
        self.total = self.total + whole
        if self.keeps:
            if parts is not None:
                self.constants = self.constants + whole - parts.sum(1)
                self.history.append(self.constants)
            self.kept[:, self.n_known : self.n_known + n] = whole[:, None] if parts is None else parts
        self.n_known += n


Inputs = Callable[[Stream, slice], tuple[Tensor, Tensor]]
"""From the stream and some readers' numbers to the states that these read, (m, position, d_model), and which of them
each one reads, (n, reader). A single reader reads as many, in order."""


def whole(stream: Stream, readers: slice) -> tuple[Tensor, Tensor]:
    """Every reader reads the whole stream: a plain forward."""
    rows = torch.arange(len(stream.total), device=stream.total.device)
    return stream.total, rows[:, None].expand(-1, readers.stop - readers.start)


class SplitForward:
    """Forwards of a model after one prompt.

    Args:
        lm: a causal model.
        graph: its graph (`graph_of`).
        ids: the prompt's tokens; other sources, but the positions, may be given to `run`.
    """

    def __init__(self, lm: LanguageModel, graph: Graph, ids: list[int]) -> None:
        self._lm, self._graph = lm, graph
        self._batch = lm.batch([ids])
        self._cache = _Exchange()
        with watching(lm, ()) as watched:
            forward_to(lm, self._batch, 0)
        self._tuple = watched.tuples
        parts, attention, around_heads = lm.architecture, [], []
        for layer in range(lm.n_layers):
            attention.append(_matrices(parts.attention(layer)))
            output, ffn = parts.attention_output(layer), parts.ffn(layer) or parts.whole_ffn(layer)
            around_heads.append([each for each in attention[-1] if each is not output] + _matrices(ffn))
        self._attention, self._around_heads = attention, around_heads

    def run(
        self,
        inputs: Inputs = whole,
        known: Tensor | None = None,
        constants: Tensor | float = 0.0,
        keep: bool = False,
    ) -> tuple[Tensor, Stream]:
        """Runs the prompt, in a row for each of `known`: logits after the last token, (n, vocabulary), and the stream.

        `inputs` say what readers read. `known` is what the first sources write, (n, source, position, d_model): the
        layers below are not run; None for one row, in which the tokens' embeddings are known. `constants`, (n or 1,
        position, d_model), is what belongs to no source in what is known. With `keep` the sources' outputs are kept.
        """
        lm, blocks, found = self._lm, self._lm.architecture.blocks, list[Stream]()
        n_sources = self._graph.n_sources if keep else 0

        def run_layer(layer: int, original: Callable[..., Any], hidden_states: Tensor, *args: Any, **more: Any) -> Any:
            state, alibi = hidden_states, more.get("alibi")

            def block(rows: Tensor) -> Any:
                # BLOOM has rows and heads in one dimension there, which does not go out to many rows by itself.
                own = {} if alibi is None else {"alibi": torch.cat([alibi] * len(rows))}
                return original(rows, *args, **more | own)

            if layer == 0:
                found.append(Stream(state[:, None] if known is None else known, constants, n_sources))
            self._layer(layer, found[0], inputs, block)
            if layer + 1 == lm.n_layers:
                state, _ = inputs(found[0], self._graph.reads_ffn(lm.n_layers))
            return (state, None) if self._tuple else state

        with ExitStack() as stack:
            stack.enter_context(lm.alone)
            for layer, block in enumerate(blocks):
                stack.enter_context(running(block, partial(run_layer, layer, block.forward)))
            stack.enter_context(state_entering(lm.architecture.head, lambda state: state[:, -1:]))
            given = {"input_ids": self._batch.input_ids, "attention_mask": self._batch.attention_mask}
            logits = lm.model(**given, past_key_values=self._cache, use_cache=True).logits[:, -1]
        return logits, found[0]

    def _layer(self, layer: int, stream: Stream, inputs: Inputs, block: Callable[[Tensor], Any]) -> None:
        """Runs what of a layer is not known."""
        graph = self._graph
        heads, ffn = stream.n_known <= graph.first_head(layer), stream.n_known <= graph.ffn(layer)
        entering = inputs(stream, graph.reads_ffn(layer))[0] if graph.parallel and heads else None
        if heads:
            self._add_heads(layer, stream, *inputs(stream, graph.reads_attention(layer)), block)
        if ffn:
            entering = inputs(stream, graph.reads_ffn(layer))[0] if entering is None else entering
            stream.add(1, self._ffn(layer, entering, block))

    def _add_heads(
        self, layer: int, stream: Stream, states: Tensor, which: Tensor, block: Callable[[Tensor], Any]
    ) -> None:
        results, architecture, outputs = (
            self._results(layer, states, which, block),
            self._lm.architecture,
            list[Tensor](),
        )
        with (
            _idle(self._around_heads[layer]),
            through(architecture, Site("heads", layer), lambda _: results),
            leaving(architecture.attention_output(layer), outputs.append),
            leaving(architecture.whole_ffn(layer), _zeros),
        ):
            added = _state(block(torch.zeros_like(stream.total)))
        parts_of_heads = self._by_head(layer, results, outputs[0], added) if stream.keeps else None
        stream.add(self._graph.n_heads, added, parts_of_heads)

    def _results(self, layer: int, states: Tensor, which: Tensor, block: Callable[[Tensor], Any]) -> Tensor:
        """The heads' results, (n, position, head, head size), each with the query, key and value of its own inputs.

        `states` are (m, position, d_model), `which` of them each reader reads, (n, reader): all heads' q, then k, then
        v. `block` runs the layer.
        """
        n_heads, found = self._graph.n_heads, list[Tensor]()
        # Of heads that read the same states one row is run, with all heads in it.
        read, row = which.unflatten(1, (3, n_heads)).transpose(1, 2).flatten(0, 1).unique(dim=0, return_inverse=True)

        def stop(results: Tensor) -> None:
            if self._cache.sources is None:  # keys and values came through the cache
                found.append(results)
            raise ReachedError

        used, place = read[:, 1:].T.unique(return_inverse=True)  # the rows behind the heads' are for these alone
        self._cache.sources = len(read) + torch.cat([place, place.new_zeros(2, len(used))], 1)
        with suppress(ReachedError), through(self._lm.architecture, Site("heads", layer), stop):
            block(states[torch.cat([read[:, 0], used])])
        if not found:
            raise UnsupportedModelError(
                f"{name_of(self._lm.model)}: its attention does not keep keys and values in the usual cache, so that "
                "it cannot be taken apart by head"
            )
        return found[0][row.view(-1, n_heads), :, torch.arange(n_heads, device=row.device)].transpose(1, 2)

    def _by_head(self, layer: int, results: Tensor, output: Tensor, added: Tensor) -> Tensor:
        """What each head adds, (n, head, position, d_model), of its results, (n, position, head, head size)."""
        weight = rows_of(self._lm.architecture.attention_output(layer))
        by_head = torch.einsum("nphw,hwd->nhpd", results, weight.unflatten(0, (results.shape[2], -1)))
        output = output.reshape(added.shape)
        if torch.equal(output, added):
            return by_head
        return by_head * torch.where(output == 0, 1, added / torch.where(output == 0, 1, output))[:, None]

    def _ffn(self, layer: int, entering: Tensor, block: Callable[[Tensor], Any]) -> Tensor:
        """What the FFN adds at states, (n, position, d_model)."""
        with _idle(self._attention[layer]), leaving(self._lm.architecture.attention(layer), _zeros):
            return _state(block(entering)) - entering


def graph_of(lm: LanguageModel, ids: list[int]) -> Graph:
    """The graph of a causal model, by a look at the tokens of any prompt, none of them padding.

    Padding's embedding may be zero. Raises UnsupportedModelError: the model is an encoder or an encoder-decoder, keeps
    no keys and values in a cache, or has an edit that is routed by the prompt; or what a layer adds is not what its
    attention and its FFN add.
    """
    what = "a circuit"
    lm.architecture.require_decoder(what)
    if lm.routing.active:
        raise UnsupportedModelError(f"{what} needs weights that do not depend on the prompt; revert the routed edits")
    batch, seen = lm.batch([ids]), list[Tensor]()
    with lm.alone, leaving(lm.architecture.whole_ffn(0), lambda output: seen.append(_state(output).clone())):
        forward_to(lm, batch, 0)
        with leaving(lm.architecture.attention(0), _zeros):
            forward_to(lm, batch, 0)
    graph = Graph(lm.n_layers, lm.architecture.n_heads(0), parallel=torch.equal(*seen))
    with torch.no_grad():
        logits = SplitForward(lm, graph, ids).run()[0].float().softmax(-1)
        wanted = forward_logits(lm, batch, batch.lengths - 1).float().softmax(-1)
    apart = float((logits - wanted).abs().sum() / 2)
    if not apart <= TOLERANCE.get(lm.dtype, 5e-2):
        raise UnsupportedModelError(
            f"{name_of(lm.model)}: what its layers add is not the sum of what their attention and their FFN add (the "
            f"probabilities are off by {apart:.2g}), so that it has no graph of edges; or it gives no numbers"
        )
    return graph


def _state(output: Any) -> Tensor:
    state: Tensor = output[0] if isinstance(output, tuple) else output
    return state


def _matrices(module: nn.Module) -> list[nn.Module]:
    """The matrices of a module."""
    return [part for part in module.modules() if is_matrix(part)]


@contextmanager
def _idle(matrices: Iterable[nn.Module]) -> Iterator[None]:
    """Inside the ``with`` block matrices answer with zeros: their products would not be looked at."""
    with ExitStack() as stack:
        for matrix in matrices:
            width = in_out(matrix)[1]
            stack.enter_context(running(matrix, lambda x, width=width: x.new_zeros(*x.shape[:-1], width)))
        yield


def _zeros(output: Any) -> Any:
    nothing = torch.zeros_like(_state(output))
    return (nothing, *output[1:]) if isinstance(output, tuple) else nothing
