"""How much a neuron's coefficient at its triggers hangs on the first, the last or another token of the prefix.

A token is taken out of the prefix and the coefficient is taken again (Geva et al. 2021, section 3.2: the last token
counts most in the lower layers, whose patterns are shallow, and less in the upper ones).
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
from corrigenda.forward.recording import forward_to
from corrigenda.models.alone import one_thread
from corrigenda.prompts import specials
from corrigenda.settings.checked import AtLeastOne, Seed, check_value
from corrigenda.system.progress import track
from locate.lens.by_layer import Mean, mean_of, plot_curves, table_of
from locate.lens.triggers import TOKENS, Triggers, require_prefixes
from locate.saving import SavedResult

REMOVED = ("first", "last", "random")
"""Which token of the text is taken out (a BOS before it stays); the random one is neither the first nor the last."""


@dataclass(frozen=True, eq=False)
class Sensitivity(SavedResult, file="sensitivity"):
    """Relative changes of coefficients, m' / m - 1, when a token of a trigger is removed.

    -1 where the coefficient is gone, 0 where nothing changed.

    Attributes:
        neurons: which neurons of each layer were looked at, (layer, neuron).
        changes: (layer, neuron, trigger, which of `REMOVED`); NaN where it could not be measured: of a prefix of two
            tokens, a BOS not counted, one alone would be left, whose states are extreme (`locate.lens.triggers.FIRST`),
            and of a coefficient of 0 there is no relative change.
    """

    neurons: Tensor
    changes: Tensor

    def of(self, removed: str, layers: Sequence[int]) -> Mean | None:
        """The mean change in some layers, each neuron's mean over its triggers counting once.

        Raises ValueError: `removed` is none of `REMOVED`.
        """
        if removed not in REMOVED:
            raise ValueError(f"removed={removed!r}: the tokens that were removed are {', '.join(REMOVED)}")
        return mean_of(self.changes[list(layers), :, :, REMOVED.index(removed)].nanmean(-1).flatten().tolist())

    @cached_property
    def by_layer(self) -> dict[str, list[Mean | None]]:
        """For each of `REMOVED` the mean change in each layer, with an interval over its neurons."""
        return {removed: [self.of(removed, [layer]) for layer in range(len(self.changes))] for removed in REMOVED}

    @cached_property
    def by_depth(self) -> dict[str, dict[str, Mean | None]]:
        """The same in the lower half of the layers ("shallow") and the upper half ("deep")."""
        half = len(self.changes) // 2
        halves = {"shallow": range(half), "deep": range(half, len(self.changes))}
        return {depth: {removed: self.of(removed, layers) for removed in REMOVED} for depth, layers in halves.items()}

    def summary(self) -> dict[str, Any]:
        """The figures in plain values; what could not be measured is absent."""
        by_layer = {
            removed: {str(layer): mean.summary() for layer, mean in enumerate(means) if mean}
            for removed, means in self.by_layer.items()
        }
        by_depth = {
            depth: {removed: mean.summary() for removed, mean in means.items() if mean}
            for depth, means in self.by_depth.items()
        }
        return {"neurons_per_layer": self.neurons.shape[1], "by_depth": by_depth, "by_layer": by_layer}

    def table(self) -> Table:
        """A table for a terminal: the mean relative change in percent by layer."""
        curves = {f"{removed} (%)": means for removed, means in self.by_layer.items()}
        title = "relative change of the coefficient when a token of the trigger is removed"
        return table_of(title, range(len(self.changes)), curves, percent=True)

    def plot(self, path: str | Path) -> None:
        """Draws the mean relative change by layer, as PNG, PDF or SVG, by the path's suffix."""
        layers = range(len(self.changes))
        curves = {
            f"{removed} token" + " in between" * (removed == "random"): self.by_layer[removed] for removed in REMOVED
        }
        title = f"A token of the trigger is removed; {self.neurons.shape[1]} neurons a layer"
        plot_curves(path, layers, curves, label="change of the coefficient", title=title, percent=True)


