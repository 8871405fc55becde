"""WISE's hyper-parameters, in groups by what they are for; `Wise` takes all of them as flat keywords."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from corrigenda.moments.text import Text
from editing.layers import OneLayer
from editing.memory_based.wise.merging import Masks, Merge
from editing.memory_based.wise.unrelated import Unrelated


class Settings:
    """A group of hyper-parameters; each checks its own when an editor is made, and hands on to the next."""

    def __post_init__(self) -> None: ...

    def _at_least(self, least: int, *names: str) -> None:
        for name in names:
            if getattr(self, name) < least:
                problem = "must not be negative:" if least == 0 else f"must be at least {least}, not"
                raise ValueError(f"{name} {problem} {getattr(self, name)}")

    def _positive(self, *names: str) -> None:
        for name in names:
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")

    def _share(self, *names: str) -> None:
        for name in names:
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in (0, 1], not {getattr(self, name)}")

    def _one_of(self, name: str, *known: str) -> None:
        if getattr(self, name) not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}")


@dataclass(frozen=True)
class ShardSettings(OneLayer, Settings):
    """Where the side memory stands, its shards, and how they come together.

    Attributes:
        layer: the layer; None for `depth`.
        depth: which layer `layer=None` stands for, as a share of the model's depth.
        variant: "merge": the shards are merged into one side memory; "retrieve": each is a side memory of its own.
        merge: how shards are merged: "ties" or "mean". By the mean every shard that is opened weakens those before it.
        keep: with ties, the share of a shard's learned entries that is kept; all of them where a shard is learned with
            the others in place.
        shards: how many shards *merge* has.
        edits_per_shard: how many facts a shard takes.
        rho: the share of the entries that a shard may change.
        masks: how its entries are chosen: "disjoint": 1 / `rho` shards in a row have none in common; "independent":
            each shard's at random, whatever the others have.
        with_others: whether a shard is learned with the other shards in place (*retrieve*: in view); see `Wise`.
        seed: for contexts, subspaces, and what is drawn in a step.
    """

    layer: int | None = None
    depth: float = 0.7
    variant: Literal["merge", "retrieve"] = "merge"
    merge: Merge = "ties"
    keep: float = 1.0
    shards: int = 1
    edits_per_shard: int = 100
    rho: float = 1.0
    masks: Masks = "disjoint"
    with_others: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        self._at_least(1, "shards", "edits_per_shard")
        self._share("rho", "keep", "depth")
        self._one_of("variant", "merge", "retrieve")
        self._one_of("merge", "ties", "mean")
        self._one_of("masks", "disjoint", "independent")
        if self.in_place and self.masks == "independent" and self.shards > 1:
            raise ValueError(
                f"{self.shards} shards with masks=independent share entries, and cannot be learned with one another in "
                "place: the masks must be disjoint, or take with_others=False"
            )
        if self.in_place and self.shards * self.rho > 1 + 1e-6:
            raise ValueError(
                f"{self.shards} shards of rho={self.rho} of the entries each share entries, and cannot be learned with "
                f"one another in place: take rho<={math.floor(1e4 / self.shards) / 1e4}, or with_others=False"
            )
        if self.in_place and self.keep < 1:
            raise ValueError(
                f"keep={self.keep} would trim shards that were learned whole, with one another in place: "
                "keep must be 1, or take with_others=False"
            )
        super().__post_init__()

    @property
    def in_place(self) -> bool:
        """Whether a shard is learned with the others in place."""
        return self.with_others and self.variant == "merge"

    @property
    def in_view(self) -> bool:
        """Whether a side memory is learned with the others in view."""
        return self.with_others and self.variant == "retrieve"


@dataclass(frozen=True)
class CoordinateSettings(Settings):
    """In which coordinates, and in which units, the side memory is learned; see `Wise`.

    Attributes:
        whiten: whether V' - V = W Theta with W from the second moment; False for V' - V = Theta.
        ridge: is added to the second moment before it is inverted, in units of its mean diagonal.
        text: over which text the second moment is taken.
        units: "layer": the learning rate and the routing loss are in units of u, what the layer itself adds on
            unrelated prompts; "absolute": they are taken as they are.
    """

    whiten: bool = True
    ridge: float = 0.03
    text: Text = field(default_factory=Text)
    units: Literal["layer", "absolute"] = "layer"

    def __post_init__(self) -> None:
        self._positive("ridge")
        self._one_of("units", "layer", "absolute")
        super().__post_init__()


@dataclass(frozen=True)
class RowSettings(Settings):
    """Which training rows a fact has: its bare prompt, and these.

    Attributes:
        prefix_lengths: pairs (tokens, number) of the pool of contexts sampled from the model.
        prefixes: contexts drawn for each fact, besides none.
        thinned: rows whose prompt has words left out (`editing.training_rows.thinned`).
        thinning: the share of the words left out.
        end_token: whether the end token is learned after the target.
    """

    prefix_lengths: tuple[tuple[int, int], ...] = ((5, 10), (10, 10))
    prefixes: int = 1
    thinned: int = 4
    thinning: float = 0.4
    end_token: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix_lengths", tuple((int(length), int(n)) for length, n in self.prefix_lengths))
        self._at_least(0, "prefixes", "thinned")
        self._share("thinning")
        if self.prefixes > sum(number for _, number in self.prefix_lengths):
            raise ValueError(f"{self.prefixes} contexts cannot be drawn from a pool of {self.prefix_lengths}")
        super().__post_init__()

    @property
    def rows_per_fact(self) -> int:
        """How many rows a fact has."""
        return 1 + self.prefixes + self.thinned


@dataclass(frozen=True)
class LearningSettings(Settings):
    """How a shard is learned.

    Attributes:
        steps: gradient steps for a batch of facts, at most.
        lr: the learning rate; see `CoordinateSettings.units`.
        momentum: of gradient descent.
        stop: facts are done when the loss per token is below this after the bare prompt, and below twice this in the
            mean over all rows of a fact, and D(edit) >= beta (and, in view of other memories, larger than theirs);
            0: all steps are taken.
        batch_size: facts learned together.
        replay: earlier facts of the shard (with `in_place`: of all shards) in each step.
        max_norm: the bound on each shard, in units of the layer's own: the root mean square of what it adds to the FFN
            output on ordinary text, over that of the FFN output (with `whiten`; without, |V' - V| over |V|); None: no
            bound.
    """

    steps: int = 30
    lr: float = 0.01
    momentum: float = 0.9
    stop: float = 0.03
    batch_size: int = 1
    replay: int = 5
    max_norm: float | None = 1.0

    def __post_init__(self) -> None:
        self._at_least(1, "steps", "batch_size")
        self._at_least(0, "replay")
        self._positive("lr", *(() if self.max_norm is None else ("max_norm",)))
        if not 0 <= self.stop < math.inf:
            raise ValueError(f"stop must not be negative, and finite: {self.stop}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must lie in [0, 1), not {self.momentum}")
        super().__post_init__()


@dataclass(frozen=True)
class RoutingSettings(Settings):
    """The margin loss, and the threshold that says when the side memory answers; see `Wise`.

    Attributes:
        weight: of the margin loss (`CoordinateSettings.units` says in which unit).
        alpha: unrelated prompts' scores are pushed below it; None to calibrate.
        beta: the facts' scores are pushed above it; None to calibrate.
        gamma: the facts' scores are pushed so far above those of unrelated prompts; None to calibrate.
        loudness: calibrates alpha: the routing score, in units of u, that is allowed on unrelated prompts.
        remembered: earlier facts in each step, drawn apart from those that are replayed, for beta's term alone: they
            must stay activated. With *retrieve* as many of the other memories, where those must be activated.
        threshold: how epsilon is set: "between" the facts and the unrelated prompts (`Wise`); "smallest": the smallest
            score of the facts.
        margin: the smallest share of the lowest fact's score that epsilon may be (with threshold="between"); and the
            share of a fact's score that another side memory may have on it.
    """

    weight: float = 7.0
    alpha: float | None = None
    beta: float | None = None
    gamma: float | None = None
    loudness: float = 0.25
    remembered: int = 24
    threshold: Literal["between", "smallest"] = "between"
    margin: float = 0.8

    def __post_init__(self) -> None:
        self._at_least(0, "weight", "remembered")
        self._positive("loudness")
        self._share("margin")
        self._one_of("threshold", "between", "smallest")
        fixed = (self.alpha, self.beta, self.gamma)
        if any(value is None for value in fixed) and any(value is not None for value in fixed):
            raise ValueError(f"give all of alpha, beta and gamma, or none of them: {fixed}")
        super().__post_init__()


@dataclass(frozen=True)
class UnrelatedSettings(Settings):
    """What the side memory must leave alone.

    Attributes:
        unrelated: the unrelated prompts.
        unrelated_batch: how many of them in each step, shared evenly among the kinds.
        other_subjects: further unrelated prompts of each fact, which are in each of its steps: its own prompt about
            other subjects (of the facts that ship with the project). One of each earlier fact's make a kind of their
            own, while nobody edits that subject. With many facts it costs what prose and other prompts need
            (docs/sequential.md).
        loudest: further unrelated prompts in each step: those with the highest scores of `CANDIDATES` times as many.
    """

    unrelated: Unrelated = field(default_factory=Unrelated)
    unrelated_batch: int = 24
    other_subjects: int = 0
    loudest: int = 12

    def __post_init__(self) -> None:
        self._at_least(1, "unrelated_batch")
        self._at_least(0, "other_subjects", "loudest")
        super().__post_init__()


@dataclass(frozen=True)
class WiseSettings(
    UnrelatedSettings, RoutingSettings, LearningSettings, RowSettings, CoordinateSettings, ShardSettings
):
    """All hyper-parameters of WISE."""


CANDIDATES = 6
"""Of so many times as many unrelated prompts those with the highest scores are learned from (`loudest`)."""

SHAPING = (
    "seed",
    "rho",
    "masks",
    "with_others",
    "whiten",
    "ridge",
    "text",
    "variant",
    "merge",
    "keep",
    "edits_per_shard",
)
"""Hyper-parameters that an edit and what goes on from it must share."""
