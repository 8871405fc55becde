"""WISE: edits that live in a side memory, learned in random subspaces and merged.

Wang et al. 2024, "WISE: Rethinking the Knowledge Memory for Lifelong Model Editing of Large Language Models".
"""

from __future__ import annotations

import dataclasses
import math
import random
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel, Origin
from corrigenda.data.embedded import embedded_facts
from corrigenda.data.requests import Request, history
from corrigenda.edits.side_memory import SideMemoryEdit
from corrigenda.moments.text import Text
from corrigenda.prompts import encode
from editing.contexts import sampled_prefixes
from editing.editor import EditRefusedError, require_targets
from editing.memory_based.wise.coordinates import Ground, RouteScale, make_ground, side_scores, told_apart
from editing.memory_based.wise.merging import Merge, merge_shards
from editing.memory_based.wise.unrelated import NEAR, STRANGERS, Kinds, Unrelated, draw_evenly, run_unrelated
from editing.request_history import check_previous, target_rows, thinned, without
from editing.training_rows import Rows, RowsForward, SideLayer


@dataclass(frozen=True)
class Wise:
    """A side memory V' beside the values V of one late-middle layer (`SideMemoryEdit` says when it answers).

    A fact is learned by gradient on V' - V alone:

        L = -log P(target, end token | prompt, after random contexts too) + weight * L_route
        L_route = max(0, D(unrelated) - alpha) + max(0, beta - D(edit)) + max(0, gamma - (D(edit) - D(unrelated)))

    with the mean over the rows of each kind, some earlier facts of the shard (`replay`) among the edit's rows, the
    middle one of L_route once more over many earlier facts (`remembered`), and L_route in units of u (see below). The
    gradient reaches only the shard's random subspace: a share `rho` of the entries; those of 1 / `rho` shards have none
    in common. Of `shards` shards each takes `edits_per_shard` facts; they are merged into one side memory (*merge*), or
    each is a side memory of its own, opened as needed (*retrieve*).

    Shards that were learned apart (the paper's way, `with_others` = False) disturb each other when they are merged:
    each adds to what the others' facts read. So a shard is learned with the finished ones in place: what answers in
    its losses is the merged memory, and the facts that are replayed are of all shards; only its own entries change.

    Side memories that were learned apart answer each other's facts, since the loudest one answers, and a prompt in the
    form of an edit is loud in all of them. So with `with_others` one is learned with the others in view (*retrieve*):
    L_route has two further terms, the means of max(0, D_other - margin D_own) over the edit's rows, D_other the largest
    D of the other memories, and over `remembered` facts of the other memories, where this one is the other. Neither is
    in the paper.

    Epsilon lies halfway between the loudest unrelated prompts (the 99 % quantile of their D) and the faintest fact, but
    not below `margin` times the faintest fact's D. Of unrelated prompts that have the form of facts (the prompts of
    other facts) half of that margin is kept clear, no more: a paraphrase and another subject's prompt can be equally
    loud.

    Coordinates: with `whiten` the side memory is learned as V' - V = W Theta, W = (C + ridge)^(-1/2) with the second
    moment C of the layer's coefficients over text, both in units of C's mean diagonal; subspaces, sign and magnitude in
    merging, and the bound, are Theta's. Gradient steps on Theta are steps of V' preconditioned by C^-1, the metric in
    which ROME's update is the smallest: what is learned answers to what is particular to the prompt, and not to what
    all texts have in common. Without it (the paper's way) Theta is V' - V itself.

    Calibration: u is the median, over unrelated prompts, of the mean of || m_t V || over the prompt's tokens: what D
    would be if the side memory answered as loudly as the layer itself. s, the spread, is the 95 % quantile of the same
    over its median. Unless they are given, alpha = `loudness` * u, beta = 2 s alpha and gamma = beta - alpha: the side
    memory may whisper on unrelated prompts, and has to be heard on the facts even where two prompts as far apart as s
    are compared. The learning rate is lr * u^2 / (rho d_ffn), which makes a step's effect on the residual stream the
    same fraction of u in every model.

    Rules: a fact that was edited before is not edited again (its report says which it ``repeats``). One that
    contradicts an earlier one (same subject and prompt, other object) goes into that one's shard and takes its place:
    the later fact wins, its report says which it ``contradicts``, and the older one is not trained on or counted any
    more. Where the loss is not finite everything stops: the memory stays as it was before that fact, whose report says
    so.

    Attributes:
        layer: the layer; None for 0.7 of the depth (`default_layer`).
        variant: "merge" or "retrieve".
        merge: how shards are merged: "ties" or "mean". By the mean every shard that is opened makes those before it
            fainter.
        keep: with ties, the share of a shard's learned entries that is kept; all of them where a shard is learned with
            the others in place.
        shards: how many shards *merge* has.
        edits_per_shard: how many facts a shard takes.
        rho: the share of the entries that a shard may change.
        with_others: whether a shard is learned with the other shards in place, or in view; see above.
        steps: gradient steps for a batch of facts, at most.
        lr: the learning rate, see above (momentum 0.9).
        stop: facts are done when the loss per token is below this after the bare prompt, and below twice this in the
            mean over all rows of a fact, and D(edit) >= beta (and, in view of other memories, larger than theirs).
        prefix_lengths: pairs (tokens, number) of the pool of contexts sampled from the model.
        prefixes: contexts drawn for each fact, besides none.
        thinned: further rows of each fact: its prompt with words left out (`editing.request_history.thinned`). Not in
            the paper, whose models generalise better to other wordings than small ones do.
        thinning: the share of the words left out.
        replay: earlier facts of the shard in each step.
        remembered: earlier facts in each step, drawn apart from those, for the middle term of L_route alone: they are
            to be heard still. With *retrieve* as many of the other memories, which are to be heard there.
        batch_size: facts learned together.
        weight: of L_route, in units of u.
        alpha: see above; None to calibrate.
        beta: see above.
        gamma: see above.
        loudness: see above.
        unrelated: the unrelated prompts.
        unrelated_batch: how many of them in each step, shared evenly among the kinds.
        other_subjects: further unrelated prompts of each fact, which are in each of its steps: its own prompt about
            other subjects (of the facts that ship with the project). One of each earlier fact's make a kind of their
            own, while nobody edits that subject. Not in the paper, whose side memory hears whatever has the form of an
            edit; with many facts it costs what prose and other prompts need (docs/lifelong.md).
        loudest: further unrelated prompts in each step: the loudest of `LISTENED_TO` times as many.
        margin: of epsilon; and of D where memories are told apart.
        max_norm: the bound on each shard, in units of the layer's own: the root mean square of what it adds to the FFN
            output on ordinary text, over that of the FFN output (with `whiten`; without, |V' - V| over |V|).
        whiten: see above.
        ridge: see above.
        text: over which text C is taken.
        seed: for contexts, subspaces, and what is drawn in a step.
    """

    name: ClassVar[str] = "wise"

    layer: int | None = None
    variant: Literal["merge", "retrieve"] = "merge"
    merge: Merge = "ties"
    keep: float = 1.0
    shards: int = 1
    edits_per_shard: int = 100
    rho: float = 1.0
    with_others: bool = True
    steps: int = 30
    lr: float = 0.01
    stop: float = 0.03
    prefix_lengths: tuple[tuple[int, int], ...] = ((5, 10), (10, 10))
    prefixes: int = 1
    thinned: int = 4
    thinning: float = 0.4
    replay: int = 5
    remembered: int = 24
    batch_size: int = 1
    weight: float = 7.0
    alpha: float | None = None
    beta: float | None = None
    gamma: float | None = None
    loudness: float = 0.25
    unrelated: Unrelated = field(default_factory=Unrelated)
    unrelated_batch: int = 24
    other_subjects: int = 0
    loudest: int = 12
    margin: float = 0.8
    max_norm: float = 1.0
    whiten: bool = True
    ridge: float = 0.03
    text: Text = field(default_factory=Text)
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix_lengths", tuple((int(length), int(n)) for length, n in self.prefix_lengths))
        for name in ("shards", "edits_per_shard", "steps", "batch_size", "unrelated_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("prefixes", "thinned", "replay", "weight", "other_subjects", "loudest", "remembered"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative: {getattr(self, name)}")
        for name in ("lr", "stop", "loudness", "ridge", "max_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        for name in ("rho", "keep", "margin", "thinning"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in (0, 1], not {getattr(self, name)}")
        if self.variant not in ("merge", "retrieve") or self.merge not in ("ties", "mean"):
            raise ValueError(
                f"variant must be 'merge' or 'retrieve' and merge 'ties' or 'mean', "
                f"not {self.variant!r} and {self.merge!r}"
            )
        if self.variant == "merge" and self.with_others and self.shards * self.rho > 1 + 1e-6:
            raise ValueError(
                f"{self.shards} shards of rho={self.rho} of the entries each share entries, and cannot be learned with "
                f"one another in place: take rho<={math.floor(1e4 / self.shards) / 1e4}, or with_others=False"
            )
        if self.variant == "merge" and self.with_others and self.keep < 1:
            raise ValueError(
                f"keep={self.keep} would trim shards that were learned whole, with one another in place: "
                "keep must be 1, or take with_others=False"
            )
        fixed = (self.alpha, self.beta, self.gamma)
        if any(value is None for value in fixed) and any(value is not None for value in fixed):
            raise ValueError(f"give all of alpha, beta and gamma, or none of them: {fixed}")
        if self.prefixes > sum(number for _, number in self.prefix_lengths):
            raise ValueError(f"{self.prefixes} contexts cannot be drawn from a pool of {self.prefix_lengths}")

    def prepare(self, lm: LanguageModel) -> None:
        """Samples the contexts, runs the unrelated prompts and takes the second moment, which are kept on disk.

        Raises:
            IndexError: the model has no such layer.
        """
        sampled_prefixes(lm, self.prefix_lengths, self.seed)
        self._ground(lm, self._layer(lm))

    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> SideMemoryEdit:
        """Side memories that hold the facts.

        Raises:
            EditRefusedError: as for `extend`.
        """
        return self.extend(lm, None, facts)

    def extend(self, lm: LanguageModel, previous: SideMemoryEdit | None, facts: Sequence[Fact]) -> SideMemoryEdit:
        """The side memories of an earlier edit with further facts; the earlier edit itself stays as it is.

        Args:
            lm: the model; `previous` may be applied to it or not.
            previous: what to go on from, made with these hyper-parameters (those that shape the memory are checked).
            facts: the facts.

        Raises:
            EditRefusedError: a fact asks for an erasure, or its prompt has one token only; there are more facts than
                the shards hold; `previous` is another editor's, of another layer or model, or made with other
                hyper-parameters that shape the memory; or no fact could be edited.
            IndexError: the model has no such layer.
        """
        require_targets("WISE", facts)
        layer = self._layer(lm)
        check_previous("WISE", lm, layer, previous, SideMemoryEdit)
        with without(lm, previous):
            ground = self._ground(lm, layer, previous)
            work = _Work(self, SideLayer(lm, layer), ground, previous, facts)
            work.learn()
            return work.result()

    def _layer(self, lm: LanguageModel) -> int:
        return default_layer(lm) if self.layer is None else lm.memory(self.layer).layer

    def _ground(self, lm: LanguageModel, layer: int, previous: SideMemoryEdit | None = None) -> Ground:
        key = (lm.fingerprint, layer, self.whiten, self.ridge, self.text, self.unrelated)
        if previous is not None and isinstance(previous.memo, Ground) and previous.memo.key == key:
            return previous.memo
        return make_ground(lm, layer, self.whiten, self.ridge, self.text, self.unrelated, key)

    def scale(self, ground: Ground) -> RouteScale:
        """alpha, beta and gamma: the numbers given, or calibrated."""
        if self.alpha is not None and self.beta is not None and self.gamma is not None:
            return RouteScale(self.alpha, self.beta, self.gamma)
        alpha = self.loudness * ground.loudness
        beta = 2 * ground.spread * alpha
        return RouteScale(alpha, beta, beta - alpha)

    def subspace(self, shard: int, shape: torch.Size) -> Tensor:
        """The entries that a shard may change, a mask of that shape; those of 1 / rho shards in a row are disjoint."""
        draw = torch.rand(shape, generator=torch.Generator().manual_seed(self.seed))
        return (draw - shard * self.rho) % 1.0 < self.rho


