"""MALMEN: a network that turns many facts' gradients into one update, by least squares.

Tan, Zhang and Fu 2024, "Massive Editing for Large Language Models via Meta Learning".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from corrigenda.settings.checked import checked
from editing.learned.hypernetwork import Hypernetwork
from editing.learned.learned import Learned
from editing.locate_then_edit.least_squares import Factors, penalised_update
from editing.locate_then_edit.ultraedit import Ridge
from editing.registry import register


@register(
    "malmen",
    paper="Tan et al. 2024, Massive Editing for Large Language Models via Meta Learning",
    aim="many facts in the time of their gradients, by a network that was trained for the model",
    space="what there is to tune is learned: corrigenda train editor=malmen",
)
@dataclass(frozen=True)
@checked
class Malmen(Learned):
    """The least squares of what a network asks of each token (`editing.learned.hypernetwork`).

        r = - rate_l (u u~^T) d~                         what the token's own outer product would change of its output
        delta V = (K^T K + lambda_l I)^-1 K^T R          with the coefficients u themselves as the rows of K

    The tokens are those from which a token of a target is predicted. Where MEND's updates add up, those of tokens that
    are alike share here; the system is that of MEMIT's kin (`editing.locate_then_edit.least_squares`), with lambda I in
    place of text's second moment. Lambda is learned, a number for each layer; gradients go through the solution.

    The authors edit several matrices of a feed-forward network; here the values alone. Their lambda begins at 1, and
    their rate at 1e-6; here both begin as ratios. Their blocks scale and shift behind the ReLU, MEND's before it; here
    both as MEND's. Their loss weighs both parts alike (``job.edit_weight=1``); here, as MEND's, L_edit by 0.1. Their
    blocks have rank 1,920, learned at 1e-5, as rate and lambda are (`HypernetworkTraining`).
    """

    name: ClassVar[str] = "malmen"
    whole: ClassVar[bool] = False
    weighed: ClassVar[bool] = True
    in_training: ClassVar[tuple[int, int]] = (1, 32)

    def factors(self, network: Hypernetwork, place: int, u: Tensor, pseudo_u: Tensor, pseudo_d: Tensor) -> Factors:
        """The solution of the edit's least-squares problem."""
        assert network.log_weights is not None
        residuals = -network.rate(place) * (u * pseudo_u).sum(1, keepdim=True) * pseudo_d
        weight = network.log_weights[place].exp().double().cpu()
        return penalised_update(u, residuals, Ridge(weight, u.shape[1]))
