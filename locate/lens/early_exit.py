"""Early exit: when may a model stop, before its last layer, and say what it would say after it?

Three rules are measured side by side on the same positions. Each gives every layer a score, and the model stops at the
first layer whose score reaches a threshold; what it then says is the top token of the logit lens there.

- ``sub_updates``: from the dominant sub-updates alone, without looking at the vocabulary (after Geva et al. 2022,
  section 6.2: which values are dominant where a prediction is settled, learned from examples). For each layer and value
  the share of training positions with that value among the k dominant ones whose prediction was settled; a position's
  score is the mean of these over its own k. A value counts for itself at each sign of its coefficient.
- ``top_probability``: the probability of the lens's top token.
- ``patience``: for how many layers in a row the top token has been the same.
"""

import dataclasses
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.interventions import Read, intervene
from corrigenda.forward.recording import forward_to
from corrigenda.intervals import interval
from corrigenda.models.alone import one_thread
from corrigenda.models.sites import Site
from corrigenda.moments.text import Text
from corrigenda.settings.checked import AtLeastOne, Seed, ShareAboveZero, checked
from corrigenda.system.progress import track
from locate.lens.words import final_norm, read_states
from locate.saving import SavedResult

RULES = ("sub_updates", "top_probability", "patience")
POINTS = 50
"""Thresholds on a curve, at most."""


@dataclass(frozen=True)
@checked
class EarlyExitSettings:
    """On what early exit is learned and measured.

    Attributes:
        text: whose positions are looked at; by default the one that ships. One half of its sequences teaches the rules
            (which values, which threshold), the other half measures them.
        per_sequence: at how many positions of each sequence, drawn at random.
        k: how many dominant sub-updates of each layer are looked at.
        smoothing: so many positions at a layer's own rate are added to what was seen of each value.
        target: the accuracy for which each rule's threshold is chosen, on the half that teaches.
        seed: for drawing positions.
    """

    text: Text = field(default_factory=Text)
    per_sequence: AtLeastOne = 4
    k: AtLeastOne = 10
    smoothing: AtLeastOne = 5
    target: ShareAboveZero = 0.95
    seed: Seed = 0


@dataclass(frozen=True, eq=False)
class EarlyExit(SavedResult, file="early_exit"):
    """What three rules save, and at which accuracy.

    Attributes:
        model: the model's name.
        n_layers: how many layers it has; saved layers are out of so many.
        n_taught: over how many positions the rules were taught.
        n: over how many others they were measured.
        n_sequences: of so many sequences; intervals are over these.
        target: the accuracy for which thresholds were chosen.
        chosen: for each rule the threshold and, on the measured half, accuracy and layers saved, each with the bounds
            of its 95 % interval: "threshold", "accuracy", "saved", each of the latter (mean, low, high).
        accuracy: by rule and threshold, (rule, point): the share of positions where the model says at its exit what it
            says after its last layer. NaN beyond a rule's last point.
        saved: the mean number of layers that do not run, (rule, point).
        settled: the share of measured positions whose prediction is settled after each layer, (layer,).
    """

    model: str
    n_layers: int
    n_taught: int
    n: int
    n_sequences: int
    target: float
    chosen: dict[str, dict[str, Any]]
    accuracy: Tensor
    saved: Tensor
    settled: Tensor

    def summary(self) -> dict[str, Any]:
        """The figures in plain values."""
        return {
            "model": self.model,
            "layers": self.n_layers,
            "n": self.n,
            "sequences": self.n_sequences,
            "target": self.target,
            "rules": self.chosen,
            "best_possible_saved": float(self.settled[:-1].sum()),
        }

    def table(self) -> Table:
        """A table for a terminal: by rule the accuracy and the layers saved."""
        title = f"early exit of {escape(self.model)}, {self.n_layers} layers, {self.n} positions, for {self.target:.0%}"
        table = Table("rule", "accuracy (%)", "95 % interval", "layers saved", "95 % interval", title=title)
        for rule, figures in self.chosen.items():
            cells = []
            for name, factor in (("accuracy", 100), ("saved", 1)):
                mean, low, high = figures[name]
                cells += [f"{factor * mean:.1f}", "" if low is None else f"{factor * low:.1f} to {factor * high:.1f}"]
            table.add_row(rule.replace("_", " "), *cells)
        return table

    def plot(self, path: str | Path) -> None:
        """Draws accuracy against layers saved, a curve a rule, as PNG, PDF or SVG, by the path's suffix."""
        from locate.lens.pictures import exits

        exits(path, RULES, self.accuracy, self.saved, target=self.target, title=f"{self.model}, {self.n} positions")


