"""v*: the output of an FFN, or of a block, at the subject's last token that makes the model say the new object.

Meng et al. 2022 (ROME), eq. 4: a vector delta is added to the FFN's output at one layer and one position and
optimised, while the weights stay as they are. Meng et al. 2023 (MEMIT), eq. 16, add it to the block's output, the
residual stream after the layer. Li et al. 2024 (PMET), eq. 9, add one vector to the attention's output and one to the
FFN's, solve for both, and write the FFN's alone. The facts of a batch are optimised side by side, each with its own
loss, bound and stop, so that each gets what it would get alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.errors import SettingsError
from corrigenda.forward.differentiable import differentiable
from corrigenda.forward.interventions import Add, intervene
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.products import bfloat16_products
from corrigenda.models import positions, sites
from corrigenda.settings.checked import AtLeastOne, NotNegative, Positive, checked
from editing.locate_then_edit.change import Change
from editing.locate_then_edit.prompt_run import PromptRun

PASS_TOKENS = 48
"""How many tokens' worth of computing one more pass over the weights costs: it reads them all from memory."""
PADDING = 0.3
"""How many tokens' worth of computing a padded position costs: no matrix runs there (`corrigenda.forward.packing`)."""

Site = Literal["ffn", "block", "attention_and_ffn"]
"""Whose output is solved for: the feed-forward network's, the whole block's (the residual stream after it), or the
attention's and the feed-forward network's together, of which the second is the answer."""


@dataclass(frozen=True)
@checked
class ValueSettings:
    """How v* is solved for; the defaults are those of ROME's authors.

    Attributes:
        steps: forwards; the last one only measures, so there are at most ``steps - 1`` updates.
        lr: Adam's learning rate.
        weight_decay: weight of |delta| / |v0|^2.
        clamp_norm_factor: the bound on |delta|, in units of `clamp_norm`.
        clamp_norm: the median of |v0| over the fact's contexts, or that of its first (the bare prompt's), as the
            authors' code has it.
        kl_factor: weight of the KL divergence on `kl_prompt`.
        kl_prompt: a prompt about the subject that asks for no fact, with one ``{}``.
        kl_position: where on it the KL is taken: at the subject's last token, as the authors' code does, or at the
            prompt's last token. With an editor's position=relation it is always the latter.
        early_stop_loss: a fact whose loss falls below this is done; below 0, none is.
        confident_steps: a fact whose target's tokens have been the most likely ones in every context for so many
            forwards, one after another, is done (the idea of ENCORE, Gupta et al. 2025); None for no such rule.
        products: what a float32 model's linear maps multiply in while it is solved: "bfloat16" is faster where the
            processor has such instructions (`corrigenda.forward.products`); v* then differs in the third digit.
    """

    kept_format: ClassVar[int] = 2
    """The version of targets on disk; it changes with the method, so that older ones are left alone."""

    steps: AtLeastOne = 20
    lr: Positive = 0.5
    weight_decay: NotNegative = 0.5
    clamp_norm_factor: Positive = 4.0
    clamp_norm: Literal["median", "bare"] = "median"
    kl_factor: NotNegative = 0.0625
    kl_prompt: str = "{} is a"
    kl_position: Literal["subject", "last"] = "subject"
    early_stop_loss: float = 0.05
    confident_steps: AtLeastOne | None = None
    products: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        if self.kl_prompt.count("{}") != 1:
            raise SettingsError(
                f"ValueSettings: kl_prompt={self.kl_prompt!r} must have exactly one '{{}}', for the subject"
            )

    def change(self, old: Tensor, bound: Tensor) -> Change:
        """What is solved for: by how much `old`, (fact, part, d_model), is changed, within a bound, (fact, part, 1)."""
        return Change(old, bound, self.lr, self.weight_decay)


@dataclass(frozen=True)
class TargetValues:
    """The solution for several facts.

    Attributes:
        values: (fact, d_model), v* = v0 + delta; of the feed-forward network, where two sites are solved together.
        loss: (fact,), the whole loss at the last forward.
        nll: (fact,), the mean negative log-probability of a target token in it.
        kl: (fact,), the KL divergence, before its factor.
        steps: (fact,), the forwards that were run.
        losses: for each fact the whole loss at each of its forwards.
    """

    values: Tensor
    loss: Tensor
    nll: Tensor
    kl: Tensor
    steps: Tensor
    losses: list[list[float]]

    def report(self) -> list[dict[str, Any]]:
        """What an edit's report says of the solve for each fact."""
        return [
            {
                "loss": float(self.loss[number]),
                "step_losses": [loss for loss in losses if math.isfinite(loss)],
                "nll": float(self.nll[number]),
                "kl": float(self.kl[number]),
                "steps": int(self.steps[number]),
            }
            for number, losses in enumerate(self.losses)
        ]


