"""Native consistency: what the unedited model does itself on other wordings, the yardstick of figures on paraphrases.

Of a fact that it says itself, the greedy answer to the prompt beginning with the old object: on how many paraphrases,
and on how many neighbourhood prompts, which have the same object, it says that too. Other facts have no value.
"""

from corrigenda import Fact
from eval.measurement import Measurement
from eval.metrics.free_generation import matches_strictly
from eval.metrics.metric import Compute, Metric, Needs, mean_of


def _judge(fact: Fact, measurement: Measurement) -> None:
    for record in measurement.scored("prompt", "paraphrases", "neighbourhood"):
        record.begins_true = None
        if record.answer is not None and fact.target_true is not None:
            record.begins_true = matches_strictly(record.answer, (fact.target_true,), fact.target_new)


def _on(kind: str) -> Compute:
    def compute(before: Measurement | None, after: Measurement) -> float | None:
        unedited = after if before is None else before
        said = [record.begins_true for record in unedited.scored("prompt")]
        others = mean_of(record.begins_true for record in unedited.scored(kind))
        return others if said and all(said) else None

    return compute


METRICS = (
    Metric(
        "native_consistency",
        "native consistency: paraphrases of what the unedited model says",
        "%",
        None,
        (Needs("free_answers", ("prompt", "paraphrases")),),
        _on("paraphrases"),
        short="native",
        line="native consistency (paraphrases)",
        judge=_judge,
    ),
    Metric(
        "native_consistency_neighbourhood",
        "native consistency: neighbours of what the unedited model says",
        "%",
        None,
        (Needs("free_answers", ("prompt",)), Needs("kept_answers", ("neighbourhood",))),
        _on("neighbourhood"),
        short="native neigh.",
        line="  on neighbours",
    ),
)
