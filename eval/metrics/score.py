"""The score S: the harmonic mean of efficacy, paraphrase and neighbourhood success (ROME)."""

from eval.measurement import Measurement
from eval.metrics.metric import LeaderboardColumn, Metric, Needs
from eval.statistics.paired import harmonic_mean


def _of_one_fact(_before: Measurement | None, _after: Measurement) -> None:
    """A score is of the means over facts; one fact has none."""


SCORE = Metric(
    "score",
    "score (S)",
    "%",
    "high",
    (Needs("probabilities", ("prompt", "paraphrases", "neighbourhood")),),
    _of_one_fact,
    short="S",
    parts=("efficacy_success", "paraphrase_success", "neighbourhood_success"),
    combine=harmonic_mean,
    # It can reward a wrecked model, and is not shown without what would tell.
    shown_with=("preservation", "perplexity_drift"),
    column=LeaderboardColumn(10, ranks=1),
)
"""Over the facts that have all three parts."""