@differentiable()
def solve_target_values(
    lm: LanguageModel, run: PromptRun, layer: int, settings: ValueSettings, site: Site = "ffn"
) -> TargetValues:
    """Solves for v* of all facts at once; the model is unchanged since the run, which was at this layer among others.

    Raises ValueError: the run was not asked for this layer; or it is the output of the last block.
    """
    with bfloat16_products(lm, layer) if settings.products == "bfloat16" else nullcontext():
        return _solved(lm, run, layer, settings, site)


def _solved(lm: LanguageModel, run: PromptRun, layer: int, settings: ValueSettings, site: Site) -> TargetValues:
    old = _outputs(run, layer, site)[run.prompts.bare]
    n_facts, device = run.prompts.n_facts, old.device
    every = torch.arange(len(run.prompts.fact), device=device)
    groups = _groups(lm, run, layer, site, every)

    change = settings.change(old, settings.clamp_norm_factor * _clamp_norms(run, layer, site, settings))
    open_facts = torch.ones(n_facts, dtype=torch.bool, device=device)
    in_groups = open_facts.nonzero()[:, 0]
    before: dict[int, Tensor] = {}  # by fact, the KL prompt's distribution without delta
    with torch.no_grad():
        if bool((start := change.delta()).any()):  # else the first forward is without delta
            kept = _groups(lm, run, layer, site, every[~run.prompts.rewriting])
            _measure(lm, kept, layer, site, torch.zeros_like(start), before)
    figures = {name: torch.zeros(n_facts, device=device) for name in ("loss", "nll", "kl")}
    steps = torch.zeros(n_facts, dtype=torch.long, device=device)
    confident = torch.zeros_like(steps)  # for how many forwards on end the target has been on top
    history: list[Tensor] = []

    for step in range(settings.steps):
        if step > 0 and not bool(open_facts[in_groups].all()):
            # The rows of facts that are done run no more; the others, being fewer, go together in fewer passes.
            in_groups = open_facts.nonzero()[:, 0]
            groups = _groups(lm, run, layer, site, every[open_facts[run.prompts.fact]])
        delta = change.delta()
        # The last forward only measures.
        with torch.set_grad_enabled(step < settings.steps - 1):
            nll, kl, missed = _measure(lm, groups, layer, site, delta, before)
        loss = nll + settings.kl_factor * kl + change.penalty(delta)
        for name, value in (("loss", loss), ("nll", nll), ("kl", kl)):
            figures[name] = torch.where(open_facts, value.detach(), figures[name])
        steps[open_facts] = step + 1
        history.append(figures["loss"])
        open_facts = open_facts & (loss.detach() >= settings.early_stop_loss)
        if settings.confident_steps is not None:
            confident = torch.where(missed == 0, confident + 1, 0)
            open_facts = open_facts & (confident < settings.confident_steps)
        if step == settings.steps - 1 or not bool(open_facts.any()):
            break
        change.step(loss, open_facts)
    columns = torch.stack(history, 1).tolist()
    losses = [column[:n] for column, n in zip(columns, steps.tolist(), strict=True)]
    values = (old + change.delta().detach())[:, -1]
    return TargetValues(values, figures["loss"], figures["nll"], figures["kl"], steps, losses)


