"""The graph of a decoder: what writes to the residual stream, and who reads what of it.

Sources are the embedding, each attention head and each FFN. Readers are each head's query, key and value, each FFN, and
the logits. An edge leads from a source to a reader that comes after it. Where several heads share keys and values
(grouped-query attention), each head reads them apart, as in the published graphs: SmolLM2-135M has 123,211 edges. The
score of what a group reads is the sum over its heads.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

PARTS = ("q", "k", "v")


@dataclass(frozen=True)
class Graph:
    """The graph of a model.

    Sources come in the order of the forward: the embedding, then in each layer its heads and its FFN. So do readers: in
    each layer all heads' queries, keys and values, and its FFN; then the logits. Edges are numbered by reader, then by
    source.

    Attributes:
        n_layers: the number of layers.
        n_heads: of each, its attention heads.
        parallel: whether a layer's attention and FFN stand side by side, so that the FFN does not read its heads.
    """

    n_layers: int
    n_heads: int
    parallel: bool = False

    @property
    def n_sources(self) -> int:
        """How many sources there are."""
        return self.first_head(self.n_layers)

    @property
    def n_readers(self) -> int:
        """How many readers there are."""
        return self.n_layers * (3 * self.n_heads + 1) + 1

    @property
    def n_edges(self) -> int:
        """How many edges there are."""
        return int(self.counts.sum())

    def first_head(self, layer: int) -> int:
        """The number of a layer's first head among the sources; for the layer behind the last, how many there are."""
        return 1 + layer * (self.n_heads + 1)

    def ffn(self, layer: int) -> int:
        """The number of a layer's FFN among the sources."""
        return self.first_head(layer) + self.n_heads

    def reads_attention(self, layer: int) -> slice:
        """The numbers of a layer's queries, keys and values among the readers."""
        first = layer * (3 * self.n_heads + 1)
        return slice(first, first + 3 * self.n_heads)

    def reads_ffn(self, layer: int) -> slice:
        """The number of a layer's FFN among the readers; in that of the layer behind the last: of the logits."""
        behind = min(self.reads_attention(layer).stop + 1, self.n_readers)
        return slice(behind - 1, behind)

    @cached_property
    def counts(self) -> Tensor:
        """How many sources, counted from the first, each reader reads, (reader,)."""
        found: list[int] = []
        for layer in range(self.n_layers):
            first = self.first_head(layer)
            found += [first] * 3 * self.n_heads + [first if self.parallel else self.ffn(layer)]
        return torch.tensor([*found, self.n_sources])

    @cached_property
    def exists(self) -> Tensor:
        """Whether a reader reads a source, (reader, source)."""
        return torch.arange(self.n_sources) < self.counts[:, None]

    @cached_property
    def edges(self) -> Tensor:
        """The reader and the source of each edge, (edge, 2)."""
        return self.exists.nonzero()

    def kept(self, edges: Tensor) -> Tensor:
        """The edges of circuits, (circuit, reader, source), from (circuit, edge), both True for what is kept."""
        found = torch.zeros(len(edges), *self.exists.shape, dtype=torch.bool)
        found[:, self.exists] = edges
        return found

    def number(self, source: str, reader: str) -> int:
        """The number of the edge between two names. Raises ValueError: there is no such node, or no such edge."""
        for name, known, kind in ((source, self.sources, "source"), (reader, self.readers, "reader")):
            if name not in known:
                raise ValueError(
                    f"there is no {kind} {name!r}; they go from {known[0]!r} to {known[-1]!r} ({known[1]!r})"
                )
        place = self.readers.index(reader)
        if not self.exists[place, self.sources.index(source)]:
            raise ValueError(f"{reader!r} does not read {source!r}, which comes after it")
        return int(self.counts[:place].sum()) + self.sources.index(source)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """Their names: embedding, 0.head 2, 0.ffn."""
        names = ["embedding"]
        for layer in range(self.n_layers):
            names += [*(f"{layer}.head {head}" for head in range(self.n_heads)), f"{layer}.ffn"]
        return tuple(names)

    @cached_property
    def readers(self) -> tuple[str, ...]:
        """Their names: 0.head 2.q, 0.ffn, logits."""
        names = []
        for layer in range(self.n_layers):
            names += [f"{layer}.head {head}.{part}" for part in PARTS for head in range(self.n_heads)]
            names.append(f"{layer}.ffn")
        return (*names, "logits")
