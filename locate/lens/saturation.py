"""Saturation events over a text: what the sub-updates do for the prediction where it settles.

A prediction is settled from the layer on after which its token stays the top one: the saturation event. There the
dominant sub-updates are looked at for how much they promote that token (positive static score) or eliminate it
(negative), beside what they do in the other layers (Geva et al. 2022, "Transformer Feed-Forward Layers Build
Predictions by Promoting Concepts in the Vocabulary Space", section 5: the highest, the mean and the lowest score of the
ten most dominant). Scores are those of `locate.lens.sub_updates`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.models.alone import one_thread
from corrigenda.moments.text import Text
from corrigenda.settings.checked import AtLeastOne, Seed, check_value
from corrigenda.system.progress import track
from locate.lens.by_layer import Mean, mean_of, plot_curves, table_of
from locate.lens.parts import Decomposition, parts_of_each, require_memories
from locate.lens.sub_updates import saturation_of, scores_of, token_direction
from locate.lens.triggers import FIRST, TOKENS, require_prefixes
from locate.lens.words import precision, read_states
from locate.saving import SavedResult

FIGURES = ("highest", "mean", "lowest")
"""Of the static scores of the dominant sub-updates."""


@dataclass(frozen=True, eq=False)
class SaturationEvents(SavedResult, file="saturation"):
    """What sub-updates do for the model's prediction, at one position of each of some texts.

    Attributes:
        source: which text: the key of its `corrigenda.moments.text.Text`.
        k: how many dominant sub-updates of a layer are looked at.
        positions: where in each text, (text,).
        events: the layer of the saturation event, (text,).
        promotion: the sum of the scores above zero, of all sub-updates of a layer, (layer, text).
        elimination: the sum of those below zero, (layer, text).
        highest: the highest score among the dominant sub-updates, (layer, text).
        mean: their mean, (layer, text).
        lowest: the lowest, (layer, text).
        share: what share of the sum of all |m_i| |v_i| of a layer the dominant ones have, (layer, text).
    """

    source: str
    k: int
    positions: Tensor
    events: Tensor
    promotion: Tensor
    elimination: Tensor
    highest: Tensor
    mean: Tensor
    lowest: Tensor
    share: Tensor

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return len(self.promotion)

    @cached_property
    def at_events(self) -> dict[str, Mean | None]:
        """Means over texts of the figures at the saturation event, with intervals."""
        texts = torch.arange(len(self.events))
        return {name: mean_of(self._row(name)[self.events, texts].tolist()) for name in (*FIGURES, "net")}

    @cached_property
    def elsewhere(self) -> dict[str, Mean | None]:
        """The same, of each text the mean over all other layers."""
        others = torch.arange(self.n_layers)[:, None] != self.events
        return {
            name: mean_of(((self._row(name) * others).sum(0) / others.sum(0)).tolist()) if self.n_layers > 1 else None
            for name in (*FIGURES, "net")
        }

    def _row(self, name: str) -> Tensor:
        """(layer, text), in float64."""
        found: Tensor = self.promotion + self.elimination if name == "net" else getattr(self, name)
        return found.double()

    def summary(self) -> dict[str, Any]:
        """The figures in plain values; what could not be measured is absent."""
        sides = {"at_events": self.at_events, "elsewhere": self.elsewhere}
        return {
            "text": self.source,
            "positions": len(self.positions),
            "dominant": self.k,
            **{side: {name: mean.summary() for name, mean in row.items() if mean} for side, row in sides.items()},
            "events": torch.bincount(self.events, minlength=self.n_layers).tolist(),
            "share": [float(row.mean()) for row in self.share],
        }

    def table(self) -> Table:
        """A table for a terminal: by layer the events, promotion, elimination and the share of the dominant ones."""
        events = torch.bincount(self.events, minlength=self.n_layers).tolist()
        columns: dict[str, list[str]] = {
            "events": [str(n) for n in events],
            "promotion": [f"{float(row.mean()):.2f}" for row in self.promotion],
            "elimination": [f"{float(row.mean()):.2f}" for row in self.elimination],
            f"share of the {self.k} dominant (%)": [f"{100 * float(row.mean()):.1f}" for row in self.share],
        }
        there, other = (
            ", ".join(f"{name} {mean.text(digits=2)}" for name, mean in row.items() if mean)
            for row in (self.at_events, self.elsewhere)
        )
        title = f"scores of the predicted token at {len(self.events)} saturation events: {there}; elsewhere: {other}"
        return table_of(title, range(self.n_layers), columns)

    def plot(self, path: str | Path) -> None:
        """Draws promotion and elimination of the predicted token by layer, as PNG, PDF or SVG, by the path's suffix."""
        curves = {
            name: [mean_of(layer.double().tolist()) for layer in getattr(self, name)]
            for name in ("promotion", "elimination")
        }
        title = f"What sub-updates do for the prediction; one position in each of {len(self.events)} texts"
        plot_curves(path, range(self.n_layers), curves, label="static score", title=title)


