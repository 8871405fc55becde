"""AlphaEdit: many facts, written only into the directions of the coefficient space that text hardly uses.

Fang, Jiang, Wang, Ma, Shi, Wang, He and Chua 2025, "AlphaEdit: Null-Space Constrained Knowledge Editing for Language
Models".
"""

import warnings
from dataclasses import dataclass
from typing import ClassVar

from corrigenda import EditRefusedError
from corrigenda.settings.checked import Positive, Share, checked
from editing.locate_then_edit.least_squares import NullSpace
from editing.locate_then_edit.weighed import Weighed, mean_energy
from editing.locate_then_edit.writing import Problem, Solution
from editing.registry import register
from editing.spaces import CLAMP, Number, Space

LITTLE = 0.01
"""Where less than this share of the keys' energy lies in the null space, next to nothing can be written there."""


@register(
    "alphaedit",
    paper="Fang et al. 2025, AlphaEdit: Null-Space Constrained Knowledge Editing for Language Models",
    aim="many facts, written only into directions that text hardly uses",
    space=Space(
        "several",
        (
            Number("energy", 0.01, 0.5, log=True, after_targets=True),
            Number("ratio", 0.01, 10.0, log=True, after_targets=True),
            CLAMP,
        ),
    ),
)
@dataclass(frozen=True)
@checked
class AlphaEdit(Weighed):
    """Null-space constrained editing.

    For each layer, with P the projector on the directions with little energy in C:

        (P (K^T K + H) + L2 I) X = P K^T R,    delta V = X

    L2 as a ratio is a share of the mean energy |P k|^2 of a key there, so that one fact alone gets 1 / (1 + ratio) of
    its residual, in every model. Like lambda in `Memit` it is taken from the first facts and kept.

    Attributes:
        energy: the share of C's trace that the directions of P hold at most. (The authors bound each eigenvalue, by
            0.02.) The less it is, the less of a key lies in there, and the larger is the update.
        ratio: L2 as a ratio; None where `weight` is given.
        weight: L2 itself (10 in the authors' settings); None where `ratio` is given.
        history: whether H holds the earlier facts' keys, as published.
        ridge: is added to C's diagonal, in units of its mean, where facts' keys are compared (`alike`); X has no C.
    """

    lasting: ClassVar[tuple[str, ...]] = (*Weighed.lasting, "energy")
    no_mixture: ClassVar[str] = "and what text uses is known only of a single memory"

    name: str = "alphaedit"
    energy: Share = 0.1
    ratio: Positive | None = 0.1

    def solution(self, problem: Problem) -> Solution:
        """X as factors, and L2.

        Raises:
            EditRefusedError: no direction has so little energy.
        """
        layer, basis = problem.moment.layer, problem.moment.null_space(self.energy)
        if not basis.shape[1]:
            raise EditRefusedError(
                f"{self.name}: no direction of layer {layer} has as little as energy={self.energy} of its second "
                "moment; take a larger share"
            )
        inside = mean_energy(problem.keys.double().cpu() @ basis)
        if inside < LITTLE * mean_energy(problem.keys):
            warnings.warn(
                f"{self.name}: {inside / mean_energy(problem.keys):.1%} of the keys' energy lies in the null space of "
                f"layer {layer} ({basis.shape[1]} of {len(basis)} directions): little can be written there; a larger "
                "energy makes it wider",
                stacklevel=2,
            )
        return self.weighed(problem, lambda ratio: ratio * inside, lambda weight: NullSpace(basis, weight))
