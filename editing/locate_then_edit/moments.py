"""The second moments that editors of several papers weigh keys with, over as much text as the layers are wide."""

from collections.abc import Mapping, Sequence

from corrigenda import LanguageModel
from corrigenda.moments.experts import ExpertMoments, Moment, tokens_for
from corrigenda.moments.second_moment import rank_deficient, second_moments
from corrigenda.moments.text import Text
from editing.locate_then_edit.guards import warn_of_rank


def moments_of(
    editor: str, lm: LanguageModel, layers: Sequence[int], text: Text, per_coefficient: int | None
) -> Mapping[int, Moment]:
    """C of layers, by layer; kept on disk. A singular one is named in a warning.

    Args:
        editor: for the warning.
        lm: the model.
        layers: the layers.
        text: over which it is taken, or more of the same.
        per_coefficient: the text has at least so many tokens for each of the layer's coefficients; 0 for the text as
            it is; None for 24 of the text that ships, and 8 of any other.
    """
    each = text.per_coefficient(lm, per_coefficient)
    text = text.at_least(max(tokens_for(lm.memory(layer), each) for layer in layers))
    experts = {n: ExpertMoments(lm, n, text) for n in layers if lm.architecture.experts(n) is not None}
    plain = second_moments(lm, [layer for layer in layers if layer not in experts], text)
    deficient: list[Moment] = [*rank_deficient(plain), *experts.values()]
    for moment in deficient:
        warn_of_rank(editor, moment)
    return {**plain, **experts} if experts else plain
