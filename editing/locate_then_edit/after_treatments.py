"""After-treatments of targets and updates, which any closed form may have on top of its own formula.

| setting | what is changed | source |
|---|---|---|
| `norm_anchor` | every target value has the same norm | NAS: "Norm Anchors Make Model Edits Last", 2026 |
| `spare_singular` | delta V leaves V's largest singular directions alone | REVIVE: Zhang et al. 2026 |
| `spare_spherical` | delta V is damped along the main directions of V's columns | SPHERE: Liu et al. 2026 |

REVIVE is of "Spectral Characterization and Mitigation of Sequential Knowledge Editing Collapse", SPHERE of
"Energy-Regularized Sequential Model Editing on Hyperspheres". (The early stop of ENCORE, Gupta et
al. 2025, is `ValueSettings.confident_steps`.) The directions are those of the values before any edit, found in float64.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.settings.checked import Share, checked
from editing.locate_then_edit.least_squares import Factors
from editing.locate_then_edit.passes import SubjectRows
from editing.locate_then_edit.targets import Site


@dataclass(frozen=True)
@checked
class AfterTreatments:
    """What is done to targets and updates after they are solved for; by default nothing.

    Attributes:
        norm_anchor: NAS (2026): see `anchor_norms`.
        spare_singular: REVIVE (Zhang et al. 2026): see `spare_singular`; 0 for none.
        spare_spherical: SPHERE (Liu et al. 2026): see `spare_spherical`; 0 for none.
        spherical_strength: how much of the update along those directions is taken away.
    """

    norm_anchor: bool = False
    spare_singular: Share = 0.0
    spare_spherical: Share = 0.0
    spherical_strength: Share = 0.5

    @property
    def spares(self) -> bool:
        """Whether anything is done to updates."""
        return bool(self.spare_singular or self.spare_spherical)

    def of_update(self, factors: Factors, values: Tensor) -> Factors:
        """An update after what is asked for, as factors of the same rank.

        Args:
            factors: left (d_ffn, n) and right (n, d_model).
            values: V before any edit, (d_ffn, d_model).
        """
        if self.spare_singular:
            factors = spare_singular(factors, values, self.spare_singular)
        if self.spare_spherical:
            factors = spare_spherical(factors, values, self.spare_spherical, self.spherical_strength)
        return factors


def anchor_norms(targets: Tensor, outputs: Tensor, values: Tensor, anchor: float | None = None) -> tuple[Tensor, float]:
    """NAS: targets whose value vectors all have one norm, the anchor.

        v* = v + (target - output),    target' = target - v* + anchor * v* / |v*|

    Only the feed-forward network's part v* of a target is scaled: of a block's output the rest stays as it is. The
    anchor is the mean of |v*| over the first facts, which are solved for on the original model; later edits keep it,
    so that norms cannot grow from one edit to the next.

    Args:
        targets: (fact, d_model).
        outputs: what comes out at the targets' site in the model that they were solved for on, (fact, d_model).
        values: the feed-forward network's output v there, (fact, d_model).
        anchor: of the edit that is gone on with; None for the first.

    Returns:
        the targets, and the anchor.
    """
    wanted = values + (targets - outputs)
    norms = wanted.norm(dim=1, keepdim=True)
    if anchor is None:
        anchor = float(norms[norms.isfinite()].mean())
    return targets - wanted + anchor * wanted / norms, anchor


def anchor_targets(
    lm: LanguageModel,
    reported: Sequence[Mapping[str, Any]],
    rows: SubjectRows,
    site: Site,
    weights: Tensor,
    targets: dict[int, Tensor],
    report: Sequence[dict[str, Any]],
) -> None:
    """Scales the targets of each layer to the norm of the first edit's, which the reports so far keep."""
    earlier = [one["norm_anchors"] for one in reported if "norm_anchors" in one]
    anchors = {}
    for layer, wanted in sorted(targets.items()):
        _, outputs = rows.measured(lm, layer, layer, site, weights)
        _, values = rows.measured(lm, layer, layer, "ffn", weights)
        known = earlier[0][str(layer)] if earlier else None
        targets[layer], anchors[str(layer)] = anchor_norms(wanted, outputs, values, known)
    for one in report:
        one["norm_anchors"] = anchors


def spare_singular(factors: Factors, values: Tensor, share: float) -> Factors:
    """REVIVE: an update without its components in the dominant singular directions of the values.

        V = U S W^T,    delta V' = (I - U_r U_r^T) delta V (I - W_r W_r^T)

    U_r and W_r are the first r singular vectors, the fewest with `share` of the sum of squared singular values. In the
    basis of U and W all that touches one of them is left out, so V + delta V' has the same first r directions.

    Args:
        factors: left (d_ffn, n) and right (n, d_model).
        values: V, (d_ffn, d_model).
        share: of the energy.
    """
    U, S, Wt = torch.linalg.svd(values.double().cpu(), full_matrices=False)
    r = _fewest(S.square(), share)
    left, right = (factor.double().cpu() for factor in factors)
    return left - U[:, :r] @ (U[:, :r].T @ left), right - (right @ Wt[:r].T) @ Wt[:r]


def spare_spherical(factors: Factors, values: Tensor, share: float, strength: float) -> Factors:
    """SPHERE: an update damped along the principal directions of the output neurons' weights on the sphere.

        delta V' = (I - strength U U^T) delta V

    An output neuron's weights are a column of V. U holds the first eigenvectors of the mean of w w^T over all columns,
    each scaled to length 1: the fewest whose eigenvalues have `share` of their sum.

    Args:
        factors: left (d_ffn, n) and right (n, d_model).
        values: V, (d_ffn, d_model).
        share: of the eigenvalues' sum.
        strength: 1 removes these directions; 0 changes nothing.
    """
    columns = values.double().cpu()
    columns = columns / columns.norm(dim=0).clamp_min(1e-30)
    U, S, _ = torch.linalg.svd(columns, full_matrices=False)
    U = U[:, : _fewest(S.square(), share)]
    left = factors[0].double().cpu()
    return left - strength * U @ (U.T @ left), factors[1]


def _fewest(energies: Tensor, share: float) -> int:
    """How many of the largest have a share of the sum; energies descend."""
    sums = energies.cumsum(0) / energies.sum()
    return min(int((sums < share - 1e-12).sum()) + 1, len(energies))