@one_thread
@torch.no_grad()
def saturation_events(
    lm: LanguageModel, text: Text | None = None, texts: int = 200, k: int = 10, seed: int = 0
) -> SaturationEvents:
    """Looks at one position of each of the first `texts` sequences of a text (or of the one that ships).

    Of each layer the `k` dominant sub-updates are taken. Positions are drawn from the second on, and edits that are
    applied lifted meanwhile. Raises UnsupportedModelError: the model is an encoder, has no final norm, or its layers
    are not the sum of known parts; ValueError: the sequences have only one token; or as `Text.sequences` says.
    """
    text = (text or Text()).fitting(lm)
    texts = check_value("saturation_events", "texts", texts, AtLeastOne)
    k = check_value("saturation_events", "k", k, AtLeastOne)
    generator = torch.Generator().manual_seed(check_value("saturation_events", "seed", seed, Seed))
    require_prefixes(lm)
    require_memories(lm, range(lm.n_layers))
    if text.length <= FIRST:
        raise ValueError(f"text.length={text.length}: sequences of at least {FIRST + 1} tokens are needed")
    with lm.edits.suspended():
        sequences = text.sequences(lm)[:texts]
        positions = torch.randint(FIRST, text.length, (len(sequences),), generator=generator)
        prefixes = [sequences[number][: place + 1] for number, place in enumerate(positions.tolist())]
        order = positions.argsort(stable=True).tolist()  # those of one batch are of about one length
        rows = max(1, TOKENS // text.length)
        norms = [lm.memory(layer).values.to(precision(lm)).norm(dim=1) for layer in range(lm.n_layers)]
        found: dict[int, tuple[int, Tensor]] = {}
        for begin in track(range(0, len(order), rows), f"Sub-updates at {len(order):,} positions"):
            some = order[begin : begin + rows]
            found.update(zip(some, _at_the_ends(lm, [prefixes[number] for number in some], norms, k), strict=True))
    cases = [found[number] for number in range(len(order))]
    events = torch.tensor([event for event, _ in cases])
    figures = torch.stack([figures for _, figures in cases], 2)
    names = ("promotion", "elimination", "highest", "mean", "lowest", "share")
    together = dict(zip(names, figures.unbind(0), strict=True))
    return SaturationEvents(source=text.key(lm), k=k, positions=positions, events=events, **together)


def _at_the_ends(
    lm: LanguageModel, prefixes: Sequence[Sequence[int]], norms: Sequence[Tensor], k: int
) -> list[tuple[int, Tensor]]:
    """The event at each prefix's end, and the figures there, (figure, layer)."""
    parts = parts_of_each(lm, prefixes, [-1] * len(prefixes))
    states = torch.stack([torch.stack([one.after for one in each.layers]) for each in parts])
    events = [saturation_of(tops) for tops in read_states(lm, states).argmax(-1)]
    return [(event, _figures(lm, each, norms, k)) for event, each in zip(events, parts, strict=True)]


def _figures(lm: LanguageModel, parts: Decomposition, norms: Sequence[Tensor], k: int) -> Tensor:
    """The figures of each layer at one position, (figure, layer)."""
    direction = token_direction(lm, int(parts.logits.argmax()))
    rows = []
    for layer, one in enumerate(parts.layers):
        sizes, scores = scores_of(lm, layer, one, direction, norms[layer])
        best, which = sizes.topk(min(k, len(sizes)))
        dominant = scores[which]
        # A layer that says nothing has no dominant sub-updates; their scores are 0, and their share is none.
        share = best.sum() / sizes.sum().clamp_min(torch.finfo(sizes.dtype).tiny)
        sums = [scores.clamp(min=0).sum(), scores.clamp(max=0).sum()]
        rows.append(torch.stack([*sums, dominant.amax(), dominant.mean(), dominant.amin(), share]))
    return torch.stack(rows, 1).float().cpu()
