"""Aggregation: how a layer's output comes from its memories, and the prediction from the layers.

Geva et al. 2021, section 5. Within a layer: how many memories are active, and how often the layer's output promotes a
token that no single memory promotes (there at least 68 %). Between layers: how early the residual stream already says
the token that the model ends with (a third in the lower layers), and what a layer's output does to the prediction:

    residual      the prediction stays what the residual stream said before the FFN
    agreement     the FFN's output says the same
    override      the FFN's output says something else, and the prediction becomes that
    composition   the prediction becomes what neither of them said
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.interventions import Read, Reading, Replace, intervene
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import record, stopping
from corrigenda.models.alone import one_thread
from corrigenda.models.sites import Site
from corrigenda.moments.text import Text
from corrigenda.prompts import TokenBatch
from corrigenda.settings.checked import AtLeastOne, Seed, ShareAboveZero, check_value
from corrigenda.system.progress import track
from locate.lens.by_layer import Mean, mean_of, plot_curves, table_of
from locate.lens.triggers import FIRST, TOKENS, require_prefixes
from locate.lens.values import read_values
from locate.lens.words import read_states, read_static
from locate.saving import SavedResult

CASES = ("residual", "agreement", "override", "composition")
"""What a layer's output does to the prediction; see above."""


@dataclass(frozen=True, eq=False)
class Aggregation(SavedResult, file="aggregation"):
    """What each layer's memories, and each layer, said at one position of each of some texts.

    Attributes:
        source: which text: the key of its `corrigenda.moments.text.Text`.
        holding: of which share of the sum of |m_i| |v_i| `active` speaks.
        signed: whether coefficients are of either sign (gated networks).
        positions: where in each text, (text,).
        active: the share of a layer's memories, the largest first by |m_i| |v_i|, that hold it, (layer, text).
        positive: the share with m_i > 0, (layer, text): what the paper calls active, in plain networks.
        alone: whether the FFN's output m V + b2 promotes a token most that no sign(m_i) v_i with m_i != 0 promotes
            most, (layer, text).
        before: the token that the residual stream says before the FFN's output joins it, (layer, text).
        added: the token that what the FFN adds to it promotes most, (layer, text).
        after: the token that it says then, (layer, text); in the last layer the model's prediction.
        p_before: the probability of the model's prediction by the residual stream before the FFN, (layer, text).
    """

    source: str
    holding: float
    signed: bool
    positions: Tensor
    active: Tensor
    positive: Tensor
    alone: Tensor
    before: Tensor
    added: Tensor
    after: Tensor
    p_before: Tensor

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return len(self.active)

    @property
    def early(self) -> Tensor:
        """Whether the residual stream before the FFN says the model's prediction already, (layer, text)."""
        return self.before == self.after[-1]

    @property
    def cases(self) -> Tensor:
        """The place in `CASES` of what each layer does, (layer, text)."""
        kept, said = self.after == self.before, self.after == self.added
        return torch.where(kept, said.long(), torch.where(said, 2, 3))

    @cached_property
    def by_layer(self) -> dict[str, list[Mean]]:
        """Figures for each layer, means over texts with intervals; all are shares."""
        columns = {
            "active": self.active,
            "positive": self.positive,
            "alone": self.alone,
            "early": self.early,
            "p_before": self.p_before,
            **{name: self.cases == number for number, name in enumerate(CASES)},
        }
        return {
            name: [mean for mean in (mean_of(row.double().tolist(), shares=True) for row in rows) if mean is not None]
            for name, rows in columns.items()
        }

    @property
    def settled(self) -> Tensor:
        """The lowest layer from which on the residual stream says the model's prediction, (text,).

        The number of layers where it does so only after the last.
        """
        late = (~self.early).flip(0).long()
        first_wrong = late.argmax(0)
        never_wrong = late.sum(0) == 0
        return torch.where(never_wrong, 0, self.n_layers - first_wrong)

    def summary(self) -> dict[str, Any]:
        """The figures in plain values."""
        lower = (self.settled < self.n_layers / 2).double()
        settled = mean_of(lower.tolist(), shares=True)
        return {
            "text": self.source,
            "positions": len(self.positions),
            "holding": self.holding,
            "signed": self.signed,
            "alone": _summary(mean_of(self.alone.double().mean(0).tolist(), shares=True)),
            "settled_in_lower_half": _summary(settled),
            "by_layer": {
                name: {str(layer): mean.summary() for layer, mean in enumerate(means)}
                for name, means in self.by_layer.items()
            },
        }

    def table(self) -> Table:
        """A table for a terminal: the shares by layer, in percent."""
        named = {
            f"hold {100 * self.holding:.0f} %": "active",
            "m > 0": "positive",
            "of no memory": "alone",
            "final token": "early",
            **{name: name for name in CASES},
        }
        columns = {
            heading: [f"{100 * mean.mean:.1f}" for mean in self.by_layer[name]] for heading, name in named.items()
        }
        return table_of(f"memories and layers at {len(self.positions)} positions (%)", range(self.n_layers), columns)

    def plot(self, path: str | Path) -> None:
        """Draws the shares by layer, as PNG, PDF or SVG, by the path's suffix."""
        named = {"the final token is there": "early", "the layer's token is of no memory": "alone"}
        curves = {name: self.by_layer[key] for name, key in (named | {name: name for name in CASES}).items()}
        title = f"From memories to the prediction; one position in each of {len(self.positions)} texts"
        plot_curves(path, range(self.n_layers), curves, label="share of positions", title=title, percent=True)


