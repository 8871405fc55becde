"""Layers that are written one after another from the bottom, each by the solution of a least-squares problem.

Keys and residuals are measured anew before each (`passes`). How a problem is solved is handed in.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corrigenda import EditRefusedError, Fact, LanguageModel, Origin
from corrigenda.moments.experts import Moment
from corrigenda.system.progress import counted, track
from editing.locate_then_edit.after_treatments import AfterTreatments
from editing.locate_then_edit.guards import cosines_between, name_alike
from editing.locate_then_edit.history import KeyHistory, Solutions
from editing.locate_then_edit.joined import edit_of, unedited
from editing.locate_then_edit.least_squares import Factors, System
from editing.locate_then_edit.passes import SubjectRows
from editing.locate_then_edit.prompts import Prompts
from editing.locate_then_edit.solved import Batch
from editing.locate_then_edit.targets import Site


@dataclass(frozen=True, eq=False)
class Problem:
    """One layer's least-squares problem.

    Attributes:
        moment: C.
        keys: K, (n, d_ffn); of a mixture (n, width), those of all experts side by side.
        residuals: R, (n, d_model), the share that this layer writes.
        earlier: the keys of earlier updates that must stay, (n', d_ffn); None for none.
        weight: the weight that the first of these updates had (`KeyHistory`); None for the first.
        known: the system that was solved for the earlier updates; None where it is not known.
    """

    moment: Moment
    keys: Tensor
    residuals: Tensor
    earlier: Tensor | None
    weight: float | None
    known: System | None = None


@dataclass(frozen=True, eq=False)
class Solution:
    """One layer's update.

    Attributes:
        factors: of delta V.
        weight: the weight in it that later updates are to keep; None if it has none.
        system: that was solved, for later updates to go on from; None if there is none to keep.
    """

    factors: Factors
    weight: float | None = None
    system: System | None = None


@dataclass(frozen=True)
class Step:
    """A layer to write, the share of the residual that it writes, and whose targets that is measured against."""

    layer: int
    share: float
    aim: int


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be written.

    Attributes:
        facts: the facts.
        rows: their prompts.
        targets: by layer their targets, (fact, d_model).
        report: for each fact what there is to report.
    """

    facts: Sequence[Fact]
    rows: SubjectRows
    targets: Mapping[int, Tensor]
    report: Sequence[dict[str, Any]]


def task_of(
    editor: str,
    lm: LanguageModel,
    batches: Sequence[Batch],
    targets: Mapping[int, Tensor],
    report: Sequence[dict[str, Any]],
) -> Task:
    """What is to be written of batches of facts: those whose targets, by layer (fact, d_model), are finite.

    Those that are left out get ``refused`` in their report. Raises EditRefusedError: no target is finite.
    """
    facts = [fact for batch in batches for fact in batch.facts]
    kept = _usable(editor, facts, targets, report)
    return Task(
        [facts[number] for number in kept],
        SubjectRows(lm, _prompts_of(batches, kept)),
        {layer: values[kept] for layer, values in targets.items()},
        [report[number] for number in kept],
    )


@dataclass(frozen=True, eq=False)
class Writing:
    """How layers are written.

    Attributes:
        editor: for messages.
        solution: one layer's update, the closed form.
        steps: the layers, ascending.
        moments: by layer, C.
        keys: from the keys of a layer as they were measured to those that are written.
        site: whose output the targets are.
        weights: (prefix,), how much each context counts in a key.
        after: what is done to updates after they are solved for.
        ridge: is added to C's diagonal, in units of its mean, where keys are compared.
        alike: facts whose keys have this cosine in the metric of C^-1, or more, are named.
        keeps_history: whether the keys count in later updates.
        quiet: with so many facts, or fewer, nothing is said of how far it is.
    """

    editor: str
    solution: Callable[[Problem], Solution]
    steps: Sequence[Step]
    moments: Mapping[int, Moment]
    keys: Callable[[LanguageModel, int, Tensor], Tensor]
    site: Site
    weights: Tensor
    after: AfterTreatments
    ridge: float
    alike: float
    keeps_history: bool
    quiet: int

    def written(self, lm: LanguageModel, task: Task, past: KeyHistory) -> tuple[dict[int, Factors], KeyHistory]:
        """The layers' updates, from the bottom, and the history with them; the model has the earlier edit."""
        origin = Origin(lm.name, lm.fingerprint, self.editor)
        factors, keys = dict[int, Factors](), dict[int, Tensor]()
        used, systems = dict[int, float](), dict[int, System]()
        directions: Tensor | None = None
        steps = self.steps
        if len(task.facts) > self.quiet:
            told = f"Writing {counted(len(task.facts), 'fact')} into {counted(len(steps), 'layer')}"
            steps = list(track(steps, told, bar=False))
        with ExitStack() as written:
            for step in steps:
                layer = step.layer
                measured, outputs = task.rows.measured(lm, layer, step.aim, self.site, self.weights)
                keys[layer] = self.keys(lm, layer, measured)
                residuals = (task.targets[step.aim] - outputs) * step.share
                moment, earlier = self.moments[layer], past.keys.get(layer)
                if not factors:
                    directions = self._name_alike(moment, keys[layer], earlier, past, task)
                weight, known = past.weights.get(layer), past.solutions.systems.get(layer)
                solution = self.solution(Problem(moment, keys[layer], residuals, earlier, weight, known))
                del moment  # before the next is read: one of 8,960 coefficients has 1.3 GB with its factor
                factors[layer] = solution.factors
                if self.after.spares:
                    factors[layer] = self.after.of_update(factors[layer], unedited(lm, layer))
                if solution.weight is not None:
                    used[layer] = solution.weight
                if solution.system is not None:
                    systems[layer] = solution.system
                if step is not self.steps[-1]:
                    written.enter_context(edit_of(lm, origin, {layer: factors[layer]}).applied(lm))
        solutions = Solutions(systems, directions)
        return factors, past.and_then(task.facts, keys, used, self.keeps_history, solutions)

    def _name_alike(self, moment: Moment, keys: Tensor, earlier: Tensor | None, past: KeyHistory, task: Task) -> Tensor:
        """Names the facts of nearly the same key, by their keys at the first layer that is written.

        Gives C^-1 k of the earlier keys and of these, (n' + n, d_ffn), float32.
        """
        ridge = self.ridge * moment.scale
        directions = moment.solve(keys.double(), ridge).float()
        others, theirs = keys, directions
        if earlier is not None:
            known = past.solutions.directions
            if known is None:
                known = moment.solve(earlier.double(), ridge).float()
            others, theirs = torch.cat([earlier, keys]), torch.cat([known, directions])
        cosines = cosines_between(keys, others, directions, theirs)
        name_alike(self.editor, [*past.facts, *task.facts], cosines, self.alike, task.report)
        return theirs


def _usable(
    editor: str, facts: Sequence[Fact], targets: Mapping[int, Tensor], report: Sequence[dict[str, Any]]
) -> list[int]:
    """The numbers of the facts whose targets and losses are finite; the reports of the others say why they are refused.

    Where a loss is NaN no step was made, and the target is what the model says without an edit.

    Raises:
        EditRefusedError: none is.
    """
    finite = torch.stack([values.isfinite().all(1) for values in targets.values()]).all(0).tolist()
    kept = list[int]()
    for number, (fact, figures, fine) in enumerate(zip(facts, report, finite, strict=True)):
        wrecked = [name for name, value in figures.items() if isinstance(value, float) and not math.isfinite(value)]
        for name in wrecked:  # a figure that could not be computed is absent, and no JSON file could hold it
            del figures[name]
        if fine and not wrecked:
            kept.append(number)
        else:
            what = "loss" if fine else "target"
            figures["refused"] = f"its {what} is not finite"
            warnings.warn(f"{editor}: the edit of fact {fact.id!r} is refused: {figures['refused']}", stacklevel=4)
    if not kept:
        raise EditRefusedError(
            f"{editor}: no fact has a finite target and loss ({', '.join(fact.id for fact in facts[:5])})"
        )
    return kept


def _prompts_of(batches: Sequence[Batch], kept: Sequence[int]) -> list[Prompts]:
    """The prompts of the facts that are kept."""
    found, begin = list[Prompts](), 0
    for batch in batches:
        end = begin + len(batch.facts)
        own = [number - begin for number in kept if begin <= number < end]
        if own:
            found.append(batch.prompts if len(own) == len(batch.facts) else batch.prompts.of_facts(own))
        begin = end
    return found
