"""EMMET: many facts, met exactly by the smallest update in the metric of C.

Gupta, Sajnani and Anumanchipalli 2024, "A Unified Framework for Model Editing".
"""

from dataclasses import dataclass, field

from corrigenda.settings.checked import AtLeastOne, NotNegative, Share, checked
from editing.locate_then_edit.closed_form import ClosedForm
from editing.locate_then_edit.least_squares import equality_update
from editing.locate_then_edit.targets import Site, ValueSettings
from editing.locate_then_edit.writing import Problem, Solution
from editing.registry import register
from editing.spaces import CLAMP, Number, Space


@register(
    "emmet",
    paper="Gupta et al. 2024, A Unified Framework for Model Editing",
    aim="many facts in one layer, met by the smallest update",
    space=Space("several", (Number("eps", 1e-3, 3.0, log=True, after_targets=True), CLAMP)),
)
@dataclass(frozen=True)
@checked
class Emmet(ClosedForm):
    """Equality-constrained mass editing, at one layer by default.

        delta V = C^-1 K^T (K C^-1 K^T + eps I)^-1 R

    For one fact and eps = 0 it is ROME's update. Nothing of earlier updates is kept: going on from an edit, it meets
    the new facts with the smallest further change.

    Attributes:
        eps: as a share of the mean of K C^-1 K^T's diagonal.
    """

    name: str = "emmet"
    depth: Share = 0.1
    number: AtLeastOne = 1
    site: Site = "ffn"
    value: ValueSettings = field(default_factory=lambda: ValueSettings(steps=40, confident_steps=6))
    eps: NotNegative = 0.01

    def solution(self, problem: Problem) -> Solution:
        """C^-1 K^T, and the rest."""
        keys = problem.keys.double().cpu()
        directions = problem.moment.solve(keys, self.ridge * problem.moment.scale)
        return Solution(equality_update(keys, directions, problem.residuals.cpu(), self.eps))
