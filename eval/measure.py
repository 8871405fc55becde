"""`measure`: one measurement of one model on facts, with the value of every metric that their prompts allow.

What the model does with the prompts is recorded first (`eval.teacher_forcing`, `eval.free_answers`, `eval.changes`);
the metrics (`eval.metrics`) are computed from these records, while measuring as later from a file. A metric that a
fact's prompts do not allow is absent, never zero. Where a fact has several prompts of a kind its value is their mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from corrigenda import Fact, LanguageModel
from corrigenda.data.embedded import held_out_text
from corrigenda.facts import as_facts
from corrigenda.settings import check_class, check_value
from eval.changes import compare_with_before
from eval.fitting import not_measured, too_long
from eval.free_answers import answer_freely
from eval.metrics import METRICS
from eval.real_use.asking import ask_in_real_use
from eval.records import Measurement
from eval.scoring import perplexity
from eval.settings import EvalSettings
from eval.teacher_forcing import score_targets


def measure(
    lm: LanguageModel,
    facts: Sequence[Fact],
    settings: EvalSettings | None = None,
    before: Sequence[Measurement] | None = None,
    log_perplexity: float | None = None,
) -> list[Measurement]:
    """Measures the model as it is now.

    Args:
        lm: a causal model, with whatever edits are applied.
        facts: the facts, run together in batches.
        settings: what to measure.
        before: the same facts' measurements on the unedited model; with them come the metrics that compare
            (preservation, token agreement, neighbourhood KL, perplexity drift).
        log_perplexity: that of the held-out text, where it is known already (`held_out_log_perplexity`).

    Returns:
        a measurement for each fact; for one that is longer than the model reads it says why there is none
        (`Measurement.error`), and the others are measured as if they were alone.
    """
    facts = as_facts("measure", facts)
    settings = EvalSettings() if settings is None else settings
    check_class("measure", "settings", settings, EvalSettings)
    check_value("measure", "log_perplexity", log_perplexity, float | None)
    if before is not None and len(before) != len(facts):
        raise ValueError(f"measure: before has {len(before)} measurements, and there are {len(facts)} facts")
    reasons = [too_long(lm, fact, settings) for fact in facts]
    if any(reasons):
        return _without_too_long(lm, facts, reasons, settings, before, log_perplexity)
    measurements = [Measurement() for _ in facts]
    score_targets(lm, facts, measurements, METRICS.kinds("probabilities"), settings)
    if settings.generate:
        # Whether an edited model keeps an answer takes one forward, not a decoding (`compare_with_before`).
        kept = METRICS.kinds("kept_answers") if before is None else frozenset[str]()
        wanted = METRICS.kinds("free_answers") | METRICS.kinds("sampled_text")
        answer_freely(lm, facts, measurements, wanted, kept, settings)
        if settings.real_use is not None:
            asked = METRICS.kinds("questions")
            ask_in_real_use(lm, facts, measurements, asked, settings.real_use, settings.max_tokens)
    if settings.perplexity_tokens:
        level = held_out_log_perplexity(lm, settings) if log_perplexity is None else log_perplexity
        for measurement in measurements:
            measurement.log_perplexity = level
    if before is not None:
        compare_with_before(lm, measurements, before, settings)
    for number, (fact, measurement) in enumerate(zip(facts, measurements, strict=True)):
        METRICS.judge(fact, measurement)
        measurement.values = METRICS.computed(None if before is None else before[number], measurement)
    return measurements


def _without_too_long(
    lm: LanguageModel,
    facts: Sequence[Fact],
    reasons: Sequence[str],
    settings: EvalSettings,
    before: Sequence[Measurement] | None,
    log_perplexity: float | None,
) -> list[Measurement]:
    """What `measure` gives where some of the facts, those with a reason, cannot be read."""
    read = [number for number, reason in enumerate(reasons) if not reason]
    old = None if before is None else [before[number] for number in read]
    found = iter(measure(lm, [facts[number] for number in read], settings, old, log_perplexity) if read else [])
    return [
        not_measured(lm, fact, reason, settings) if reason else next(found)
        for fact, reason in zip(facts, reasons, strict=True)
    ]


def held_out_log_perplexity(lm: LanguageModel, settings: EvalSettings) -> float:
    """The logarithm of the model's perplexity on the held-out text that ships with the project."""
    ids = lm.tokenizer(held_out_text(), add_special_tokens=False)["input_ids"][: settings.perplexity_tokens]
    return math.log(perplexity(lm, str(lm.tokenizer.decode(ids))))
