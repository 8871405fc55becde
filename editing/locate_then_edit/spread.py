"""How a residual is spread over several layers, which are written one after another from the bottom.

What a lower layer writes changes the keys of the layers above it, so that keys and residual are measured anew at each:
a share is of what is then still missing at the target layer, the last.
"""

import math
from collections.abc import Collection
from typing import Literal

Rule = Literal["even", "root", "replay"]
"""even: 1 / layers left (MEMIT, Meng et al. 2023, algorithm 1); root: 1 / sqrt(layers left) (PMET, Li et al. 2024).
With replay each layer has a target of its own, and nothing is spread (`editing.locate_then_edit.replay`)."""


def spread(layers: Collection[int], rule: Rule = "even") -> tuple[tuple[int, float], ...]:
    """The layers as they are written, ascending, each with its share of the residual that is then left.

    The last one writes all that is left. Raises ValueError: there is no layer, one is named twice, or the rule is
    unknown.
    """
    ordered = sorted(layers)
    if not ordered or len(set(ordered)) < len(ordered):
        raise ValueError(f"a residual is spread over one layer or more, each named once, not over {list(layers)}")
    if rule not in ("even", "root"):
        raise ValueError(f"rule must be 'even' or 'root', not {rule!r}")
    left = range(len(ordered), 0, -1)
    return tuple((layer, 1 / n if rule == "even" else 1 / math.sqrt(n)) for layer, n in zip(ordered, left, strict=True))
