"""Values in words: which tokens every value of every layer promotes, and how peaked it is; kept on disk.

A value v_i is read as U . (gamma * v_i), and how peaked it is as the probability of its top token in the softmax of
that (Geva et al. 2021, "Transformer Feed-Forward Layers Are Key-Value Memories", section 4; Geva et al. 2022).

In a plain FFN with a ReLU, coefficients are not negative. In others, and in all gated ones, m_i may have either sign,
and what is added is m_i v_i: so a value is read as sign(m) v. Both readings are here: of v and of -v.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.edits.weights import memories_of
from corrigenda.models.alone import one_thread
from corrigenda.models.memory import FFNMemory
from corrigenda.system.files import cache_folder, read_kept, write_checked
from corrigenda.system.progress import track
from locate.lens.words import Words, final_norm, read_static, token_texts, unembedding
from locate.saving import SavedResult

ROWS = 256
"""Values that are read at once: what is needed for them is twice (256, vocabulary) numbers."""
BLOCK = 64
"""Tokens of which the best one is looked for first, when the best ones of all are looked for."""
CACHED = 8
"""Rows of scores that are gone through at once where it takes several steps: so few stay in a processor's cache."""
DEFINITION = 1
"""Is in the names of the files on disk; another number for another reading."""

Sign = Literal[1, -1]


@dataclass(frozen=True, eq=False)
class ValueWords(SavedResult, file="values"):
    """The top tokens of values.

    Attributes:
        model: the model's name.
        layers: which layers, counted from the bottom.
        ids: the top tokens, the first one first, (sign, layer, d_ffn, k); the signs are v and -v. A layer with fewer
            values than the widest is filled with token 0 at the score and probability NaN.
        scores: their static scores, in that shape; for -v those of -v.
        probabilities: of the top token, in the softmax over the vocabulary, (sign, layer, d_ffn).
        vocabulary: the texts of all tokens that are among `ids`.
    """

    model: str
    layers: tuple[int, ...]
    ids: Tensor
    scores: Tensor
    probabilities: Tensor
    vocabulary: Mapping[int, str]

    def words(self, layer: int, neuron: int, sign: Sign = 1) -> Words:
        """The top tokens of one value, read as sign * v.

        Raises:
            IndexError: the layer was not read, or has no such value.
            ValueError: the sign is neither 1 nor -1.
        """
        if sign not in (1, -1):
            raise ValueError(f"sign={sign!r} must be 1 (the value) or -1 (what it adds at a negative coefficient)")
        if layer not in self.layers:
            raise IndexError(f"layer {layer} was not read; the layers are {', '.join(map(str, self.layers))}")
        side, row = int(sign < 0), self.layers.index(layer)
        if not 0 <= neuron < self.ids.shape[2] or bool(self.probabilities[side, row, neuron].isnan()):
            raise IndexError(f"neuron {neuron}: layer {layer} has no such value")
        found = tuple(self.ids[side, row, neuron].tolist())
        scores = tuple(self.scores[side, row, neuron].tolist())
        return Words(found, tuple(self.vocabulary[token] for token in found), scores)

    def promoters(self, token: int) -> tuple[tuple[int, int, Sign, float], ...]:
        """The values that have a token among their top ones, the highest score first: layer, neuron, sign, score.

        It looks up what was read, and needs no model. For values to steer by, found among all of them by several words
        together, see `locate.lens.promoters`.
        """
        sides, rows, neurons, places = (self.ids.eq(token) & self.scores.isfinite()).nonzero(as_tuple=True)
        return self._sorted(self.scores[sides, rows, neurons, places], sides, rows, neurons)

    def most_peaked(self, n: int = 100, sign: Sign | None = None) -> tuple[tuple[int, int, Sign, float], ...]:
        """The n values, of a sign or either, whose top token is the most probable: layer, neuron, sign, probability."""
        probabilities = self.probabilities.nan_to_num(-1.0)
        if sign is not None:
            probabilities = probabilities.clone()
            probabilities[int(sign > 0)] = -1.0
        best = probabilities.flatten().topk(min(n, int((probabilities >= 0).sum()))).indices
        sides, rows, neurons = torch.unravel_index(best, probabilities.shape)
        return self._sorted(probabilities[sides, rows, neurons], sides, rows, neurons)

    def _sorted(
        self, by: Tensor, sides: Tensor, rows: Tensor, neurons: Tensor
    ) -> tuple[tuple[int, int, Sign, float], ...]:
        found = zip(rows.tolist(), neurons.tolist(), sides.tolist(), by.tolist(), strict=True)
        places: list[tuple[int, int, Sign, float]] = [(self.layers[r], i, -1 if s else 1, x) for r, i, s, x in found]
        return tuple(sorted(places, key=lambda place: (-place[3], *place[:3])))

    def summary(self) -> dict[str, Any]:
        """The figures in plain values: for each layer how peaked its values are, the likelier sign of each."""
        layers = []
        for row, layer in enumerate(self.layers):
            either = self.probabilities[:, row].amax(0)
            either = either[either.isfinite()]
            layers.append(
                {
                    "layer": layer,
                    "values": len(either),
                    "median": float(either.median()),
                    "highest": float(either.max()),
                }
            )
        return {"model": self.model, "layers": layers}

    def table(self) -> Table:
        """A table for a terminal: by layer how peaked values are, and the most peaked one in words."""
        title = f"the values of {escape(self.model)}: probability of the top token"
        table = Table("layer", "values", "median", "highest", "of", "its tokens", title=title)
        for row, one in enumerate(self.summary()["layers"]):
            place = int(self.probabilities[:, row].nan_to_num(-1.0).argmax())
            side, neuron = divmod(place, self.probabilities.shape[2])
            sign: Sign = -1 if side else 1
            words = self.words(one["layer"], neuron, sign)
            cells = (f"{one['median']:.4f}", f"{one['highest']:.4f}", f"{'-' if side else ''}{neuron}")
            table.add_row(str(one["layer"]), str(one["values"]), *cells, escape(str(words)))
        return table

    def plot(self, path: str | Path) -> None:
        """Draws how peaked values are, by layer, as PNG, PDF or SVG, by the path's suffix."""
        from locate.lens.pictures import quantiles

        either = self.probabilities.amax(0)
        quantiles(path, self.layers, either, label="probability of a value's top token", title=self.model)