@one_thread
def sensitivity(lm: LanguageModel, triggers: Triggers, neurons: int = 10, top: int = 3, seed: int = 0) -> Sensitivity:
    """Removes tokens from the triggers of some neurons of every layer, in the unedited model that they are of.

    So many neurons are drawn in each layer, without repetition, and of each the `top` triggers of the largest
    coefficients are taken; all, where there are fewer. The seed is of the draw, and of the random token of each
    trigger. Raises UnsupportedModelError: the model is an encoder; ValueError: the triggers are of a model of another
    shape.
    """
    neurons = check_value("sensitivity", "neurons", neurons, AtLeastOne)
    top = check_value("sensitivity", "top", top, AtLeastOne)
    seed = check_value("sensitivity", "seed", seed, Seed)
    require_same_shape(lm, triggers)
    top = min(top, triggers.prefixes.shape[2])
    generator = torch.Generator().manual_seed(seed)
    d_ffn = triggers.prefixes.shape[1]
    chosen, changes = [], []
    with lm.edits.suspended():
        for layer in track(range(triggers.n_layers), "Removing tokens from triggers"):
            drawn = torch.randperm(d_ffn, generator=generator)[:neurons]
            chosen.append(drawn)
            changes.append(_changes(lm, triggers, layer, drawn, top, generator))
    return Sensitivity(torch.stack(chosen), torch.stack(changes))


def require_same_shape(lm: LanguageModel, triggers: Triggers) -> None:
    """Checks that triggers are of a model with as many layers and neurons.

    Raises:
        UnsupportedModelError: the model is an encoder.
        ValueError: it has others.
    """
    require_prefixes(lm)
    has, of = (lm.n_layers, lm.memory(0).d_ffn), tuple(triggers.prefixes.shape[:2])
    if has != of:
        raise ValueError(
            f"the triggers are of {of[0]} layers of {of[1]} neurons, and {lm.name} has {has[0]} of {has[1]}; "
            "find its own with trigger_examples(lm)"
        )


def _changes(
    lm: LanguageModel, triggers: Triggers, layer: int, neurons: Tensor, top: int, generator: torch.Generator
) -> Tensor:
    """The relative changes of one layer, (neuron, trigger, which of `REMOVED`)."""
    before = triggers.coefficients[layer, neurons, :top]
    changes = torch.full((len(neurons), top, len(REMOVED)), float("nan"))
    cases: list[tuple[tuple[int, int, int], list[int]]] = []
    begin = len(specials(lm.tokenizer))
    for place, neuron in enumerate(neurons.tolist()):
        for rank in range(top):
            ids = triggers.ids(layer, neuron, rank)
            between = int(torch.randint(begin + 1, max(begin + 2, len(ids) - 1), (1,), generator=generator))
            if len(ids) > begin + 2:
                for kind, at in enumerate((begin, len(ids) - 1, between)):
                    cases.append(((place, rank, kind), ids[:at] + ids[at + 1 :]))
    cases.sort(key=lambda case: len(case[1]))
    for some in _batches(cases):
        batch = lm.batch([ids for _, ids in some])
        with lm.memory(layer).capture(batch.lengths - 1) as seen:
            forward_to(lm, batch, layer)
        found = seen.coefficients.float().cpu()
        for row, ((place, rank, kind), _) in enumerate(some):
            was = float(before[place, rank])
            if was != 0:
                changes[place, rank, kind] = found[row, neurons[place]] / was - 1
    return changes


Case = tuple[tuple[int, int, int], list[int]]


def _batches(cases: Sequence[Case]) -> list[Sequence[Case]]:
    """Cases ordered by length, in batches of about `TOKENS` tokens."""
    batches: list[Sequence[Case]] = []
    begin = 0
    while begin < len(cases):
        end = begin + 1
        while end < len(cases) and (end + 1 - begin) * len(cases[end][1]) <= TOKENS:
            end += 1
        batches.append(cases[begin:end])
        begin = end
    return batches
