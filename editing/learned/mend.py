"""MEND: a network that turns a fact's gradient into an update.

Mitchell, Lin, Bosselut, Finn and Manning 2022, "Fast Model Editing at Scale".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from corrigenda.settings.checked import checked
from editing.learned.hypernetwork import Hypernetwork
from editing.learned.learned import Learned
from editing.locate_then_edit.least_squares import Factors
from editing.registry import register


@register(
    "mend",
    paper="Mitchell et al. 2022a, Fast Model Editing at Scale",
    aim="a fact in the time of one gradient, by a network that was trained for the model",
    space="what there is to tune is learned: corrigenda train editor=mend",
)
@dataclass(frozen=True)
@checked
class Mend(Learned):
    """The sum of the outer products of what a network makes of the gradient's rows (`editing.learned.hypernetwork`).

        delta V = - rate_l sum over tokens of u~^T d~

    The tokens are those of prompt and target but for the first, and d is the gradient of the mean of -log P of the
    fact's own target tokens; so the update of several facts is the sum of theirs. Rows that are zero are left out.

    The authors edit both matrices of the last three feed-forward networks; here, as in all of this project, the values
    alone. Their mean and deviation run along with the training; here they are taken over the training facts before it.
    Their rates begin at 1e-4; here where an update is a given share of the FFN's output, and their logarithm is
    learned, so that one default serves every model. Prompts that shall stay are the fact's own neighbourhood and
    locality ones, theirs are drawn from other data. Their blocks have rank 1,920, learned at 1e-6 by ten edits a step,
    and gradients are cut at a norm of 100; here `HypernetworkTraining` has what suits small models and short trainings.
    """

    name: ClassVar[str] = "mend"

    def factors(self, network: Hypernetwork, place: int, u: Tensor, pseudo_u: Tensor, pseudo_d: Tensor) -> Factors:
        """The outer products."""
        return pseudo_u.T, -network.rate(place) * pseudo_d
