"""The values that promote given words: what a model can be steered by.

Geva et al. 2022, "Transformer Feed-Forward Layers Build Predictions by Promoting Concepts in the Vocabulary Space",
sections 4 and 5.1. A value's score of a token is e . (gamma * v) (`locate.lens.words.read_static`); how far it stands
out among the value's scores of all tokens, in standard deviations, makes values comparable. (`ValueWords.promoters`
looks a token up among the few top tokens of each value that are on disk, and needs no model.)
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.edits.weights import memories_of
from corrigenda.models.alone import one_thread
from corrigenda.models.neurons import Neuron
from corrigenda.settings.checked import AtLeastOne, check_value
from locate.lens.words import COLUMNS, final_norm, norm_weight, precision, token_id, unembedding


@dataclass(frozen=True)
class Promoter:
    """A value that promotes some tokens.

    Attributes:
        layer: its layer.
        neuron: its number there.
        direction: 1 where a positive coefficient promotes them, -1 where a negative one does (gated FFNs have both).
        score: by how many standard deviations of the value's scores of all tokens these stand above the mean, averaged
            over the tokens.
    """

    layer: int
    neuron: int
    direction: int
    score: float


@one_thread
@torch.no_grad()
def promoters(
    lm: LanguageModel, tokens: Collection[str | int], n: int = 10, layers: Sequence[int] | None = None
) -> tuple[Promoter, ...]:
    """The values that promote some tokens most, the best first.

    In a plain FFN, whose coefficients are hardly ever negative, only positive directions count.

    Args:
        lm: a decoder with a final norm.
        tokens: the words, one token each (`locate.lens.words.token_id`).
        n: how many values.
        layers: where they are looked for; None for all layers.

    Raises:
        UnknownTokenError: a text is not one token.
        UnsupportedModelError: the model's values cannot be read in words.
        ValueError: no token is named, or a layer twice.
    """
    n = check_value("promoters", "n", n, AtLeastOne)
    if isinstance(tokens, str) or not tokens:
        raise ValueError(f"tokens={tokens!r} must be a list of one word or more")
    ids = [token_id(lm, token) for token in tokens]
    mean, spread, wanted = _moments(lm, ids)
    scores: list[Tensor] = []
    places: list[Neuron] = []
    for memory in memories_of(lm, range(lm.n_layers) if layers is None else layers).values():
        values = memory.values.to(wanted)
        deviation = (values @ spread * values).sum(1).clamp_min(0).sqrt()
        above = (values @ (wanted.mean(0) - mean)) / deviation.clamp_min(torch.finfo(values.dtype).tiny)
        scores.append(above if memory.gates is not None else above.clamp_min(0))
        places += [(memory.layer, number) for number in range(len(values))]
    whole = torch.cat(scores)
    best = whole.abs().topk(min(n, len(whole))).indices.tolist()
    found: list[Promoter] = []
    for place in best:
        (layer, neuron), score = places[place], float(whole[place])
        found.append(Promoter(layer, neuron, 1 if score >= 0 else -1, abs(score)))
    return tuple(found)


def directions(found: Sequence[Promoter]) -> dict[Neuron, float]:
    """What `editing.neurons.steer` takes: the values' places, each with its direction."""
    return {(each.layer, each.neuron): float(each.direction) for each in found}


def _moments(lm: LanguageModel, ids: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Of the rows gamma * e: their mean, (d_model,), covariance, (d_model, d_model), and some of them, (n, d_model)."""
    norm, matrix, kind = final_norm(lm), unembedding(lm), precision(lm)
    gamma = norm_weight(norm, matrix.shape[1]).to(matrix.device, kind)
    total, products = torch.zeros_like(gamma, dtype=torch.float64), 0.0 * torch.outer(gamma, gamma).double()
    for begin in range(0, len(matrix), COLUMNS):
        rows = (matrix[begin : begin + COLUMNS].to(kind) * gamma).double()
        total += rows.sum(0)
        products += rows.T @ rows
    mean = total / len(matrix)
    covariance = products / len(matrix) - torch.outer(mean, mean)
    return mean.to(kind), covariance.to(kind), matrix[list(ids)].to(kind) * gamma
