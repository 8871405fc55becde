"""How much of an FFN's output a dictionary holds: `measure_dictionary`, over running text.

Explained variance is 1 - sum |y - y^|^2 / sum |y - mean|^2. The loss (the next token's mean negative log-probability,
in nats) is that of the model's own forward with y^ in the place of the FFN's output; the floor is its output's mean in
its place. Loss recovered is (floor - spliced) / (floor - loss): it says little where the FFN matters little, so that
the losses stand beside it. The same of a dictionary that was trained on a model of random weights is the control (Heap
et al. 2025, "Sparse Autoencoders Can Interpret Randomly Initialized Transformers").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from corrigenda import LanguageModel
from corrigenda.dictionaries.dictionary import FIRST, FeatureDictionary
from corrigenda.forward.recording import forward_logits
from corrigenda.models.alone import one_thread
from corrigenda.system.progress import track
from locate.features.states import batches, ffn_states
from locate.pictures import chart, plot_text
from locate.saving import SavedResult

AT_ONCE = 512
"""Tokens whose logits are there at once."""


@dataclass(frozen=True, eq=False)
class DictionaryFigures(SavedResult, file="dictionary_figures"):
    """What a dictionary holds, over the positions of some texts but each one's first.

    Attributes:
        dictionary: its name.
        model: the model's.
        layer: of the FFN.
        reads: the FFN's output or its input.
        tokens: positions.
        explained: the explained variance.
        l0: features that fire at a position, in the mean.
        loss: of the model, in nats a token.
        spliced: the loss with the dictionary in the FFN's place.
        ablated: the loss with the mean in its place.
        firing: the share of positions that each feature fires at, (n_features,).
        curve: of its training, if it was trained here: tokens and the share of variance that was not explained.
    """

    dictionary: str
    model: str
    layer: int
    reads: str
    tokens: int
    explained: float
    l0: float
    loss: float
    spliced: float
    ablated: float
    firing: Tensor
    curve: tuple[tuple[float, float], ...] = ()

    @property
    def recovered(self) -> float:
        """The loss recovered."""
        return (self.ablated - self.spliced) / (self.ablated - self.loss)

    @property
    def dead(self) -> float:
        """The share of features that fire nowhere."""
        return float((self.firing == 0).double().mean())

    def summary(self) -> dict[str, Any]:
        """The figures in plain values."""
        named = {name: getattr(self, name) for name in ("dictionary", "model", "layer", "reads", "tokens")}
        figures = ("explained", "l0", "dead", "loss", "spliced", "ablated", "recovered")
        found = {name: getattr(self, name) for name in figures}
        return {**named, "n_features": len(self.firing), **found, "spliced_less_loss": self.spliced - self.loss}

    def table(self) -> Table:
        """The main figures as a table for a terminal."""
        table = Table("figure", "value", title=escape(f"{self.dictionary}, layer {self.layer} of {self.model}"))
        table.add_row("explained variance", f"{100 * self.explained:.1f} %")
        table.add_row("loss (nats a token)", f"{self.loss:.4f}")
        table.add_row("loss with the dictionary", f"{self.spliced:.4f} ({self.spliced - self.loss:+.4f})")
        table.add_row("loss with the mean", f"{self.ablated:.4f} ({self.ablated - self.loss:+.4f})")
        table.add_row("loss recovered", f"{100 * self.recovered:.1f} %")
        table.add_row("features that fire at a token", f"{self.l0:.1f} of {len(self.firing)}")
        table.add_row("features that never fire", f"{100 * self.dead:.1f} %")
        table.caption = f"{self.tokens:,} tokens"
        return table

    def plot(self, path: str | Path) -> None:
        """Draws how often features fire; PNG, PDF or SVG, by the path's suffix."""
        title = f"{self.dictionary}: {100 * self.explained:.1f} % explained, {100 * self.dead:.0f} % never fire"
        with chart(path, plot_text(title, 90)) as axes:
            axes.hist(self.firing[self.firing > 0].log10().tolist(), bins=50)
            axes.set_xlabel("log10 of the share of tokens that a feature fires at")
            axes.set_ylabel("features")


