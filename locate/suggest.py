"""Which layers to edit, as far as locating can say."""

from typing import Protocol

from torch import Tensor


class LayerScores(Protocol):
    """A result that has an opinion on layers: what `average` makes of traces or of knowledge neurons."""

    def layer_scores(self) -> Tensor:
        """How much of the facts each layer holds, (layer,): of all layers, or of the result's `layers`."""
        ...


def suggest_layers(result: LayerScores, n: int = 1) -> list[int]:
    """The n layers that hold most of the facts by a locator's measure, the best one first.

    Of an `AverageTrace` (of FFN windows): the indirect effect at the last subject token, by the window's centre. Of
    `NeuronCounts`: the attribution in each layer. Where a fact is found is not always where it is best edited (Hase
    et al. 2023, "Does Localization Inform Editing?"): compare before relying on it.

    Raises:
        ValueError: n is not between 1 and the number of layers, or the result has no numbers.
    """
    scores = result.layer_scores()
    layers = getattr(result, "layers", range(len(scores)))  # knowledge neurons may have been looked for in some only
    if not 1 <= n <= len(scores):
        raise ValueError(f"n={n} layers cannot be suggested from {len(scores)}")
    if bool(scores.isnan().any()):
        raise ValueError(
            "the result has no numbers for the layers: it is of no fact, or no traced prompt goes on after its subject"
        )
    return [layers[place] for place in scores.argsort(descending=True, stable=True)[:n].tolist()]
