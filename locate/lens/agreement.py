"""Agreement: whether a value promotes the token that follows what triggers its key.

If a memory works, the token that its value promotes most is the one that comes next in the texts that its key answers
to (Geva et al. 2021, section 4.1: 3.5 % of the memories in the upper layers, by chance 0.0004 %). In a gated network
the coefficient may be negative; the value is read as sign(m) v, with the sign that it has at the top trigger.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.intervals import exact_share
from corrigenda.models.alone import one_thread
from corrigenda.settings.checked import Seed, check_value
from corrigenda.system.progress import track
from locate.lens.by_layer import Mean, plot_curves, table_of
from locate.lens.sensitivity import require_same_shape
from locate.lens.triggers import Triggers
from locate.lens.words import rank_of, read_static
from locate.saving import SavedResult

ROWS = 256
"""Values read at once: their scores are (256, vocabulary)."""
PEAKED = 100
"""How many of the most peaked values are looked at by themselves, as in the paper."""


@dataclass(frozen=True, eq=False)
class Agreement(SavedResult, file="agreement"):
    """For every memory what its value promotes, beside what follows its key's triggers.

    Attributes:
        n_vocabulary: the number of tokens that could be promoted.
        top_tokens: the token that sign(m) v promotes most, (layer, neuron); m at the key's top trigger. -1 where m is 0
            at every trigger: a memory that the text never used says nothing.
        peaks: its probability by the softmax of the static scores U . (gamma * v), (layer, neuron).
        next_tokens: the tokens after the triggers, (layer, neuron, t).
        ranks: the rank, in the scores of sign(m) v, of the token after the top trigger, (layer, neuron); 0 is the top.
        permuted_tokens: the token after the top trigger of another memory of the layer, (layer, neuron): the control.
        permuted_ranks: its rank in the scores, (layer, neuron).
    """

    n_vocabulary: int
    top_tokens: Tensor
    peaks: Tensor
    next_tokens: Tensor
    ranks: Tensor
    permuted_tokens: Tensor
    permuted_ranks: Tensor

    @property
    def used(self) -> Tensor:
        """Which memories the text used at all, (layer, neuron)."""
        return self.top_tokens >= 0

    @property
    def agrees(self) -> Tensor:
        """Whether the value's top token is the one after the top trigger, (layer, neuron)."""
        return (self.top_tokens == self.next_tokens[..., 0]) & self.used

    @property
    def agrees_permuted(self) -> Tensor:
        """Whether it is the one after another memory's top trigger, (layer, neuron)."""
        return (self.top_tokens == self.permuted_tokens) & self.used

    @property
    def chance(self) -> float:
        """How often a token drawn from the whole vocabulary would agree."""
        return 1 / self.n_vocabulary

    @cached_property
    def by_layer(self) -> dict[str, list[Mean | None]]:
        """The shares of the memories of each layer that agree, and of the control, with exact intervals."""
        pairs = {"agreement": self.agrees, "permuted": self.agrees_permuted}
        return {
            name: [_share(row[used]) for row, used in zip(rows, self.used, strict=True)] for name, rows in pairs.items()
        }

    @cached_property
    def median_ranks(self) -> dict[str, list[float | None]]:
        """By layer the median rank of the next token, and of the control's, in the value's scores."""
        pairs = {"rank": self.ranks, "permuted rank": self.permuted_ranks}
        return {
            name: [
                float(row[used].double().median()) if used.any() else None
                for row, used in zip(ranks, self.used, strict=True)
            ]
            for name, ranks in pairs.items()
        }

    @cached_property
    def peaked(self) -> list[tuple[int, int]]:
        """The 100 memories, (layer, neuron), whose values have the largest top probability, the largest first."""
        n = min(PEAKED, int(self.used.sum()))
        order = self.peaks.masked_fill(~self.used, -1).flatten().topk(n).indices.tolist()
        d_ffn = self.peaks.shape[1]
        return [divmod(place, d_ffn) for place in order]

    @cached_property
    def of_peaked(self) -> dict[str, Mean | None]:
        """Of the most peaked values the shares that agree with the top trigger, and with any of the t triggers."""
        places = torch.tensor(self.peaked, dtype=torch.long).view(-1, 2).unbind(1)
        some = (self.next_tokens == self.top_tokens[..., None]).any(-1)
        return {"top trigger": _share(self.agrees[places]), "any trigger": _share(some[places])}

    def peaked_in(self) -> dict[int, int]:
        """How many of the most peaked values lie in each layer that has some."""
        layers = [layer for layer, _ in self.peaked]
        return {layer: layers.count(layer) for layer in sorted(set(layers))}

    def summary(self) -> dict[str, Any]:
        """The figures in plain values; what could not be measured is absent."""
        of_peaked = {name: share.summary() for name, share in self.of_peaked.items() if share}
        return {
            "chance": self.chance,
            "used": int(self.used.sum()),
            **{
                name: {str(layer): share.summary() for layer, share in enumerate(shares) if share}
                for name, shares in self.by_layer.items()
            },
            **{
                name.replace(" ", "_"): {str(layer): rank for layer, rank in enumerate(ranks) if rank is not None}
                for name, ranks in self.median_ranks.items()
            },
            "peaked": {
                "n": len(self.peaked),
                "by_layer": {str(layer): n for layer, n in self.peaked_in().items()},
                "agreement": of_peaked,
            },
        }

    def table(self) -> Table:
        """A table for a terminal: agreement and median rank by layer, beside the control."""
        shares = {
            f"{name} (%)": [None if each is None else each.text(percent=True, digits=2) for each in shares]
            for name, shares in self.by_layer.items()
        }
        title = f"does the value promote what follows its key's top trigger? by chance {100 * self.chance:.4f} %"
        ranks = {f"median {name}": figures for name, figures in self.median_ranks.items()}
        return table_of(title, range(len(self.peaks)), {**shares, **ranks})

    def plot(self, path: str | Path) -> None:
        """Draws agreement and control by layer, as PNG, PDF or SVG, by the path's suffix."""
        n = self.peaks.shape[1]
        plot_curves(
            path,
            range(len(self.peaks)),
            self.by_layer,
            label="values that promote the token after the top trigger",
            title=f"Agreement of keys and values; {n} memories a layer",
            percent=True,
        )