@dataclass(frozen=True, eq=False)
class Observed:
    """Some positions, layer by layer.

    Attributes:
        sequences: of which sequence each is, (n,).
        tops: the top token after each layer, (n, layer).
        probabilities: its probability, (n, layer).
        dominant: the k values whose sub-updates are largest, (n, layer, k), numbered 2 i for m_i above zero, 2 i + 1
            for m_i below it.
    """

    sequences: Tensor
    tops: Tensor
    probabilities: Tensor
    dominant: Tensor

    @property
    def settled(self) -> Tensor:
        """Whether from this layer on the top token is the last layer's, (n, layer)."""
        return (self.tops == self.tops[:, -1:]).flip(1).cumprod(1).flip(1).bool()

    @property
    def patience(self) -> Tensor:
        """For how many layers the top token has been what it is, (n, layer): 0 where it has just changed."""
        run = torch.zeros_like(self.tops)
        for layer in range(1, self.tops.shape[1]):
            run[:, layer] = (run[:, layer - 1] + 1) * (self.tops[:, layer] == self.tops[:, layer - 1])
        return run.float()


@one_thread
def early_exit(lm: LanguageModel, settings: EarlyExitSettings | None = None) -> EarlyExit:
    """Teaches and measures three rules of early exit on a decoder with a final norm; applied edits are part of it.

    Raises UnsupportedModelError: the model is an encoder, or has no final norm; ValueError: the text has fewer than two
    sequences, or the model one layer.
    """
    final_norm(lm)
    settings = settings or EarlyExitSettings()
    sequences = settings.text.sequences(lm)
    if len(sequences) < 2 or lm.n_layers < 2:
        raise ValueError(
            f"early exit is learned from some sequences and measured on others, in a model of several layers; there "
            f"are {len(sequences)} sequences and {lm.n_layers} layers"
        )
    observed = observe(lm, sequences, settings)
    taught = observed.sequences < len(sequences) // 2
    old, new = (Observed(*(part[which] for part in dataclasses.astuple(observed))) for which in (taught, ~taught))
    rates = settled_rates(old, settings.smoothing, max(lm.memory(layer).d_ffn for layer in range(lm.n_layers)))
    chosen: dict[str, dict[str, Any]] = {}
    curves = torch.full((2, len(RULES), POINTS), torch.nan)
    groups = new.sequences.tolist()
    for place, rule in enumerate(RULES):
        before, after = (_scores(rule, part, rates) for part in (old, new))
        thresholds = _thresholds(before)
        points = [exits_at(before, old.tops, threshold) for threshold in thresholds]
        # Of the thresholds that were accurate enough the one that saves most; none at all is always accurate.
        enough = [
            (float(saved.float().mean()), threshold)
            for threshold, (right, saved) in zip(thresholds, points, strict=True)
            if float(right.float().mean()) >= settings.target
        ]
        threshold = max(enough)[1]
        right, saved = exits_at(after, new.tops, threshold)
        chosen[rule] = {
            "threshold": threshold if threshold != torch.inf else None,
            "accuracy": _with_interval(right.float().tolist(), groups, shares=True),
            "saved": _with_interval(saved.float().tolist(), groups),
        }
        for point, each in enumerate(thresholds):
            right, saved = exits_at(after, new.tops, each)
            curves[:, place, point] = torch.stack([right.float().mean(), saved.float().mean()])
    return EarlyExit(
        model=lm.name,
        n_layers=lm.n_layers,
        n_taught=len(old.tops),
        n=len(new.tops),
        n_sequences=len(set(groups)),
        target=settings.target,
        chosen=chosen,
        accuracy=curves[0],
        saved=curves[1],
        settled=new.settled.float().mean(0),
    )