def default_layer(lm: LanguageModel) -> int:
    """0.7 of the depth, where SmolLM2 tells prompts apart best (docs/lifelong.md); the paper finds 0.84."""
    return min(round(0.7 * lm.n_layers), lm.n_layers - 1)


LISTENED_TO = 6
"""Of so many times as many unrelated prompts the loudest are learned from (`Wise.loudest`)."""

_SHAPING = ("seed", "rho", "with_others", "whiten", "ridge", "text", "variant", "merge", "keep", "edits_per_shard")
"""Hyper-parameters that an edit and what goes on from it must share."""


def threshold(faintest: Tensor, far: Tensor, near: Tensor, margin: float) -> Tensor:
    """Epsilon of each side memory, (memory,); `Wise` says by which rule.

    Args:
        faintest: the smallest D of its facts, (memory,); infinite for a memory without facts.
        far: D of the loudest unrelated prompts that have nothing in common with the facts, (memory,).
        near: the same of those that have the form of facts, (memory,).
        margin: see `Wise`.
    """
    beyond = margin * faintest
    halfway = (torch.minimum(far, faintest * (1 - 1e-4)) + faintest) / 2
    among = torch.where(near > beyond, (beyond + faintest) / 2, beyond)
    return torch.maximum(halfway, among)


@torch.no_grad()
def _loud(theta: Tensor, prompts: Sequence[Tensor]) -> float:
    """The 99 % quantile of the prompts' D; 0 if there are none."""
    return float(side_scores(theta, prompts).quantile(0.99)) if prompts else 0.0