def _summary(mean: Mean | None) -> dict[str, Any] | None:
    return None if mean is None else mean.summary()


@one_thread
def aggregation(
    lm: LanguageModel, text: Text | None = None, texts: int = 1000, holding: float = 0.9, seed: int = 0
) -> Aggregation:
    """Looks at one position of each of the first `texts` sequences of a text (or of the one that ships).

    What the FFN adds is its output; in families that pass it through a norm first, what comes out of that: the block's
    output less the one with an FFN that says nothing. States are read with the final norm, values and what the FFN adds
    without one (`locate.lens.words`). Memories that hold the share `holding` of the sum of |m_i| |v_i| count as active.
    Positions are drawn from the second on, and edits that are applied lifted meanwhile. Raises UnsupportedModelError:
    the model is an encoder, or has no final norm; ValueError: the sequences have only one token; or as `Text.sequences`
    says.
    """
    text = (text or Text()).fitting(lm)
    texts = check_value("aggregation", "texts", texts, AtLeastOne)
    holding = check_value("aggregation", "holding", holding, ShareAboveZero)
    generator = torch.Generator().manual_seed(check_value("aggregation", "seed", seed, Seed))
    require_prefixes(lm)
    if text.length <= FIRST:
        raise ValueError(f"text.length={text.length}: sequences of at least {FIRST + 1} tokens are needed")
    with lm.edits.suspended():
        sequences = text.sequences(lm)[:texts]
        positions = torch.randint(FIRST, text.length, (len(sequences),), generator=generator)
        tops = _tops(lm)
        order = positions.argsort(stable=True).tolist()
        rows = max(1, TOKENS // text.length)
        found: list[dict[str, Tensor]] = []
        for begin in track(range(0, len(order), rows), f"Aggregation at {len(order):,} positions"):
            prefixes = [sequences[number][: int(positions[number]) + 1] for number in order[begin : begin + rows]]
            found.append(_at_the_end(lm, lm.batch(prefixes), tops, holding))
    back = torch.tensor(order).argsort()
    together = {name: torch.cat([each[name] for each in found], dim=1)[:, back] for name in found[0]}
    signed = lm.memory(0).gates is not None
    return Aggregation(text.key(lm), holding, signed, positions=positions, **together)


def _tops(lm: LanguageModel) -> list[tuple[Tensor, Tensor]]:
    """By layer the tokens that v_i and -v_i promote most, each (d_ffn,): what `read_values` keeps on disk."""
    first = read_values(lm).ids[..., 0].to(lm.device)
    widths = [lm.memory(layer).d_ffn for layer in range(lm.n_layers)]
    return [(first[0, layer, :width], first[1, layer, :width]) for layer, width in enumerate(widths)]


@torch.no_grad()
def _at_the_end(
    lm: LanguageModel, batch: TokenBatch, tops: Sequence[tuple[Tensor, Tensor]], holding: float
) -> dict[str, Tensor]:
    """The figures at the last position of each row, each (layer, row)."""
    at = batch.lengths - 1
    last = lm.n_layers - 1
    with ExitStack() as stack:
        seen = [
            (
                stack.enter_context(lm.memory(layer).capture(at)),
                stack.enter_context(intervene(lm, Site("block", layer), Read(), at)),
            )
            for layer in range(lm.n_layers)
        ]
        silent = None if lm.architecture.adds_plainly else range(lm.n_layers)
        recording = record(lm, batch, silent or (), until=last)
    final = read_states(lm, seen[last][1].value).argmax(-1)
    layers: list[dict[str, Tensor]] = []
    for layer, (memory, block) in enumerate(seen):
        m, norms = memory.coefficients.float(), lm.memory(layer).values.float().norm(dim=1)
        weights = m.abs() * norms
        held = weights.sort(dim=1, descending=True).values.cumsum(1)
        few = (held < holding * held[:, -1:]).sum(1) + (held[:, -1] > 0)  # none where nothing is active
        top, bottom = tops[layer]
        said = torch.where(m > 0, top, bottom).masked_fill(m == 0, -1)
        if silent is None:
            residual = block.value - memory.output
        else:
            with _silent(lm, layer, at) as without:
                partial = PartialForward(lm, recording, layer, torch.zeros_like(at))
                with stopping(lm, layer):
                    partial.logits(at)
            residual = without.value
        scores = read_states(lm, residual)
        layers.append(
            {
                "active": few / m.shape[1],
                "positive": (m > 0).double().mean(1).float(),
                "alone": (said != read_static(lm, memory.output).argmax(-1)[:, None]).all(1),
                "before": scores.argmax(-1),
                "added": read_static(lm, block.value - residual).argmax(-1),
                "after": read_states(lm, block.value).argmax(-1),
                "p_before": scores.softmax(-1).gather(1, final[:, None])[:, 0],
            }
        )
    return {name: torch.stack([each[name].cpu() for each in layers]) for name in layers[0]}


@contextmanager
def _silent(lm: LanguageModel, layer: int, at: Tensor) -> Iterator[Reading]:
    """Inside the block a layer's FFN gives zeros; reads what leaves the layer at the chosen positions."""
    nothing = torch.zeros((), device=lm.device)
    with (
        intervene(lm, Site("ffn", layer), Replace(nothing)),
        intervene(lm, Site("block", layer), Read(), at) as seen,
    ):
        yield seen
