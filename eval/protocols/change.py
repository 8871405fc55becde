"""`change_norm`: how far the applied edits are from the unedited model."""

import math
from typing import Any

from corrigenda import LanguageModel


def change_norm(lm: LanguageModel) -> dict[str, float]:
    """How far the applied edits are from the unedited model, where that can be said.

    ``norm``, the Frobenius norm of the change of all weights (of edits that lie beside the weights and have a norm, the
    square root of the sum of its squares), and ``relative_norm``, that divided by the norm of the matrices that were
    changed, as they were. Figures that are not defined or not finite are absent.
    """
    found: dict[str, float] = {}
    if lm.edits.untouched:
        pairs = [(lm.memory_at(place).values.double(), old.double()) for place, old in lm.edits.untouched.items()]
        found["norm"] = math.sqrt(sum(float((new - old).square().sum()) for new, old in pairs))
        found["relative_norm"] = found["norm"] / math.sqrt(sum(float(old.square().sum()) for _, old in pairs))
    else:
        beside: list[Any] = [edit for edit in lm.edits if not edit.in_weights and hasattr(edit, "norm")]
        if beside:
            found["norm"] = math.sqrt(sum(edit.norm() ** 2 for edit in beside))
    return {key: value for key, value in found.items() if math.isfinite(value)}
