"""`FeatureDictionary`: an FFN's output as a bias and a few of many directions.

For x, the output of a layer's FFN (a sparse autoencoder) or its input (a transcoder):

    m = act(E (x - c) + e),   y = m D + b + S x

y stands for the FFN's output. Rows of E read *features*, m are their activations, rows of D what each adds. act is
ReLU; where `k` is given then the k largest alone (TopK: Gao et al. 2024, "Scaling and evaluating sparse autoencoders"),
where `threshold` is what passes it (JumpReLU: Rajamanoharan et al. 2024). c is b where `centred`, else 0. S x is the
skip connection of transcoders (Paulo et al. 2025, "Transcoders Beat Sparse Autoencoders for Interpretability").
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import xxhash
from torch import Tensor
from torch.nn.functional import embedding_bag, linear

from corrigenda.errors import UnsupportedModelError, WrongModelError
from corrigenda.models.bare import BareModel
from corrigenda.models.routes import Passage, Routes, attended, by_name
from corrigenda.models.sites import entering
from corrigenda.system.files import bytes_of

FIRST = 1
"""The first position of a text whose states count: those at position 0 are unlike all others, whatever the token is
(Xiao et al. 2024, "Efficient Streaming Language Models with Attention Sinks")."""

ROWS = 512
"""So many rows of x are scored at once: the scores of all would be new pages of memory each time, slow to get."""
GROUP = 32
"""Features of which `largest` first looks at the largest alone."""


@dataclass(frozen=True, eq=False)
class FeatureDictionary:
    """A dictionary of features of one layer's FFN.

    Attributes:
        layer: counted from the bottom.
        encoder: E, (n_features, d_in).
        encoder_bias: e, (n_features,).
        decoder: D, (n_features, d_out).
        decoder_bias: b, (d_out,).
        k: of TopK; None for all that are above 0, or pass their threshold.
        threshold: of JumpReLU, (n_features,); None for none.
        skip: S, (d_out, d_in); None for none.
        reads: the FFN's output or its input.
        centred: whether b is taken from x first.
        after_norm: whether the FFN's output is that behind a norm of the block's own, where there is one (Gemma 2).
        name: what messages call it.
    """

    layer: int
    encoder: Tensor
    encoder_bias: Tensor
    decoder: Tensor
    decoder_bias: Tensor
    k: int | None = None
    threshold: Tensor | None = None
    skip: Tensor | None = None
    reads: Literal["input", "output"] = "output"
    centred: bool = False
    after_norm: bool = False
    name: str = "dictionary"

    @property
    def n_features(self) -> int:
        """The number of features."""
        return self.encoder.shape[0]

    def read_of(self, given: Tensor, output: Tensor) -> Tensor:
        """Which of an FFN's input and its output is x."""
        return given if self.reads == "input" else output

    def scores(self, x: Tensor) -> Tensor:
        """What TopK and thresholds choose by: ReLU(E (x - c) + e), (..., d_in) -> (..., n_features)."""
        return self._read(x).relu_()

    def _read(self, x: Tensor) -> Tensor:
        """E (x - c) + e."""
        x = x.to(self.encoder)
        return linear(x - self.decoder_bias if self.centred else x, self.encoder, self.encoder_bias)

    def choose(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The activations of the k features that score highest, and their numbers: (n, d_in) -> twice (n, k)."""
        parts = [largest(self._read(some), k) for some in x.split(ROWS)]
        activations, places = (torch.cat(side) for side in zip(*parts, strict=True))
        return activations.relu(), places  # of the chosen alone: ReLU keeps the order

    def encode(self, x: Tensor) -> Tensor:
        """The activations m, (..., d_in) -> (..., n_features), zeros where a feature does not fire."""
        if self.k is None:
            scores = self.scores(x)
            return scores if self.threshold is None else scores * (scores > self.threshold)
        activations, places = self.choose(x.reshape(-1, x.shape[-1]), self.k)
        found = activations.new_zeros(len(places), self.n_features).scatter(-1, places, activations)
        return found.view(*x.shape[:-1], self.n_features)

    def decode(self, activations: Tensor, x: Tensor | None = None) -> Tensor:
        """Y, (..., d_out), of activations (..., n_features), and of x (..., d_in) where there is a skip connection."""
        return self.finish(activations.to(self.decoder) @ self.decoder, x)

    def __call__(self, x: Tensor) -> Tensor:
        """Y of x, (..., d_in) -> (..., d_out), in the precision of x; of D only the rows that count are read."""
        if self.k is None:
            return self.decode(self.encode(x), x).to(x)
        summed = self.weigh(*self.choose(x.reshape(-1, x.shape[-1]), self.k))
        return self.finish(summed.view(*x.shape[:-1], self.decoder.shape[1]), x).to(x)

    def weigh(self, activations: Tensor, places: Tensor) -> Tensor:
        """M D of chosen features, (n, d_out), with their activations and their numbers, (n, k)."""
        summed: Tensor = embedding_bag(places, self.decoder, per_sample_weights=activations, mode="sum")
        return summed

    def finish(self, summed: Tensor, x: Tensor | None) -> Tensor:
        """M D with what is added to it: b, and S x where there is a skip connection."""
        y = summed + self.decoder_bias
        if self.skip is None:
            return y
        if x is None:
            raise ValueError(f"{self.name} has a skip connection: decode needs the FFN's input, too")
        return y + linear(x.to(self.skip), self.skip)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of what it computes."""
        digest = xxhash.xxh3_128(f"{self.layer} {self.k} {self.reads} {self.centred}".encode())
        for one in (self.encoder, self.encoder_bias, self.decoder, self.decoder_bias, self.threshold, self.skip):
            digest.update(b"none" if one is None else bytes_of(one))
        return digest.hexdigest()

    def require(self, lm: BareModel) -> None:
        """Checks that it fits a model.

        Raises:
            UnsupportedModelError: the layer is a mixture of experts, or the model an encoder or an encoder-decoder.
            WrongModelError: the model has no such layer, or another width.
        """
        require_place(lm, self.layer, self.name)
        width = lm.memory(self.layer).d_model
        if (self.encoder.shape[1], self.decoder.shape[1]) != (width, width):
            raise WrongModelError(
                f"{self.name}: it takes {self.encoder.shape[1]} numbers to {self.decoder.shape[1]}, and layer "
                f"{self.layer} of {lm.name} is {width} wide: name a dictionary of this model"
            )
        if self.after_norm and not lm.architecture.adds_plainly:
            raise UnsupportedModelError(
                f"{self.name}: it is of what {lm.name} makes of its FFN's output before it is added (a norm, a scale), "
                "and only dictionaries of the FFN's own output are read; name one of the module mlp"
            )

    @contextmanager
    def spliced(self, lm: BareModel) -> Iterator[None]:
        """Inside the block y stands in the place of the FFN's output, at all positions of a text but the first.

        So it does in a forward that goes on from a cache: which of a text's tokens a position holds is told by the
        attention mask. A forward with several texts in a row, or another mask than (batch, position), is refused with a
        ValueError.
        """
        now: list[Tensor] = []

        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            tokens, past, mask = attended(by_name(lm.model, args, kwargs), f"{self.name} in an FFN's place")
            now[:] = [Passage(Routes(), mask, tokens.shape[1], past > 0).place > FIRST]

        def change(given: Tensor, output: Tensor) -> Tensor:
            inside, changed = now[0].to(output.device), output.clone()
            changed[inside] = self(self.read_of(given, output)[inside]).to(output)
            return changed

        self.require(lm)
        with entering(lm.model, begin), lm.memory(self.layer).respond(change):
            yield


def largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest scores of each row and their places, (n, n_features) -> twice (n, k), in no order.

    In k groups the largest score is at least the k-th largest of all groups' maxima, so that no score below that is
    among the k: little more than k are left to be sorted.
    """
    n, features = scores.shape
    groups, rest = divmod(features, GROUP)
    if not n or rest or groups < 2 * k or scores.device.type != "cpu" or scores.dtype != torch.float32:
        return scores.topk(k, sorted=False)
    known = scores.detach()
    bounds = np.partition(known.view(n, GROUP, groups).amax(1).numpy(), -k)[:, -k, None]
    above = np.flatnonzero(~(known.numpy() < bounds))  # what is no number is, too
    limits = np.searchsorted(above, features * np.arange(n + 1))[:, None]
    begins, ends = limits[:-1], limits[1:]
    at = begins + np.arange((ends - begins).max())
    found = above[np.minimum(at, len(above) - 1)]
    left = np.where(at < ends, known.numpy().ravel()[found], -np.inf)  # rows have more or fewer
    chosen = torch.from_numpy(left).topk(k, sorted=False).indices
    places = torch.from_numpy(found % features).gather(1, chosen)
    return scores.gather(1, places), places


def require_place(lm: BareModel, layer: int, name: str) -> None:
    """Checks that a dictionary can be of a layer of a model.

    Raises:
        UnsupportedModelError: the layer is a mixture of experts, or the model an encoder or an encoder-decoder.
        WrongModelError: the model has no such layer.
    """
    if not lm.architecture.goes_on:
        raise UnsupportedModelError(
            f"{name}: {lm.name} is an encoder or an encoder-decoder; dictionaries are of causal language models"
        )
    if not 0 <= layer < lm.n_layers:
        raise WrongModelError(
            f"{name}: it is of layer {layer}, and {lm.name} has layers 0 to {lm.n_layers - 1}: name one of these"
        )
    if lm.architecture.experts(layer):
        raise UnsupportedModelError(f"{name}: layer {layer} of {lm.name} is a mixture of experts; name another layer")