@one_thread
@torch.no_grad()
def measure_dictionary(
    lm: LanguageModel,
    one: FeatureDictionary,
    texts: Sequence[Sequence[int]],
    curve: Sequence[dict[str, float]] = (),
) -> DictionaryFigures:
    """The figures of a dictionary over texts of one length, three or more, that it was not trained on.

    The model is with whatever edits are applied; the curve is of the dictionary's training. Raises
    UnsupportedModelError: as `FeatureDictionary.require` says; ValueError: the model gives no finite numbers, or its
    FFN does nothing there; WrongModelError: the dictionary does not fit the model.
    """
    one.require(lm)
    n, error, squares = 0, 0.0, 0.0
    mean, firing = torch.zeros(one.decoder.shape[1], dtype=torch.float64), torch.zeros(one.n_features)
    for some in track([*batches(texts)], f"Measuring {one.name}"):
        given, output = (each[:, FIRST:].flatten(0, 1).float() for each in ffn_states(lm, one.layer, lm.batch(some)))
        read = one.read_of(given, output)
        n += len(output)
        error += float((output - one(read)).double().square().sum())
        squares += float(output.double().square().sum())
        mean += output.double().sum(0).cpu()
        firing += (one.encode(read) > 0).sum(0).cpu()
    variance = squares - float(mean.square().sum()) / n
    losses = _losses(lm, one, texts, mean / n)
    if variance == 0 or losses[2] == losses[0]:
        raise ValueError(
            f"the FFN of layer {one.layer} of {lm.name} does nothing over these texts, so that {one.name} has nothing "
            "to hold; take another layer"
        )
    figures = [1 - error / variance, *losses]
    if not all(map(math.isfinite, figures)):
        raise ValueError(f"{lm.name} gives no numbers (NaN or infinity) with {one.name}; is it wrecked?")
    points = tuple((point["tokens"], point["unexplained"]) for point in curve)
    named = (Path(one.name).name, lm.name, one.layer, one.reads, n)
    return DictionaryFigures(*named, figures[0], float(firing.sum()) / n, *losses, firing / n, points)


def _losses(
    lm: LanguageModel, one: FeatureDictionary, texts: Sequence[Sequence[int]], mean: Tensor
) -> tuple[float, float, float]:
    """The model's loss, with the dictionary in the FFN's place, and with the mean output there."""

    def ablate(output: Tensor) -> Tensor:
        return torch.cat([output[:, :FIRST], mean.to(output).expand_as(output[:, FIRST:])], 1)

    memory, sums, n = lm.memory(one.layer), [0.0, 0.0, 0.0], 0
    for some in track([*batches(texts, AT_ONCE)], f"Losses with {one.name}"):
        batch = lm.batch(some)
        at = torch.zeros_like(batch.input_ids, dtype=torch.bool)
        at[:, FIRST:-1] = True
        wanted = batch.input_ids[:, FIRST + 1 :].flatten()

        ways: tuple[AbstractContextManager[None], ...] = (nullcontext(), one.spliced(lm), memory.through(ablate))
        for place, way in enumerate(ways):
            with way:
                logits = forward_logits(lm, batch, at).float()
            sums[place] += float(cross_entropy(logits, wanted, reduction="sum"))
        n += len(wanted)
    return sums[0] / n, sums[1] / n, sums[2] / n


def randomised(lm: LanguageModel, seed: int = 0) -> LanguageModel:
    """A model of the same shape whose weights are drawn anew, as its family draws them; the same tokenizer."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(lm.model.config).to(lm.device, lm.dtype).eval()
    return LanguageModel(model, lm.tokenizer, f"{lm.name} with random weights", lm.architecture.family)
