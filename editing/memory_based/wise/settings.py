"""WISE's hyper-parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from corrigenda.errors import SettingsError
from corrigenda.moments.text import Text
from corrigenda.settings.checked import (
    AtLeastOne,
    Count,
    NotNegative,
    Positive,
    Seed,
    ShareAboveZero,
    ShareBelowOne,
    checked,
)
from editing.memory_based.wise.merging import Masks, Merge
from editing.memory_based.wise.unrelated import Unrelated
from editing.shared.layers import OneLayer


@dataclass(frozen=True)
@checked
class WiseSettings(OneLayer):
    """All hyper-parameters of WISE.

    Attributes:
        layer: the layer; None for `depth`.
        depth: which layer `layer=None` stands for, as a share of the model's depth.
        variant: "merge": the shards are merged into one side memory; "retrieve": there are several, each of one shard,
            or, where shards are learned apart (`with_others=False`), merged of `shards` in a row, as in the paper.
        merge: how shards are merged: "ties" or "mean". By the mean every shard that is opened weakens those before it.
        keep: with ties, the share of a shard's learned entries that is kept; all of them where a shard is learned with
            the others in place.
        shards: how many shards *merge* has, and a side memory of *retrieve* whose shards are learned apart.
        edits_per_shard: how many facts a shard takes.
        rho: the share of the entries that a shard may change.
        masks: how its entries are chosen: "disjoint": 1 / `rho` shards in a row have none in common; "independent":
            each shard's at random, whatever the others have.
        with_others: whether a shard is learned with the other shards in place (*retrieve*: in view); see `Wise`.
        seed: for contexts, subspaces, and what is drawn in a step.
        whiten: whether V' - V = W Theta with W from the second moment; False for V' - V = Theta.
        ridge: is added to the second moment before it is inverted, in units of its mean diagonal.
        text: over which text the second moment is taken.
        units: "layer": the learning rate and the routing loss are in units of u, what the layer itself adds on
            unrelated prompts; "absolute": they are taken as they are.
        prefix_lengths: pairs (tokens, number) of the pool of contexts (`editing.shared.contexts`).
        prefixes: contexts drawn for each fact, besides none.
        thinned: rows whose prompt has words left out (`editing.shared.training_rows.thinned`).
        thinning: the share of the words left out.
        end_token: whether the end token is learned after the target.
        steps: gradient steps for a batch of facts, at most.
        lr: the learning rate; see `units`.
        momentum: of gradient descent.
        stop: facts are done when the loss per token is below this after the bare prompt, and below twice this in the
            mean over all rows of a fact, and D(edit) >= beta (and, in view of other memories, larger than theirs);
            0: all steps are taken.
        batch_size: facts learned together.
        replay: earlier facts of the shard (with `in_place`: of all shards) in each step.
        max_norm: the bound on each shard, in units of the layer's own: the root mean square of what it adds to the FFN
            output on ordinary text, over that of the FFN output (with `whiten`; without, |V' - V| over |V|); None: no
            bound.
        max_entry: the bound on the magnitude of each entry of a shard, which is cut off there after each step, as in
            the authors' published settings (with `whiten` of Theta's, not of V' - V's); None: no bound.
        weight: of the margin loss (`units` says in which unit).
        alpha: unrelated prompts' scores are pushed below it; None to calibrate.
        beta: the facts' scores are pushed above it; None to calibrate.
        gamma: the facts' scores are pushed so far above those of unrelated prompts; None to calibrate.
        margin_scale: the three are multiplied by it where they are given: their ratios stay what they are, and fit a
            model whose activations are of another size.
        loudness: calibrates alpha: the routing score, in units of u, that is allowed on unrelated prompts.
        remembered: earlier facts in each step, drawn apart from those that are replayed, for beta's term alone: they
            must stay activated. With *retrieve* as many of the other memories, where those must be activated.
        threshold: how epsilon is set: "between" the facts and the unrelated prompts (`Wise`); "smallest": the smallest
            score of the facts, by the memory that they are in at the end; "edits": the smallest score that a fact had
            right after its own edit, by its shard alone, as in the paper's algorithm 1.
        margin: the smallest share of the lowest fact's score that epsilon may be (with threshold="between"); and the
            share of a fact's score that another side memory may have on it.
        unrelated: the unrelated prompts.
        unrelated_batch: how many of them in each step, shared evenly among the kinds.
        other_subjects: further unrelated prompts of each fact, which are in each of its steps: its own prompt about
            other subjects (of the facts that ship with the project). One of each earlier fact's make a kind of their
            own, while nobody edits that subject. With many facts it costs what prose and other prompts need
            (docs/sequential.md).
        hard_negatives: further unrelated prompts in each step: of `CANDIDATES` times as many those with the highest
            scores.
    """

    # Where the side memory stands, its shards, and how they come together.
    layer: int | None = None
    depth: ShareAboveZero = 0.7
    variant: Literal["merge", "retrieve"] = "merge"
    merge: Merge = "ties"
    keep: ShareAboveZero = 1.0
    shards: AtLeastOne = 1
    edits_per_shard: AtLeastOne = 100
    rho: ShareAboveZero = 1.0
    masks: Masks = "disjoint"
    with_others: bool = True
    seed: Seed = 0

    # In which coordinates, and in which units, the side memory is learned; see `Wise`.
    whiten: bool = True
    ridge: Positive = 0.03
    text: Text = field(default_factory=Text)
    units: Literal["layer", "absolute"] = "layer"

    # Which training rows a fact has: its bare prompt, and these.
    prefix_lengths: tuple[tuple[AtLeastOne, AtLeastOne], ...] = ((5, 10), (10, 10))
    prefixes: Count = 1
    thinned: Count = 4
    thinning: ShareAboveZero = 0.4
    end_token: bool = True

    # How a shard is learned.
    steps: AtLeastOne = 30
    lr: Positive = 0.01
    momentum: ShareBelowOne = 0.9
    stop: NotNegative = 0.03
    batch_size: AtLeastOne = 1
    replay: Count = 5
    max_norm: Positive | None = 1.0
    max_entry: Positive | None = None

    # The margin loss, and the threshold that says when the side memory answers; see `Wise`.
    weight: NotNegative = 7.0
    alpha: NotNegative | None = None
    beta: NotNegative | None = None
    gamma: NotNegative | None = None
    margin_scale: Positive = 1.0
    loudness: Positive = 0.25
    remembered: Count = 24
    threshold: Literal["between", "smallest", "edits"] = "between"
    margin: ShareAboveZero = 0.8

    # What the side memory must leave alone.
    unrelated: Unrelated = field(default_factory=Unrelated)
    unrelated_batch: AtLeastOne = 24
    other_subjects: Count = 0
    hard_negatives: Count = 12

    def __post_init__(self) -> None:
        name = type(self).__name__
        margins = (self.alpha, self.beta, self.gamma)
        if any(value is None for value in margins) and any(value is not None for value in margins):
            raise SettingsError(f"{name}: give all of alpha, beta and gamma, or none of them: {margins}")
        if self.alpha is None and self.margin_scale != 1:
            raise SettingsError(
                f"{name}: margin_scale={self.margin_scale} multiplies alpha, beta and gamma where they are given: give "
                "them, or calibrate with loudness"
            )
        if self.prefixes > sum(number for _, number in self.prefix_lengths):
            raise SettingsError(
                f"{name}: {self.prefixes} contexts cannot be drawn from a pool of {self.prefix_lengths}"
            )
        if self.in_place and self.masks == "independent" and self.shards > 1:
            raise SettingsError(
                f"{name}: {self.shards} shards with masks=independent share entries, and cannot be learned with one "
                "another in place: the masks must be disjoint, or take with_others=False"
            )
        if self.in_place and self.shards * self.rho > 1 + 1e-6:
            raise SettingsError(
                f"{name}: {self.shards} shards of rho={self.rho} of the entries each share entries, and cannot be "
                "learned with one another in place: "
                f"take rho<={math.floor(1e4 / self.shards) / 1e4}, or with_others=False"
            )
        if self.in_place and self.keep < 1:
            raise SettingsError(
                f"{name}: keep={self.keep} would trim shards that were learned whole, with one another in place: "
                "keep must be 1, or take with_others=False"
            )

    @property
    def in_place(self) -> bool:
        """Whether a shard is learned with the others in place."""
        return self.with_others and self.variant == "merge"

    @property
    def in_view(self) -> bool:
        """Whether a side memory is learned with the others in view."""
        return self.with_others and self.variant == "retrieve"

    @property
    def shards_of_memory(self) -> int:
        """How many shards in a row are merged into a side memory."""
        return 1 if self.in_view else self.shards

    @property
    def rows_per_fact(self) -> int:
        """How many rows a fact has."""
        return 1 + self.prefixes + self.thinned


CANDIDATES = 6
"""Of so many times as many unrelated prompts those with the highest scores are learned from (`hard_negatives`)."""

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
