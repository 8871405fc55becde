"""Fluency (GE): the n-gram entropy of sampled text (ROME). A model that repeats itself has little."""

import math
import re
from collections import Counter
from collections.abc import Hashable, Sequence

from corrigenda import Fact
from eval.measurement import Measurement
from eval.metrics.metric import LeaderboardColumn, Metric, Needs, mean_over
from eval.records import TEXT_KIND


def words(text: str) -> list[str]:
    """The words and punctuation marks of a text, whose n-grams are counted."""
    return re.findall(r"\w+|[^\w\s]", text)


def ngram_entropy(tokens: Sequence[Hashable]) -> float:
    """The fluency of ROME: the entropies of the text's 2- and 3-grams, weighted 2/3 and 4/3 and averaged, in bits.

    Over words, as ROME's authors count them, so that models with other tokenizers compare.
    """
    total = 0.0
    for n, weight in ((2, 2 / 3), (3, 4 / 3)):
        counts = Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
        whole = sum(counts.values())
        total += weight * -sum(c / whole * math.log2(c / whole) for c in counts.values()) if whole else 0.0
    return total / 2


def _judge(_fact: Fact, measurement: Measurement) -> None:
    for record in measurement.texts():
        record.entropy = ngram_entropy(words(record.text))


METRICS = (
    Metric(
        "fluency",
        "fluency (n-gram entropy)",
        "bits",
        "high",
        (Needs("sampled_text", (TEXT_KIND,)),),
        mean_over("entropy", TEXT_KIND),
        short="fluency",
        edit_should="keep",
        judge=_judge,
        column=LeaderboardColumn(130),
    ),
)
