"""The values of a case from what its prompts' records say, and from nothing that they claim to come to."""

from collections.abc import Mapping
from typing import Any

from corrigenda import Fact
from eval.evaluation import Case, failed
from eval.measurement import Measurement
from eval.metrics import METRICS


def recomputed(fact: Fact, record: Mapping[str, Any]) -> Case:
    """The case of a record, with every value worked out again, as it is while measuring.

    From the prompts: log-probabilities of the targets' tokens, token accuracies, answers, sampled texts, whether an
    answer was preserved, KL; from the windows of the held-out texts the perplexity. Where a record has no windows, the
    log-perplexity is a value that nothing gives, and is taken as it is. A fact that the model could not read has no
    prompts: of its values those that an edit is for are 0, as they are while measuring.
    """
    before, after = (_judged(fact, record[state]) for state in ("before", "after"))
    before.values |= METRICS.computed(None, before)
    after.values |= METRICS.computed(before, after)
    error = str(record.get("error") or "")
    return Case(fact, before, failed(after) if error else after, None, record.get("seconds"), error)


def _judged(fact: Fact, state: Mapping[str, Any]) -> Measurement:
    measurement = Measurement.from_dict(state)
    if measurement.log_perplexity is not None:
        measurement.log_perplexity = float(measurement.log_perplexity)
    measurement.values = {} if measurement.prompts else METRICS.missed(measurement.values)
    METRICS.judge(fact, measurement)
    return measurement