def _measure(
    lm: LanguageModel, groups: Sequence[_Group], layer: int, site: Site, delta: Tensor, before: dict[int, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """By fact the target's negative log-likelihood, the KL, and how many tokens are not the most likely ones.

    `delta`, (fact, part, d_model), is added to the site's output. `before` is by fact the KL prompt's distribution
    without it; it gets those that are not there yet.
    """
    nll = torch.zeros(len(delta), device=delta.device)
    kl = torch.zeros_like(nll)
    missed = torch.zeros(len(delta), dtype=torch.long, device=delta.device)
    for group in groups:
        log_probs = group.logits(lm, layer, site, delta).float().log_softmax(-1)
        wanted = group.targets >= 0
        chosen = log_probs[wanted].gather(1, group.targets[wanted, None])[:, 0]
        nll = nll.index_add(0, group.owner[wanted], -chosen * group.weight[wanted])
        below = (chosen.detach() < log_probs[wanted].detach().amax(1)).long()
        missed = missed.index_add(0, group.owner[wanted], below)
        for row, fact in zip((~wanted).nonzero()[:, 0].tolist(), group.owner[~wanted].tolist(), strict=True):
            now = log_probs[row]
            reference = before.setdefault(fact, now.detach())
            kl = kl.index_add(0, group.owner[row : row + 1], (now.exp() * (now - reference)).sum()[None])
    return nll, kl, missed


@dataclass(frozen=True)
class _Group:
    """Rows of about the same length that run together.

    `fact` (row,) says whose delta a row gets, `at` (row,) where; `predicts` picks the logits wanted, and for each of
    these `owner`, `targets` and `weight` (n,) say to which fact's loss which token counts how much. A target of -1
    stands for a distribution that is to be kept.
    """

    forward: PartialForward
    fact: Tensor
    at: Tensor
    predicts: Tensor
    owner: Tensor
    targets: Tensor
    weight: Tensor

    def logits(self, lm: LanguageModel, layer: int, site: Site, delta: Tensor) -> Tensor:
        """The wanted logits with each fact's delta, (fact, part, d_model), added at its subject's last token.

        There is one part for each site that is solved for.
        """
        states, added = self.forward.states, delta[self.fact]
        if self.forward.layer > layer:
            assert states is not None
            # A block's output is what enters the next one, and an FFN's output that joins the residual stream as it
            # is changes that by delta, too.
            return self.forward.logits(self.predicts, positions.add(states, self.at, added[:, 0]))
        with ExitStack() as stack:
            if site == "attention_and_ffn":
                stack.enter_context(intervene(lm, sites.Site("attention", layer), Add(added[:, 0]), self.at))
            stack.enter_context(lm.memory(layer).add(added[:, -1], self.at))
            return self.forward.logits(self.predicts)


def old_values(run: PromptRun, layer: int, site: Site = "ffn") -> Tensor:
    """v0, (fact, d_model): the output at the subject's last token of each fact's first row (`Prompts.bare`)."""
    return _outputs(run, layer, site)[run.prompts.bare, -1]


def _outputs(run: PromptRun, layer: int, site: Site) -> Tensor:
    """What deltas are added to, (row, part, d_model)."""
    parts = [run.block_outputs(layer) if site == "block" else run.ffn_outputs(layer)]
    if site == "attention_and_ffn":
        parts.insert(0, run.attention_outputs(layer))
    return torch.stack(parts, 1)


def _clamp_norms(run: PromptRun, layer: int, site: Site, settings: ValueSettings) -> Tensor:
    """The norms that bounds are in units of, (fact, part, 1)."""
    norms, prompts = _outputs(run, layer, site).norm(dim=2, keepdim=True), run.prompts
    if settings.clamp_norm == "bare":
        return norms[prompts.bare]
    rows = [(prompts.rewriting & (prompts.fact == number)).nonzero()[:, 0] for number in range(prompts.n_facts)]
    return torch.stack([norms[one].quantile(0.5, dim=0) for one in rows])


def _groups(lm: LanguageModel, run: PromptRun, layer: int, site: Site, rows: Tensor) -> list[_Group]:
    """Some rows, (n,) indices in ascending order, grouped by how many of their tokens run again."""
    prompts = run.prompts
    run_again = prompts.batch.lengths - prompts.subject
    rows_per_fact = torch.bincount(prompts.fact[prompts.rewriting])
    per_row = prompts.predicts.sum(1)
    targets = prompts.targets.split(per_row.tolist())
    first = {"block": layer + 1, "ffn": _first_layer(lm, layer), "attention_and_ffn": layer}[site]
    groups = []
    for places in groups_of_like_length(run_again[rows].tolist()):
        some = rows[places]
        forward = PartialForward(lm, run.recording, first, prompts.subject[some], some)
        fact = prompts.fact[some]
        owner = fact.repeat_interleave(per_row[some])
        weight = (1 / (rows_per_fact[fact] * per_row[some])).repeat_interleave(per_row[some])
        predicts = forward.local(prompts.predicts[some])
        chosen = torch.cat([targets[row] for row in some.tolist()])
        groups.append(_Group(forward, fact, forward.local(prompts.subject[some]), predicts, owner, chosen, weight))
    return groups


def groups_of_like_length(lengths: Sequence[int]) -> list[list[int]]:
    """The rows of these lengths in the groups that cost least, each by the places of its rows in ascending order.

    A group costs its pass and its padding. Rows of one length go together; so a group is a run of neighbouring lengths.
    """
    known, counts = torch.tensor(lengths).unique(return_counts=True)
    sizes, numbers = known.tolist(), counts.tolist()
    least, begins = [0.0], list[int]()  # what the shortest lengths cost, and where the last group of them begins
    for end, longest in enumerate(sizes):
        padding, found = 0, list[tuple[float, int]]()
        for begin in range(end, -1, -1):
            padding += numbers[begin] * (longest - sizes[begin])
            found.append((least[begin] + PASS_TOKENS + PADDING * padding, begin))
        cost, begin = min(found)
        least.append(cost)
        begins.append(begin)
    groups, end = list[list[int]](), len(sizes)
    while end:
        begin = begins[end - 1]
        inside = set(sizes[begin:end])
        groups.append([place for place, length in enumerate(lengths) if length in inside])
        end = begin
    return groups


def _first_layer(lm: LanguageModel, layer: int) -> int:
    """The first layer that has to run again when the FFN output of `layer` changes by a vector."""
    return layer + 1 if lm.architecture.adds_plainly and layer + 1 < lm.n_layers else layer
