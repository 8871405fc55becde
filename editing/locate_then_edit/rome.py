"""ROME: one fact, one rank-one update of one value matrix.

Meng, Bau, Andonian and Belinkov 2022, "Locating and Editing Factual Associations in GPT".
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel, LowRankEdit, Origin
from corrigenda.moments.second_moment import SecondMoment, second_moment
from corrigenda.moments.text import Text
from editing.contexts import sampled_prefixes
from editing.editor import EditRefusedError, require_targets
from editing.locate_then_edit.keys import Rewrites, build_prompts, run_prompts
from editing.locate_then_edit.targets import TargetValues, ValueSettings, solve_target_values


@dataclass(frozen=True)
class Rome:
    """Rank-One Model Editing.

    For each fact: the key k* is the mean coefficient vector at the subject's last token over the prompt in several
    contexts; the value v* is solved for by gradient (`editing.locate_then_edit.targets`); and V is changed by the
    smallest update, in the metric of the coefficients' second moment C, that makes k* answer v*:

        delta V = C^-1 K (K'^T C^-1 K)^-1 (V* - K' V)

    with one column in K and one row in V* for each fact. For one fact this is ROME's equation 2. For several it is the
    same least-squares problem with all the constraints at once (Gupta et al. 2024, EMMET), so that facts edited
    together do not disturb each other as separately computed updates would.

    K' is K with `homogeneous_keys` (Gupta et al. 2024, "Rebuilding ROME"), which avoids the edits that disable a model.
    Without it K' are the keys of the bare prompts, as in the authors' code.

    With homogeneous keys the bare prompt may be left behind: a subject at the beginning of a text has another key
    there than after other words, and k*, a mean over contexts, does not speak for it ("Toyota is ..." was not edited
    while "..., Toyota is ..." was). So where the bare prompt's key agrees with k* by less than `bare_agreement` (a
    cosine in the metric of C^-1) it gets a row of its own in the same problem, with the same v*; the update is then
    of rank two.

    Guards: an update is *flagged* (in the edit's report, and by a warning) or *refused* on two figures. `agreement`,
    the cosine between the key it is computed with and the key it is to answer to, in the metric of C^-1, is the
    denominator of the update without its scale; flagged below 0.2, refused below 0.02 (or negative). `relative_norm`
    is |delta V| / |V|; flagged above `flag_norm`, refused above `refuse_norm`. What is not finite is refused. Refused
    facts are left out of the edit; where none is left, `EditRefusedError` is raised.

    Attributes:
        layer: the layer to edit; None for a tenth of the depth (`default_layer`).
        prefix_lengths: pairs (tokens, number) of the contexts sampled from the model.
        prefixes: contexts to use instead of sampled ones; the first should be "" (the bare prompt).
        value: how v* is solved for.
        homogeneous_keys: whether the same k* is used throughout.
        bare_agreement: see above; 0 for k* alone.
        text: over which text C is taken.
        ridge: is added to C's diagonal.
        batch_size: facts whose v* are solved for side by side.
        flag_norm: see above.
        refuse_norm: see above.
        seed: for the contexts.
    """

    name: ClassVar[str] = "rome"

    layer: int | None = None
    prefix_lengths: tuple[tuple[int, int], ...] = ((5, 10), (10, 10))
    prefixes: tuple[str, ...] | None = None
    value: ValueSettings = field(default_factory=ValueSettings)
    homogeneous_keys: bool = True
    bare_agreement: float = 0.9
    text: Text = field(default_factory=Text)
    ridge: float = 1e-6
    batch_size: int = 8
    flag_norm: float = 0.5
    refuse_norm: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        # Lists, as configuration files give them, are welcome.
        object.__setattr__(self, "prefix_lengths", tuple((int(length), int(n)) for length, n in self.prefix_lengths))
        if self.prefixes is not None:
            object.__setattr__(self, "prefixes", tuple(self.prefixes))
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {self.batch_size}")
        if self.prefixes is not None and not self.prefixes:
            raise ValueError('prefixes must hold at least one text: "" is the bare prompt')

    def prepare(self, lm: LanguageModel) -> None:
        """Samples the contexts and takes the second moment, which are kept on disk.

        Raises:
            IndexError: the model has no such layer.
        """
        self._contexts(lm)
        second_moment(lm, self._layer(lm), self.text)

    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> LowRankEdit:
        """One update of one layer that makes all the facts hold, of rank one or two for each.

        Raises:
            EditRefusedError: a fact asks for an erasure; or every update was refused by the guards.
            IndexError: the model has no such layer.
        """
        require_targets("ROME", facts)
        layer, prefixes = self._layer(lm), self._contexts(lm)
        moment = second_moment(lm, layer, self.text)
        solved = []
        for begin in range(0, len(facts), self.batch_size):
            batch = facts[begin : begin + self.batch_size]
            prompts = build_prompts(lm, batch, prefixes, self.value.kl_prompt, self.value.kl_position)
            rewrites = run_prompts(lm, prompts, layer)
            solved.append((rewrites, solve_target_values(lm, batch, rewrites, self.value)))
        return self._update(lm, facts, layer, moment, solved)

    def _layer(self, lm: LanguageModel) -> int:
        return lm.memory(default_layer(lm) if self.layer is None else self.layer).layer

    def _contexts(self, lm: LanguageModel) -> list[str]:
        return (
            list(self.prefixes) if self.prefixes is not None else sampled_prefixes(lm, self.prefix_lengths, self.seed)
        )

    def _update(
        self,
        lm: LanguageModel,
        facts: Sequence[Fact],
        layer: int,
        moment: SecondMoment,
        solved: Sequence[tuple[Rewrites, TargetValues]],
    ) -> LowRankEdit:
        memory = lm.memory(layer)
        keys = torch.cat([rewrites.mean_keys for rewrites, _ in solved])
        bare = torch.cat([rewrites.bare_keys for rewrites, _ in solved])
        # Each solve factorises C, the dearest step here: one for either kind of key, used throughout.
        key_directions, bare_directions = moment.solve(keys, self.ridge), moment.solve(bare, self.ridge)
        asked, asked_directions = (keys, key_directions) if self.homogeneous_keys else (bare, bare_directions)
        wanted = torch.cat([values.values for _, values in solved])
        residuals = wanted - memory.read(asked).float()

        report = _report(solved)
        scale = float(memory.values.float().norm())
        agreement = _cosine(asked, asked_directions, keys, key_directions)
        alone = residuals.norm(dim=1) * key_directions.norm(dim=1) / (key_directions * asked).sum(1).abs()
        kept = []
        for number, figures in enumerate(report):
            figures["agreement"] = float(agreement[number])
            figures["relative_norm"] = float(alone[number]) / scale
            self._judge(facts[number], figures)
            if "refused" not in figures:
                kept.append(number)
        if not kept:
            raise EditRefusedError(
                "; ".join(f"fact {fact.id!r}: {f['refused']}" for fact, f in zip(facts, report, strict=True))
            )
        directions, asked, residuals = key_directions[kept], asked[kept], residuals[kept]
        if self.homogeneous_keys:
            # Where k* does not speak for the bare prompt, that gets a constraint of its own.
            likeness = _cosine(bare, bare_directions, keys, key_directions).tolist()
            for number in kept:
                report[number]["bare_agreement"] = likeness[number]
            own = [n for n in kept if likeness[n] < self.bare_agreement and not report[n]["subject_at_start"]]
            directions = torch.cat([directions, bare_directions[own]])
            asked = torch.cat([asked, bare[own]])
            residuals = torch.cat([residuals, wanted[own] - memory.read(bare[own]).float()])
        gram = asked.double() @ directions.double().T  # (asked, key)
        # Facts about one subject have nearly the same key, and their constraints then nearly contradict each other:
        # the pseudo-inverse meets such constraints in the mean instead of blowing up on their difference.
        size = gram.diagonal().abs().sqrt()
        inverse = torch.linalg.pinv(gram / size / size[:, None], rtol=1e-3) / size / size[:, None]
        right = inverse @ residuals.double()
        edit = LowRankEdit.of(
            lm, Origin.of(lm, self, facts, report), {layer: (directions.T, right.to(residuals.dtype))}
        )
        together = edit.norm(layer) / scale
        if len(kept) == 1:
            figures = report[kept[0]]
            if figures["relative_norm"] <= self.flag_norm < together <= self.refuse_norm and "flagged" not in figures:
                figures["flagged"] = f"|delta V| / |V| {together:.3g} with the second constraint"
                warnings.warn(
                    f"ROME: the edit of fact {facts[kept[0]].id!r} is flagged: {figures['flagged']}", stacklevel=3
                )
            figures["relative_norm"] = together
        if not math.isfinite(together):
            raise EditRefusedError(f"the update of layer {layer} is not finite")
        if together > self.refuse_norm * math.sqrt(len(kept)):
            raise EditRefusedError(
                f"the update of layer {layer} has {together:.2f} times the norm of the values it changes"
            )
        return edit

    def _judge(self, fact: Fact, figures: dict[str, Any]) -> None:
        """Applies the guards' rules to the figures of one fact."""
        agreement, norm = figures["agreement"], figures["relative_norm"]
        what = f"agreement of keys {agreement:.3g}, |delta V| / |V| {norm:.3g}"
        wrecked = [name for name, value in figures.items() if isinstance(value, float) and not math.isfinite(value)]
        for name in wrecked:
            del figures[name]  # a figure that could not be computed is absent, and no JSON file could hold it
        if wrecked:
            figures["refused"] = f"not finite ({what})"
        elif agreement < 0.02:
            figures["refused"] = f"the denominator of the update is near zero ({what})"
        elif norm > self.refuse_norm:
            figures["refused"] = f"the update is an outlier against the layer's values ({what})"
        elif agreement < 0.2 or norm > self.flag_norm:
            figures["flagged"] = what
        for word in ("refused", "flagged"):
            if word in figures:
                warnings.warn(f"ROME: the edit of fact {fact.id!r} is {word}: {figures[word]}", stacklevel=4)
        if figures["subject_at_start"]:
            warnings.warn(
                f"ROME: the subject of fact {fact.id!r} ends at the very first token; the edit holds only where "
                "something precedes it",
                stacklevel=4,
            )


def default_layer(lm: LanguageModel) -> int:
    """A tenth of the depth: measured on SmolLM2 (docs/layers.md); the papers' choices lie between 0.1 and 0.35."""
    return round(0.1 * lm.n_layers)


def _cosine(left: Tensor, left_solved: Tensor, right: Tensor, right_solved: Tensor) -> Tensor:
    """The cosines between rows in the metric of C^-1, given the rows and C^-1 times them."""
    size = (left * left_solved).sum(1) * (right * right_solved).sum(1)
    return (left * right_solved).sum(1) / size.sqrt()


def _report(solved: Sequence[tuple[Rewrites, TargetValues]]) -> list[dict[str, Any]]:
    report = []
    for rewrites, values in solved:
        for number in range(len(values.steps)):
            report.append(
                {
                    "loss": float(values.loss[number]),
                    "step_losses": [loss for loss in values.losses[number] if math.isfinite(loss)],
                    "nll": float(values.nll[number]),
                    "kl": float(values.kl[number]),
                    "steps": int(values.steps[number]),
                    "subject_at_start": bool(rewrites.prompts.at_start[number]),
                }
            )
    return report
