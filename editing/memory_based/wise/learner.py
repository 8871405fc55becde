"""Learning facts into the shards of a side memory, a batch at a time."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from corrigenda import Fact
from corrigenda.data.requests import history
from corrigenda.forward.differentiable import differentiable
from corrigenda.prompts import encode, put_before
from editing.editor import EditRefusedError, FactRefusedError
from editing.memory_based.wise.coordinates import Coordinates
from editing.memory_based.wise.margins import Margins, prompt_scores, rival_loss
from editing.memory_based.wise.memories import Memories
from editing.memory_based.wise.merging import subspace
from editing.memory_based.wise.other_subjects import OtherSubject, other_subjects
from editing.memory_based.wise.settings import CANDIDATES, WiseSettings
from editing.memory_based.wise.state import WiseState
from editing.memory_based.wise.unrelated import Kinds, draw_evenly
from editing.shared.contexts import contexts
from editing.shared.epochs import in_turn
from editing.shared.outliers import WHY
from editing.shared.training_rows import Rows, RowsForward, SideLayer, target_rows, thinned


class Learner:
    """One call of `Wise.extend`.

    Args:
        settings: the editor's.
        side: the layer.
        coordinates: of that layer.
        state: what to go on from.
        old: the facts edited before, and their reports.
        facts: the new ones.

    Attributes:
        facts: all facts, the old ones first.
        reports: of all facts, as far as they are done.
        memories: the shards and what they hold.
    """

    def __init__(
        self,
        settings: WiseSettings,
        side: SideLayer,
        coordinates: Coordinates,
        state: WiseState | None,
        old: tuple[Sequence[Fact], Sequence[dict[str, Any]]],
        facts: Sequence[Fact],
    ) -> None:
        self.settings, self.side, self.coordinates = settings, side, coordinates
        self.facts, self.reports = [*old[0], *facts], list(old[1])
        self.new = range(len(old[0]), len(self.facts))
        values = side.memory.values
        margins = Margins.of(settings, coordinates.unit, coordinates.spread)
        self.memories = Memories(settings, coordinates, margins, state, self.facts, values.shape, values.device)
        earlier = self.memories.rows
        if len(earlier) and side.lm.routing.active:
            # What an edit decides below the layer is in no file, and it may not have been applied before.
            again = [(ids.tolist(), prompt) for ids, prompt in zip(earlier.ids, earlier.prompts, strict=True)]
            self.memories.rows = coordinates.whitened(side.run(again))
        refused = {number for number, report in enumerate(self.reports) if "refused" in report}
        self.notes = history(self.facts, refused)
        self.memories.assign(self.notes)
        pool = contexts(side.lm, settings.prefix_lengths, settings.text, settings.seed)[1:] if settings.prefixes else []
        self.prompts: dict[int, list[str]] = {}  # of each new fact, the bare one first
        for number in self.new:
            # A fact's own random numbers: its rows are the same whatever else is edited in the same call.
            fact, rng = self.facts[number], random.Random(f"{settings.seed} {number}")
            put = partial(put_before, side.lm.tokenizer)
            prompts = [put(context, fact.statement) for context in ("", *rng.sample(pool, settings.prefixes))]
            self.prompts[number] = prompts + [self._thinned(fact, rng) for _ in range(settings.thinned)]

    def learn(self) -> None:
        """Learns the new facts, a batch at a time. Raises EditRefusedError: none could be learned."""
        self.reports += [dict(self.notes[number]) for number in self.new]
        todo = [number for number in self.new if "repeats" not in self.notes[number]]
        rows = self._run(todo)
        for number in [number for number in rows if rows[number].outlier(0)]:
            self._refuse(number, WHY)
            del rows[number]
        todo = list(rows)
        others = self._run_other_subjects(todo)
        stopped = ""
        for batch in in_turn(self._batches(todo), "WISE", "group"):
            if stopped:
                for number in batch:
                    self._refuse(number, stopped)
                continue
            bad = self._learn_batch(batch, rows, others)
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

    def result(self) -> tuple[Tensor, Tensor, WiseState]:
        """See `Memories.result`."""
        scores = [self.reports[number]["score"] for number in self.memories.held]
        return self.memories.result(sum("contradicts" in report for report in self.reports), scores, self.side.lm.dtype)

    def _refuse(self, number: int, why: str) -> None:
        self.reports[number]["refused"] = why
        self.memories.shard_of[number] = None
        warnings.warn(f"WISE: fact {self.facts[number].id!r} is refused: {why}", stacklevel=5)

    # -- rows

    def _thinned(self, fact: Fact, rng: random.Random) -> str:
        """The fact's prompt with words left out; whole, where a single token would be left (nothing to route by)."""
        lm, text = self.side.lm, thinned(fact, self.settings.thinning, rng)
        return text if len(encode(lm.tokenizer, lm.reads(text))) > 1 else fact.statement

    def _run(self, numbers: Sequence[int]) -> dict[int, Rows]:
        """For each fact its rows, the bare prompt first; all of them run here, once, up to the side memory's layer.

        A fact that cannot be run is refused, and is not among them.
        """
        lm, end = self.side.lm, self.settings.end_token
        asked = dict[int, list[tuple[list[int], int]]]()
        for n in numbers:
            try:
                asked[n] = [target_rows(lm, self.facts[n], prompt, end) for prompt in self.prompts[n]]
            except FactRefusedError as refusal:
                self._refuse(n, refusal.why)
        if not asked:
            return {}
        rows = self.coordinates.whitened(self.side.run([row for of_fact in asked.values() for row in of_fact]))
        each = self.settings.rows_per_fact
        return {n: rows.pick(range(i * each, (i + 1) * each)) for i, n in enumerate(asked)}

    def _run_other_subjects(self, numbers: Sequence[int]) -> dict[int, list[OtherSubject]]:
        edited = {fact.subject for fact in self.facts}
        facts = {number: self.facts[number] for number in numbers}
        each, seed = self.settings.other_subjects, self.settings.seed
        return other_subjects(self.side.lm, self.side.layer, self.coordinates, facts, edited, each, seed)

    def _batches(self, numbers: Sequence[int]) -> list[list[int]]:
        """Facts that are learned together: neighbours that go to the same shard."""
        batches: list[list[int]] = []
        for number in numbers:
            last = batches[-1] if batches else []
            same = bool(last) and self.memories.shard_of[last[0]] == self.memories.shard_of[number]
            # Not together with what it contradicts.
            clash = self.notes[number].get("contradicts") in last
            if same and not clash and len(last) < self.settings.batch_size:
                last.append(number)
            else:
                batches.append([number])
        return batches

    # -- steps

    @differentiable()
    def _learn_batch(
        self, numbers: Sequence[int], rows: Mapping[int, Rows], others: Mapping[int, Sequence[OtherSubject]]
    ) -> list[int]:
        """Learns some facts; returns those whose loss is not finite (the shard is then as it was)."""
        settings, memories, margins = self.settings, self.memories, self.memories.margins
        shard = memories.shard_of[numbers[0]]
        assert shard is not None
        superseded = memories.superseded(numbers)
        rng = random.Random(f"{settings.seed} {numbers[0]} steps")
        old = memories.replayed(shard, superseded)
        mask = subspace(settings.rho, settings.masks, settings.seed, shard, memories.shape).to(memories.device)
        beside, weight = memories.beside(shard)
        theta = memories.start(shard).requires_grad_()
        lr, unit = self._units()
        optimiser = torch.optim.SGD([theta], lr=lr, momentum=settings.momentum)
        each = settings.rows_per_fact
        new = Rows()
        for number in numbers:
            new += rows[number]
        forward = RowsForward(self.side, new)
        rivals, elsewhere = memories.rivals(forward, shard), memories.elsewhere(shard, superseded)
        bare = torch.arange(0, len(new), each)
        kinds = memories.kinds()
        always = [m for number in numbers for _, m in others[number]]
        course: list[list[float]] = []  # of the losses: by step, of each fact
        for step in range(settings.steps + 1):
            again = rng.sample(old, min(settings.replay, len(old)))
            if again:
                forward = RowsForward(self.side, new + memories.rows.pick(again))
            with torch.set_grad_enabled(step < settings.steps):
                answering = beside + weight * theta
                nll = forward.nll(forward.side_answer(answering))
                scores = forward.scores(answering)
                unrelated = prompt_scores(answering, self.unrelated(answering, kinds, rng) + always)
                route = margins.loss(scores, unrelated)
                route = self._beside_others(route, answering, scores[: len(new)], old, rivals, elsewhere, rng) / unit
                loss = nll[: len(new)].mean() + settings.weight * route
                if again:
                    loss = loss + nll[len(new) :].mean()
            if not bool(loss.isfinite()):
                per_fact = (nll[: len(new)].view(-1, each).sum(1) + scores[: len(new)].view(-1, each).sum(1)).tolist()
                return [n for n, value in zip(numbers, per_fact, strict=True) if not math.isfinite(value)] or [*numbers]
            losses = nll[: len(new)].detach().view(-1, each)
            course.append(losses.mean(1).tolist())
            activated = scores.detach()[bare.to(scores.device)]
            ahead = rivals is None or bool((activated > rivals[bare.to(rivals.device)]).all())
            if step == settings.steps or (ahead and self._done(losses, activated)):
                break
            optimiser.zero_grad()
            loss.backward()
            assert theta.grad is not None
            theta.grad.mul_(mask)
            optimiser.step()
            self._bound(theta)
        found = [other for number in numbers for other in others[number][:1]]
        memories.take(numbers, shard, theta.detach(), new.pick(bare.tolist()), found, superseded)
        shared = {"unrelated_score": float(unrelated.detach().mean()), "steps": step, "shard": shard}
        for place, number in enumerate(numbers):
            self.reports[number] |= shared | {
                "loss": float(losses[place, 0]),
                "loss_in_contexts": float(losses[place].mean()),
                "step_losses": [of_facts[place] for of_facts in course],
                "score": float(activated[place]),
            }
        return []

    def _done(self, losses: Tensor, activated: Tensor) -> bool:
        """Whether facts say their targets, bare and in contexts, and their routing scores are high enough."""
        stop = self.settings.stop
        said = (losses[:, 0] < stop).all() and (losses.mean(1) < 2 * stop).all()
        return bool(said and (activated >= self.memories.margins.beta).all())

    def _beside_others(
        self,
        route: Tensor,
        answering: Tensor,
        scores: Tensor,
        old: Sequence[int],
        rivals: Tensor | None,
        elsewhere: Mapping[int, float],
        rng: random.Random,
    ) -> Tensor:
        """The routing loss with what other facts ask for: that the shard's own stay with it, and others' with theirs.

        `route` is the loss without them, `scores` are of the new facts' rows, `old` the shard's earlier facts, `rivals`
        other shards' scores of the new rows, if any, `elsewhere` by fact of another shard its score there; `rng` draws
        which are asked.
        """
        settings, memories = self.settings, self.memories
        if old and settings.remembered:
            remembered = memories.prompts(self._remembered(old, rng))
            route = route + memories.margins.activation_loss(prompt_scores(answering, remembered))
        if rivals is not None:
            route = route + rival_loss(scores, rivals, settings.margin)
        if elsewhere and settings.remembered:
            places = self._remembered(list(elsewhere), rng)
            theirs = torch.tensor([elsewhere[place] for place in places], device=memories.device)
            here = prompt_scores(answering, memories.prompts(places))
            route = route + rival_loss(theirs, here, settings.margin)
        return route

    def _units(self) -> tuple[float, float]:
        """The learning rate, and what the margin loss is divided by."""
        settings, unit = self.settings, self.coordinates.unit
        if settings.units == "absolute":
            return settings.lr, 1.0
        return settings.lr * unit**2 / (settings.rho * self.memories.shape[0]), unit

    @torch.no_grad()
    def _bound(self, theta: Tensor) -> None:
        """Brings a shard back to the largest entries and the largest norm that it may have."""
        if self.settings.max_entry is not None:
            theta.clamp_(-self.settings.max_entry, self.settings.max_entry)
        if self.settings.max_norm is None:
            return
        norm, largest = theta.norm(), self.settings.max_norm * self.coordinates.size
        if norm > largest:
            theta.mul_(largest / norm)

    def _remembered(self, old: Sequence[int], rng: random.Random) -> list[int]:
        """Some of the earlier facts."""
        return rng.sample(old, min(self.settings.remembered, len(old)))

    def unrelated(self, answering: Tensor, kinds: Kinds, rng: random.Random) -> list[Tensor]:
        """The unrelated prompts of a step, but for those of its own facts."""
        settings = self.settings
        drawn = draw_evenly(kinds, rng, settings.unrelated_batch + CANDIDATES * settings.hard_negatives)
        chosen, candidates = drawn[: settings.unrelated_batch], drawn[settings.unrelated_batch :]
        if candidates:
            with torch.no_grad():
                scores = prompt_scores(answering, candidates)
                highest = scores.topk(min(settings.hard_negatives, len(candidates))).indices
            chosen += [candidates[place] for place in highest.tolist()]
        return chosen