def _share(outcomes: Tensor) -> Mean | None:
    """The share of yes among outcomes, with its exact interval; None where there are none."""
    n = outcomes.numel()
    if n == 0:
        return None
    share = float(outcomes.double().mean())
    return Mean(share, *exact_share(share, n), n)


@one_thread
def agreement(lm: LanguageModel, triggers: Triggers, seed: int = 0) -> Agreement:
    """Compares what every value promotes with what follows its key's triggers, in the unedited model that they are of.

    The control pairs each value with the top trigger of another memory of its layer, drawn by a permutation: what is
    left of agreement there comes from tokens that are frequent on both sides. All values are read again, since a rank
    needs the scores of the whole vocabulary, and `read_values` keeps only the top tokens. Raises UnsupportedModelError:
    the model is an encoder, or has no final norm; ValueError: the triggers are of a model of another shape.
    """
    require_same_shape(lm, triggers)
    generator = torch.Generator().manual_seed(check_value("agreement", "seed", seed, Seed))
    after = triggers.next_tokens[..., 0].long()
    permuted = torch.stack([row[torch.randperm(len(row), generator=generator)] for row in after])
    signs = triggers.coefficients[..., 0].sign()
    found: dict[str, list[Tensor]] = {name: [] for name in ("top_tokens", "peaks", "ranks", "permuted_ranks")}
    n_vocabulary = 0
    with lm.edits.suspended():
        for layer in track(range(lm.n_layers), "Agreement of keys and values"):
            values = lm.memory(layer).values
            rows: dict[str, list[Tensor]] = {name: [] for name in found}
            for begin in range(0, len(values), ROWS):
                some = slice(begin, begin + ROWS)
                scores = read_static(lm, values[some] * signs[layer, some, None].to(values))
                n_vocabulary = scores.shape[-1]
                peak, token = scores.softmax(-1).max(-1)
                rows["top_tokens"].append(token)
                rows["peaks"].append(peak)
                rows["ranks"].append(rank_of(scores, after[layer, some]))
                rows["permuted_ranks"].append(rank_of(scores, permuted[layer, some]))
            for name, parts in rows.items():
                found[name].append(torch.cat(parts).cpu())
    stacked = {name: torch.stack(parts) for name, parts in found.items()}
    stacked["top_tokens"] = stacked["top_tokens"].masked_fill(signs == 0, -1)
    return Agreement(n_vocabulary=n_vocabulary, next_tokens=triggers.next_tokens, permuted_tokens=permuted, **stacked)
