"""MEMIT: many facts, one penalised least-squares problem for each of several layers.

Meng, Sen Sharma, Andonian, Belinkov and Bau 2023, "Mass-Editing Memory in a Transformer". Configurations of the same
class: without history (as published), BLUE (first and last layer only), PMET (Li et al. 2024).
"""

from dataclasses import dataclass

from corrigenda.settings.checked import Positive, checked
from editing.locate_then_edit.least_squares import Penalty
from editing.locate_then_edit.weighed import Weighed, mean_energy
from editing.locate_then_edit.writing import Problem, Solution
from editing.registry import register
from editing.spaces import CLAMP, Number, Space

SCALE_FACTS = 100
"""The number of facts at which a ratio of weights is meant."""
SHIPPED = 10.0
"""The ratio that held most of 1,000 facts in SmolLM2, of those that were tried, and of one and of 200 no fewer than 1
did (docs/editing.md, docs/many_facts.md)."""


@register(
    "memit",
    paper="Meng et al. 2023, Mass-Editing Memory in a Transformer",
    aim="many facts in several layers, at once or in batches",
    space=Space("several", (Number("ratio", 0.05, 30.0, log=True, after_targets=True), CLAMP)),
)
@dataclass(frozen=True)
@checked
class Memit(Weighed):
    """Mass-Editing Memory in a Transformer.

    For each layer, with its share R of what is missing at the last:

        delta V = A^-1 K^T R,    A = lambda C + H + K^T K

    lambda weighs the text against the facts. As a `ratio` it means the same in every model: at 100 facts,
    tr(lambda C) is `ratio` times tr(K^T K), so that lambda = ratio * 100 * (mean of |k|^2 over the facts) / tr(C),
    however many facts there are. It is taken from the first facts, and an edit that goes on from them keeps it.

    With `history`, H holds the keys of the earlier facts of the edit that is extended: in one layer, with keys and
    targets of the unedited model and the bare prompt as the only context, batches then give what one batch of all
    gives. (Keys are means over contexts, and what is missing is missing after the bare prompt.) Without, as published,
    later batches undo earlier ones: a straw man in sequences.

    Attributes:
        ratio: lambda as a ratio; None where `weight` is given.
        weight: lambda itself, as the authors state it (15,000 for GPT-J); None where `ratio` is given.
        history: whether H is kept.
    """

    name: str = "memit"
    ratio: Positive | None = SHIPPED

    @property
    def when_crowded(self) -> str:
        """More weight of the text, where it has less than what held 1,000 facts."""
        if self.ratio is None or self.ratio >= SHIPPED:
            return ""
        return (
            f"more weight of the text keeps more: of 1,000 facts in SmolLM2 (0.65 for each) ratio={SHIPPED:g} held "
            "more than 1 and 0.1 did (docs/many_facts.md)"
        )

    def solution(self, problem: Problem) -> Solution:
        """A^-1 K^T and R, and lambda."""

        def of_ratio(ratio: float) -> float:
            return ratio * SCALE_FACTS * mean_energy(problem.keys) / problem.moment.trace

        return self.weighed(problem, of_ratio, lambda weight: Penalty(problem.moment, weight, self.ridge))
