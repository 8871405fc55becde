"""Guards: which updates are given with a flag (in their report and a warning), and which are refused.

An update that is far out of proportion wrecks a model ("The Butterfly Effect of Model Editing", Yang et al. 2024), and
the figures that tell are known before it is applied.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from corrigenda import EditRefusedError, Fact
from corrigenda.moments.experts import Moment
from corrigenda.settings.checked import Positive, Share, checked


@dataclass(frozen=True)
@checked
class Guards:
    """The rules.

    Attributes:
        editor: whose they are, for messages.
        flag_norm: an update above so many times the norm of the values that it changes is flagged.
        refuse_norm: above this it is refused.
        flag_agreement: an agreement of keys (see `agreement`) below this is flagged.
        refuse_agreement: below this, or negative, it is refused: the denominator of the update is near zero.
    """

    editor: str
    flag_norm: Positive
    refuse_norm: Positive
    flag_agreement: Share = 0.2
    refuse_agreement: Share = 0.02

    def judge(self, fact: str, figures: dict[str, Any]) -> None:
        """Adds ``refused`` or ``flagged`` to a fact's figures where the rules say so, and warns.

        ``agreement`` and ``relative_norm`` (|delta V| / |V|) are judged. Figures that are not finite are taken out: a
        figure that could not be computed is absent, and no JSON file could hold it.
        """
        agreement, norm = figures["agreement"], figures["relative_norm"]
        what = f"agreement of keys {agreement:.3g}, |delta V| / |V| {norm:.3g}"
        wrecked = [name for name, value in figures.items() if isinstance(value, float) and not math.isfinite(value)]
        for name in wrecked:
            del figures[name]
        if wrecked:
            figures["refused"] = f"not finite ({what})"
        elif agreement < self.refuse_agreement:
            figures["refused"] = f"the denominator of the update is near zero ({what})"
        elif norm > self.refuse_norm:
            figures["refused"] = f"the update is an outlier against the layer's values ({what})"
        elif agreement < self.flag_agreement or norm > self.flag_norm:
            figures["flagged"] = what
        for word in ("refused", "flagged"):
            if word in figures:
                warnings.warn(f"{self.editor}: the edit of fact {fact!r} is {word}: {figures[word]}", stacklevel=3)

    def judge_whole_of_one(self, fact: str, figures: dict[str, Any], relative_norm: float) -> None:
        """Judges one fact's update once more, when a further constraint has made it larger than `judge` knew."""
        if figures["relative_norm"] <= self.flag_norm < relative_norm <= self.refuse_norm and "flagged" not in figures:
            figures["flagged"] = f"|delta V| / |V| {relative_norm:.3g} with the second constraint"
            warnings.warn(f"{self.editor}: the edit of fact {fact!r} is flagged: {figures['flagged']}", stacklevel=3)
        figures["relative_norm"] = relative_norm

    def refuse_whole(self, layer: int, relative_norm: float, n_facts: int) -> None:
        """Refuses the update of several facts together.

        Its norm may grow as that of independent updates does, with the root of their number.

        Raises:
            EditRefusedError: it is too large, or not finite.
        """
        if not math.isfinite(relative_norm):
            raise EditRefusedError(f"the update of layer {layer} is not finite")
        if relative_norm > self.refuse_norm * math.sqrt(n_facts):
            raise EditRefusedError(
                f"the update of layer {layer} has {relative_norm:.2f} times the norm of the values it changes"
            )


def agreement(left: Tensor, left_solved: Tensor, right: Tensor, right_solved: Tensor) -> Tensor:
    """The cosines between keys, (n, d_ffn), and others in the metric of C^-1, (n,); `*_solved` are C^-1 times them.

    Between the key that an update is computed with and the key that it is to answer to, this is the denominator of the
    update without its scale.
    """
    size = (left * left_solved).sum(1) * (right * right_solved).sum(1)
    return (left * right_solved).sum(1) / size.sqrt()


MOST_NAMED = 5
"""So many pairs of facts are named in one warning."""


def name_alike(
    editor: str, facts: Sequence[Fact], cosines: Tensor, limit: float, report: Sequence[dict[str, Any]]
) -> None:
    """Names the facts whose keys are nearly the same, before they are edited: what one is to answer, the other will.

    `facts` are the earlier ones still in force, then those to be edited; cosines, (n, all), between the keys of the
    latter and of all, from `limit` on, count. The report of the latter gets ``"alike"``, with the ids of the facts that
    they are like.
    """
    earlier = len(facts) - len(report)
    pairs: list[tuple[int, int]] = []
    for row, column in (cosines >= limit).nonzero().tolist():
        number = earlier + row
        if column != number:
            report[row].setdefault("alike", []).append(facts[column].id)
        if column < number:
            pairs.append((row, column))
    if not pairs:
        return
    named = [
        f"{facts[column].id!r} and {facts[earlier + row].id!r} ({float(cosines[row, column]):.2f})"
        for row, column in pairs[:MOST_NAMED]
    ]
    more = f", and {len(pairs) - MOST_NAMED} more pairs" if len(pairs) > MOST_NAMED else ""
    warnings.warn(
        f"{editor}: facts with nearly the same key (cosine in the metric of C^-1 of {limit:.2f} or more) disturb each "
        f"other: {', '.join(named)}{more}",
        stacklevel=3,
    )


def warn_of_load(editor: str, n_facts: int, d_ffn: int, most: float, advice: str = "") -> None:
    """Warns where there are more facts for each coefficient of a layer than `most`; with what can be done."""
    if n_facts > most * d_ffn:
        warnings.warn(
            f"{editor}: {n_facts} facts in layers of {d_ffn} coefficients are {n_facts / d_ffn:.2f} for each, more "
            f"than {most:.2f}: expect earlier facts and other knowledge to suffer{advice and '; '}{advice}",
            stacklevel=3,
        )


def warn_of_rank(editor: str, moment: Moment) -> None:
    """Warns where a second moment is singular, and only its ridge keeps the directions without text finite."""
    if not moment.full_rank:
        warnings.warn(
            f"{editor}: the second moment of layer {moment.layer} is rank-deficient: it is taken over {moment.tokens} "
            f"tokens, and has {moment.width} coefficients; what lies in the other directions counts as unused. "
            "Take more text (at least 8 tokens for each coefficient)",
            stacklevel=3,
        )


def cosines_between(keys: Tensor, others: Tensor, directions: Tensor, others_directions: Tensor) -> Tensor:
    """The cosines between keys, (n, d_ffn), and others, (m, d_ffn), in the metric of C^-1, (n, m).

    `directions` are C^-1 times the one, and times the others.
    """
    size = (keys * directions).sum(1).sqrt()[:, None] * (others * others_directions).sum(1).sqrt()
    return keys @ others_directions.T / size