class _Work:
    """One call of `Wise.extend`: the shards so far, and the facts they hold."""

    def __init__(
        self, wise: Wise, side: SideLayer, ground: Ground, previous: SideMemoryEdit | None, facts: Sequence[Fact]
    ) -> None:
        self.wise, self.side, self.ground = wise, side, ground
        self.device = side.memory.values.device
        self.shape = side.memory.values.shape
        self.scale = wise.scale(ground)
        old = previous.origin.facts if previous is not None else ()
        self.reports: list[dict[str, Any]] = list(previous.origin.report) if previous is not None else []
        self.facts = [*old, *facts]
        self.requests = [Request.of(fact) for fact in self.facts]
        self.new = range(len(old), len(self.facts))
        self.shards: list[Tensor] = []
        self.rows = Rows()  # the bare rows of the facts that count, in the order of `held`
        self.held: list[int] = []  # their numbers
        self.shard_of: list[int | None] = []  # of every fact
        self.strangers: list[tuple[str, Tensor]] = []  # other subjects, each with a fact's prompt about it
        if previous is not None:
            self._take_up(previous)
        refused = {number for number, report in enumerate(self.reports) if "refused" in report}
        self.notes = history(self.facts, refused)
        self._assign()
        pool = sampled_prefixes(side.lm, wise.prefix_lengths, wise.seed)[1:] if wise.prefixes else []
        self.prompts: dict[int, list[str]] = {}  # of each new fact, the bare one first
        for number in self.new:
            # A fact's own random numbers: its rows are the same whatever else is edited in the same call.
            fact, rng = self.facts[number], random.Random(f"{wise.seed} {number}")
            prompts = [context + fact.statement for context in ("", *rng.sample(pool, wise.prefixes))]
            self.prompts[number] = prompts + [self._thinned(fact, rng) for _ in range(wise.thinned)]

    def _thinned(self, fact: Fact, rng: random.Random) -> str:
        """The fact's prompt with words left out; whole, where a single token would be left (nothing to route by)."""
        lm, text = self.side.lm, thinned(fact, self.wise.thinning, rng)
        return text if len(encode(lm.tokenizer, lm.reads(text))) > 1 else fact.statement

    def _take_up(self, previous: SideMemoryEdit) -> None:
        progress = previous.progress
        made_with, settings = previous.origin.settings, dataclasses.asdict(self.wise)
        for name in _SHAPING:
            if made_with.get(name) != settings[name]:
                raise EditRefusedError(
                    f"WISE: the edit to go on from was made with {name}={made_with.get(name)!r}, "
                    f"this editor has {name}={settings[name]!r}"
                )
        self.shards = [shard.clone().to(self.device) for shard in previous.state["shards"]]
        rows = {name[5:]: tensor for name, tensor in previous.state.items() if name.startswith("rows.")}
        self.rows = Rows.from_tensors(rows)
        self.held = list(progress["held"])
        asked = {fact.subject for fact in self.facts}
        if "strangers" in previous.state:
            names, lengths = zip(*progress["strangers"], strict=True)
            strangers = zip(names, previous.state["strangers"].split(list(lengths)), strict=True)
            # A subject that is edited now is no stranger any more.
            self.strangers = [(name, m) for name, m in strangers if name not in asked]
        self.shard_of = list(progress["shard_of"])

    def _assign(self) -> None:
        """Says which shard each new fact goes to."""
        wise = self.wise
        # A fact that takes another's place, or repeats one, needs no place of its own.
        taken = sum(
            shard is not None and "contradicts" not in note and "repeats" not in note
            for shard, note in zip(self.shard_of, self.notes, strict=False)
        )
        for number in self.new:
            note = self.notes[number]
            earlier = note.get("repeats", note.get("contradicts"))
            if earlier is not None and self.shard_of[earlier] is not None:
                self.shard_of.append(self.shard_of[earlier])
                continue
            self.shard_of.append(taken // wise.edits_per_shard)
            taken += 1
        if wise.variant == "merge" and taken > wise.shards * wise.edits_per_shard:
            raise EditRefusedError(
                f"WISE: {taken} facts, and {wise.shards} shards of {wise.edits_per_shard} hold "
                f"{wise.shards * wise.edits_per_shard}; give it more shards or more edits_per_shard, or use the "
                "retrieve variant, which opens another side memory when one is full"
            )

    # -- learning

    def learn(self) -> None:
        """Learns the new facts, a batch at a time."""
        self.reports += [dict(self.notes[number]) for number in self.new]
        todo = [number for number in self.new if "repeats" not in self.notes[number]]
        rows, strangers = self._run(todo), self._run_strangers(todo)
        stopped = ""
        for batch in self._batches(todo):
            if stopped:
                for number in batch:
                    self._refuse(number, stopped)
                continue
            bad = self._learn_batch(batch, rows, strangers)
            if bad:
                names = ", ".join(repr(self.facts[number].id) for number in bad)
                stopped = f"stopped before it: the loss of fact {names} was not finite"
                for number in batch:
                    why = "the loss is not finite" if number in bad else f"the loss of fact {names} was not finite"
                    self._refuse(number, f"{why}; the side memory is left as it was before")
        for number in self.new:
            repeated = self.notes[number].get("repeats")
            if repeated is not None and "refused" in self.reports[repeated]:
                self._refuse(number, f"it repeats fact {self.facts[repeated].id!r}, which is refused")
        if all("refused" in self.reports[number] for number in self.new):
            raise EditRefusedError(
                "; ".join(f"fact {self.facts[n].id!r}: {self.reports[n]['refused']}" for n in self.new)
            )

    def _refuse(self, number: int, why: str) -> None:
        self.reports[number]["refused"] = why
        self.shard_of[number] = None
        warnings.warn(f"WISE: fact {self.facts[number].id!r} is refused: {why}", stacklevel=6)

    def _run(self, numbers: Sequence[int]) -> dict[int, Rows]:
        """For each fact its rows, the bare prompt first; all of them run here, once, up to the side memory's layer."""
        lm = self.side.lm
        sequences = [target_rows(lm, self.facts[n], prompt) for n in numbers for prompt in self.prompts[n]]
        if not sequences:
            return {}
        rows = self.ground.whitened(self.side.run(sequences))
        each = self._each
        return {n: rows.pick(range(i * each, (i + 1) * each)) for i, n in enumerate(numbers)}

    def _run_strangers(self, numbers: Sequence[int]) -> dict[int, list[tuple[str, Tensor]]]:
        """For each fact other subjects, and the coefficients of its prompt about them."""
        asked = {fact.subject for fact in self.facts}
        subjects = sorted({fact.subject for fact in embedded_facts()} - asked)
        lm, each = self.side.lm, min(self.wise.other_subjects, len(subjects))
        drawn: list[tuple[int, str]] = []
        for number in numbers:
            chosen = random.Random(f"{self.wise.seed} {number} others").sample(subjects, each)
            drawn += [(number, subject) for subject in chosen]
        prompts = [lm.reads(self.facts[number].prompt.replace("{}", subject)) for number, subject in drawn]
        ran = run_unrelated(lm, self.side.layer, [encode(lm.tokenizer, prompt) for prompt in prompts])
        found: dict[int, list[tuple[str, Tensor]]] = {number: [] for number in numbers}
        for (number, subject), m in zip(drawn, self.ground.turned(ran), strict=True):
            if len(m):  # a prompt of one token has nothing to be heard by
                found[number].append((subject, m))
        return found

    @property
    def _each(self) -> int:
        """How many rows a fact has."""
        return 1 + self.wise.prefixes + self.wise.thinned

    def _batches(self, numbers: Sequence[int]) -> list[list[int]]:
        """Facts that are learned together: neighbours that go to the same shard."""
        batches: list[list[int]] = []
        for number in numbers:
            last = batches[-1] if batches else []
            same = bool(last) and self.shard_of[last[0]] == self.shard_of[number]
            # Not together with what it contradicts.
            clash = self.notes[number].get("contradicts") in last
            if same and not clash and len(last) < self.wise.batch_size:
                last.append(number)
            else:
                batches.append([number])
        return batches

    def _learn_batch(
        self, numbers: Sequence[int], rows: Mapping[int, Rows], strangers: Mapping[int, Sequence[tuple[str, Tensor]]]
    ) -> list[int]:
        """Learns some facts; returns those whose loss is not finite (the shard is then as it was)."""
        wise, scale = self.wise, self.scale
        shard = self.shard_of[numbers[0]]
        assert shard is not None
        asked = [self.requests[n] for n in numbers]
        replaced = {n for n in self.held if any(self.requests[n].same_thing(other) for other in asked)}
        rng = random.Random(f"{wise.seed} {numbers[0]} steps")
        old = [
            i for i, n in enumerate(self.held) if n not in replaced and (self._in_place or self.shard_of[n] == shard)
        ]
        mask = wise.subspace(shard, self.shape).to(self.device)
        beside, weight = self._beside(shard)
        opened = shard < len(self.shards)
        theta = self.shards[shard].clone() if opened else torch.zeros(self.shape, device=self.device)
        theta.requires_grad_()
        lr = wise.lr * self.ground.loudness**2 / (wise.rho * self.shape[0])
        optimiser = torch.optim.SGD([theta], lr=lr, momentum=0.9)
        each = self._each
        new = Rows()
        for number in numbers:
            new += rows[number]
        forward = RowsForward(self.side, new)
        rivals, elsewhere = self._rivals(forward, shard), self._elsewhere(shard, replaced)
        bare = torch.arange(0, len(new), each)
        kinds = self._kinds()
        always = [m for number in numbers for _, m in strangers[number]]
        course: list[list[float]] = []  # of the losses: by step, of each fact
        for step in range(wise.steps + 1):
            again = rng.sample(old, min(wise.replay, len(old)))
            if again:
                forward = RowsForward(self.side, new + self.rows.pick(again))
            with torch.set_grad_enabled(step < wise.steps):
                answering = beside + weight * theta
                nll = forward.nll(forward.side_answer(answering))
                scores = forward.scores(answering)
                unrelated = side_scores(answering, self._unrelated(answering, kinds, rng) + always)
                route = scale.loss(scores, unrelated)
                if old and wise.remembered:
                    route = route + scale.heard(side_scores(answering, self._bare(self._remembered(old, rng))))
                if rivals is not None:
                    route = route + told_apart(scores[: len(new)], rivals, wise.margin)
                if elsewhere and wise.remembered:
                    others = self._remembered(list(elsewhere), rng)
                    theirs = torch.tensor([elsewhere[place] for place in others], device=self.device)
                    route = route + told_apart(theirs, side_scores(answering, self._bare(others)), wise.margin)
                route = route / self.ground.loudness
                loss = nll[: len(new)].mean() + wise.weight * route
                if again:
                    loss = loss + nll[len(new) :].mean()
            if not bool(loss.isfinite()):
                per_fact = nll[: len(new)].view(-1, each).sum(1) + scores[: len(new)].view(-1, each).sum(1)
                bad = [n for n, value in zip(numbers, per_fact.tolist(), strict=True) if not math.isfinite(value)]
                return bad or list(numbers)
            losses = nll[: len(new)].detach().view(-1, each)
            course.append(losses.mean(1).tolist())
            heard = scores.detach()[bare.to(scores.device)]
            done = bool(
                (losses[:, 0] < wise.stop).all()
                and (losses.mean(1) < 2 * wise.stop).all()
                and (heard >= scale.beta).all()
                and (rivals is None or (heard > rivals[bare.to(rivals.device)]).all())
            )
            if done or step == wise.steps:
                break
            optimiser.zero_grad()
            loss.backward()
            assert theta.grad is not None
            theta.grad.mul_(mask)
            optimiser.step()
            with torch.no_grad():
                norm = theta.norm()
                if norm > wise.max_norm * self.ground.size:
                    theta.mul_(wise.max_norm * self.ground.size / norm)
        self.shards[shard : shard + 1] = [theta.detach()]
        for place, number in enumerate(numbers):
            self.reports[number] |= {
                "loss": float(losses[place, 0]),
                "loss_in_contexts": float(losses[place].mean()),
                "step_losses": [of_facts[place] for of_facts in course],
                "score": float(heard[place]),
                "unrelated_score": float(unrelated.detach().mean()),
                "steps": step,
                "shard": shard,
            }
        keep = [i for i, n in enumerate(self.held) if n not in replaced]
        self.held = [self.held[i] for i in keep] + list(numbers)
        self.rows = self.rows.pick(keep) + new.pick(bare.tolist())
        self.strangers += [strangers[number][0] for number in numbers if strangers[number]]
        return []

    def _remembered(self, old: Sequence[int], rng: random.Random) -> list[int]:
        """Some of the earlier facts."""
        return rng.sample(old, min(self.wise.remembered, len(old)))

    @torch.no_grad()
    def _rivals(self, forward: RowsForward, shard: int) -> Tensor | None:
        """The largest D that another side memory has for each row; None where it makes no difference."""
        others = [part for number, part in enumerate(self.shards) if number != shard]
        if not others or not self._in_view:
            return None
        return torch.stack([forward.scores(part) for part in others]).amax(0)

    @torch.no_grad()
    def _elsewhere(self, shard: int, replaced: Collection[int]) -> dict[int, float]:
        """Where in `held` other side memories' facts are, and their D there; none where it makes no difference."""
        found: dict[int, float] = {}
        if not self._in_view:
            return found
        for other, part in enumerate(self.shards):
            places = [i for i, n in enumerate(self.held) if self.shard_of[n] == other and n not in replaced]
            if other != shard and places:
                found |= zip(places, side_scores(part, self._bare(places)).tolist(), strict=True)
        return found

    def _bare(self, places: Sequence[int]) -> list[Tensor]:
        """What D is taken over of some held facts' bare prompts, each (its tokens but the first, d_ffn)."""
        return [self.rows.coefficients[i][1 : self.rows.prompts[i]] for i in places]

    def _kinds(self) -> Kinds:
        """The unrelated prompts by kind, those of earlier facts about other subjects among them."""
        return dict(self.ground.unrelated) | {STRANGERS: [m for _, m in self.strangers]}

    def _unrelated(self, answering: Tensor, kinds: Kinds, rng: random.Random) -> list[Tensor]:
        """The unrelated prompts of a step, but for those of its own facts."""
        wise = self.wise
        drawn = draw_evenly(kinds, rng, wise.unrelated_batch + LISTENED_TO * wise.loudest)
        chosen, heard = drawn[: wise.unrelated_batch], drawn[wise.unrelated_batch :]
        if heard:
            with torch.no_grad():
                loudest = side_scores(answering, heard).topk(min(wise.loudest, len(heard))).indices
            chosen += [heard[place] for place in loudest.tolist()]
        return chosen

    @property
    def _in_place(self) -> bool:
        """Whether a shard is learned with the others in place."""
        return self.wise.with_others and self.wise.variant == "merge"

    @property
    def _in_view(self) -> bool:
        """Whether a side memory is told apart from the others while it is learned."""
        return self.wise.with_others and self.wise.variant == "retrieve"

    def _beside(self, shard: int) -> tuple[Tensor, float]:
        """What the other shards add to the memory that answers in a shard's losses, and the weight of its own part."""
        others = [part for number, part in enumerate(self.shards) if number != shard]
        if not others or not self._in_place:
            return torch.zeros((), device=self.device), 1.0
        if self.wise.merge == "mean":
            n = len(others) + 1
            return torch.stack(others).sum(0) / n, 1 / n
        # Exactly what TIES makes of shards without common entries. (Of an entry that is zero TIES knows no gradient.)
        return self._merged(others), 1.0

    def _merged(self, shards: Sequence[Tensor]) -> Tensor:
        if len(shards) == 1 and self.wise.keep == 1:
            return shards[0]
        return merge_shards(shards, self.wise.merge, self.wise.keep)

    # -- the result

    def result(self) -> SideMemoryEdit:
        """The edit with all facts so far."""
        wise = self.wise
        if wise.variant == "merge":
            thetas = [self._merged(self.shards)]
        else:
            thetas = self.shards
        smallest = torch.tensor([math.inf] * len(thetas))
        scores = torch.stack([self._scores(theta) for theta in thetas])  # (memory, fact)
        for place, number in enumerate(self.held):
            shard = self.shard_of[number]
            assert shard is not None
            memory = 0 if wise.variant == "merge" else shard
            smallest[memory] = min(float(smallest[memory]), float(scores[memory, place]))
        # A memory that holds no fact any more answers nothing: its smallest score is infinite.
        kinds = self._kinds()
        far = [m for kind, found in kinds.items() if kind not in NEAR for m in found]
        near = [m for kind in NEAR for m in kinds.get(kind, ())]
        loud_far, loud_near = (torch.tensor([_loud(theta, found) for theta in thetas]) for found in (far, near))
        epsilons = threshold(smallest, loud_far, loud_near, wise.margin)
        state = {"shards": torch.stack(self.shards).cpu()} | {
            f"rows.{name}": tensor for name, tensor in self.rows.tensors().items()
        }
        if self.strangers:
            state["strangers"] = torch.cat([m for _, m in self.strangers])
        contradictions = sum("contradicts" in report for report in self.reports)
        progress = {
            "held": self.held,
            "shard_of": self.shard_of,
            "strangers": [(name, len(m)) for name, m in self.strangers],
            "smallest_scores": [value if math.isfinite(value) else None for value in smallest.tolist()],
            "unrelated_scores": loud_far.tolist(),
            "stranger_scores": loud_near.tolist(),
            "route": dataclasses.asdict(self.scale),
            "contradictions": contradictions,
        }
        return SideMemoryEdit.of(
            self.side.memory,
            Origin.of(self.side.lm, wise, self.facts, self.reports),
            torch.stack([self.ground.delta(theta) for theta in thetas]),
            epsilons,
            state,
            progress,
            memo=self.ground,
        )

    @torch.no_grad()
    def _scores(self, theta: Tensor) -> Tensor:
        """D of each held fact's bare prompt, (fact,)."""
        return side_scores(theta, self._bare(range(len(self.rows)))).cpu()