@torch.no_grad()
def observe(lm: LanguageModel, sequences: Sequence[Sequence[int]], settings: EarlyExitSettings) -> Observed:
    """Looks at some positions of each sequence: what the lens says after each layer, and what is dominant in it."""
    generator = torch.Generator().manual_seed(settings.seed)
    norms = [lm.memory(layer).values.float().norm(dim=1) for layer in range(lm.n_layers)]
    parts: list[tuple[Tensor, ...]] = []
    for number, ids in enumerate(track(sequences, "Early exit")):
        batch = lm.batch([ids])
        places = torch.randperm(len(ids), generator=generator)[: settings.per_sequence].sort().values
        at = torch.zeros(1, len(ids), dtype=torch.bool)
        at[0, places] = True
        with ExitStack() as stack:
            states = [stack.enter_context(intervene(lm, Site("block", i), Read(), at)) for i in range(lm.n_layers)]
            inside = [
                stack.enter_context(intervene(lm, Site("coefficients", i), Read(), at)) for i in range(lm.n_layers)
            ]
            forward_to(lm, batch, lm.n_layers - 1)
        read = [read_states(lm, one.value).softmax(-1).max(-1) for one in states]
        dominant = []
        for one, size in zip(inside, norms, strict=True):
            m = one.value.float()
            which = (m.abs() * size).topk(min(settings.k, len(size))).indices
            dominant.append(2 * which + (m.gather(1, which) < 0))
        parts.append(
            (
                torch.full((len(places),), number),
                torch.stack([top.indices for top in read], 1).cpu(),
                torch.stack([top.values for top in read], 1).float().cpu(),
                torch.stack(dominant, 1).cpu(),
            )
        )
    return Observed(*(torch.cat(column) for column in zip(*parts, strict=True)))


def settled_rates(observed: Observed, smoothing: int, d_ffn: int) -> Tensor:
    """How often a prediction was settled where a value was dominant, (layer, 2 d_ffn), from examples.

    A value that was dominant n times, s of them where the prediction was settled, has (s + a r) / (n + a), r the
    layer's own rate and a the smoothing; one never seen has r.
    """
    settled, layers = observed.settled, observed.tops.shape[1]
    rates = torch.empty(layers, 2 * d_ffn)
    for layer in range(layers):
        which = observed.dominant[:, layer]
        truth = settled[:, layer].float()
        seen = torch.bincount(which.flatten(), minlength=2 * d_ffn).float()
        there = torch.bincount(which.flatten(), truth[:, None].expand(which.shape).flatten(), minlength=2 * d_ffn)
        rates[layer] = (there.float() + smoothing * truth.mean()) / (seen + smoothing)
    return rates


def exits_at(scores: Tensor, tops: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """Whether the model says at its exit what it says in the end, and how many layers that saves, both (n,).

    The exit is the first layer whose score, (n, layer), is at least the threshold, else the last one; `tops` are (n,
    layer).
    """
    may = scores >= threshold
    may[:, -1] = True
    exit_layer = may.int().argmax(1)
    said = tops.gather(1, exit_layer[:, None])[:, 0]
    return said == tops[:, -1], tops.shape[1] - 1 - exit_layer


def _scores(rule: str, observed: Observed, rates: Tensor) -> Tensor:
    """(n, layer): how sure a rule is, after each layer."""
    if rule == "sub_updates":
        layers = torch.arange(len(rates))[None, :, None]
        return rates[layers, observed.dominant].mean(2)
    return observed.probabilities if rule == "top_probability" else observed.patience


def _thresholds(scores: Tensor) -> list[float]:
    """The thresholds that are tried, ascending: that of every score, equally frequent scores, and that of none."""
    below = scores[:, :-1].flatten()
    levels = below[below > 0].quantile(torch.linspace(0, 1, POINTS - 2)).unique().tolist() if bool(below.any()) else []
    return [0.0, *levels, torch.inf]


def _with_interval(values: list[float], groups: list[int], shares: bool = False) -> tuple[float, Any, Any]:
    bounds = interval([values], groups, shares=shares)
    return (fmean(values), None, None) if bounds is None else (fmean(values), *bounds)