@one_thread
def read_values(lm: LanguageModel, layers: Collection[int] | None = None, k: int = 10) -> ValueWords:
    """The top tokens of all values of some layers, of the unedited model.

    Each layer's are computed once and kept on disk under the unedited model's `cache_key`. What is needed in memory
    beside the model is twice (256, vocabulary) numbers and the result.

    Args:
        lm: a decoder with a final norm; edits that are applied are lifted meanwhile.
        layers: which layers, negative numbers count from the end; None for all.
        k: how many tokens of each.

    Raises:
        IndexError: the model has no such layer.
        UnsupportedModelError: the model is an encoder, or has no final norm.
        ValueError: a layer is named twice, or k is below 1 or above the vocabulary.
    """
    final_norm(lm)
    size = len(unembedding(lm))
    if not 1 <= k <= size:
        raise ValueError(f"k={k} tokens of each value cannot be named: {lm.name} has {size}")
    memories = list(memories_of(lm, range(lm.n_layers) if layers is None else layers).values())
    folder = cache_folder() / "values"
    paths = {m.layer: folder / f"{lm.cache_key}-layer{m.layer}-top{k}-{DEFINITION}.safetensors" for m in memories}
    kept = {layer: read_kept(path, "it is computed again") for layer, path in paths.items()}
    found = {layer: known[0] for layer, known in kept.items() if known is not None}
    missing = [memory for memory in memories if memory.layer not in found]
    if missing:
        with lm.edits.suspended():
            for memory in track(missing, f"Values of {len(missing)} layers in words"):
                found[memory.layer] = {name: one.cpu() for name, one in _read_layer(lm, memory, k).items()}
                write_checked(paths[memory.layer], found[memory.layer], {})
    found = {layer: found[layer] for layer in paths}  # in the order asked for
    widest = max(memory.d_ffn for memory in memories)
    parts = {name: torch.stack([_widened(one[name], widest) for one in found.values()], 1) for name in _KEPT}
    used = parts["ids"].unique().tolist()
    vocabulary = dict(zip(used, token_texts(lm, used), strict=True))
    return ValueWords(model=lm.name, layers=tuple(found), vocabulary=vocabulary, **parts)


_KEPT = ("ids", "scores", "probabilities")


@torch.no_grad()
def _read_layer(lm: LanguageModel, memory: FFNMemory, k: int) -> dict[str, Tensor]:
    """For all values of a layer, read as v and as -v: ids (2, d_ffn, k), scores alike, probabilities (2, d_ffn)."""
    parts: list[tuple[Tensor, ...]] = []
    for begin in range(0, memory.d_ffn, ROWS):
        scores = read_static(lm, memory.values[begin : begin + ROWS])
        for _ in range(2):
            best, ids = highest(scores, k)
            probability = 1 / _sums_of_exponentials(scores, best[:, :1])
            parts.append((ids.int().cpu(), best.float().cpu(), probability.float().cpu()))
            scores.neg_()
    sides = [[torch.cat(column) for column in zip(*parts[side::2], strict=True)] for side in range(2)]
    return {name: torch.stack([side[place] for side in sides]) for place, name in enumerate(_KEPT)}


def _sums_of_exponentials(scores: Tensor, largest: Tensor) -> Tensor:
    """The sum of exp(score - largest) of each row, (n,), without a second (n, vocabulary)."""
    buffer = torch.empty_like(scores[:CACHED])
    sums = []
    for some, most in zip(scores.split(CACHED), largest.split(CACHED), strict=True):
        sums.append(torch.sub(some, most, out=buffer[: len(some)]).exp_().sum(-1))
    return torch.cat(sums)


def highest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest scores of each row, (n, vocabulary), the highest first, and where they are: both (n, k).

    As `Tensor.topk`, but quick for long rows: the k highest lie in those k blocks whose highest are highest.
    """
    width = scores.shape[1]
    whole = width // BLOCK * BLOCK
    if whole // BLOCK < 2 * k:
        best, ids = scores.topk(k)
        return best, ids
    peaks = _peaks(scores, whole)
    blocks = peaks.topk(k, sorted=False).indices
    columns = (blocks[:, :, None] * BLOCK + torch.arange(BLOCK, device=scores.device)).flatten(1)
    there = scores.gather(1, columns.clamp(max=width - 1)).masked_fill_(columns >= width, -torch.inf)
    best, places = there.topk(k)
    return best, columns.gather(1, places)


def _peaks(scores: Tensor, whole: int) -> Tensor:
    """The highest of each block, the last of which is shorter."""
    blocks = scores[:, :whole].unflatten(1, (-1, BLOCK)).amax(-1)
    if whole == scores.shape[1]:
        return blocks
    return torch.cat([blocks, scores[:, whole:].amax(-1, keepdim=True)], 1)


def _widened(part: Tensor, d_ffn: int) -> Tensor:
    """A layer's part with as many values as the widest layer has."""
    if part.shape[1] == d_ffn:
        return part
    filled = part.new_full((part.shape[0], d_ffn, *part.shape[2:]), torch.nan if part.is_floating_point() else 0)
    filled[:, : part.shape[1]] = part
    return filled
