"""Side effects: does the edit see a "not", does it hold as a fact, and what became of the subject otherwise?

Measured where `EvalSettings.side_effects` asks for it, on the prompts of `corrigenda.data.side_effects`.
"""

import math
from collections.abc import Sequence
from statistics import fmean

from corrigenda import Fact
from corrigenda.data.side_effects import fact_checks
from eval.measurement import Measurement
from eval.metrics.metric import LeaderboardColumn, Metric, Needs, mean_of, mean_over
from eval.records import CHECK_KIND, RUNNING_KIND, SUBJECT_KIND


def _negation_rate(_before: Measurement | None, after: Measurement) -> float | None:
    """The share of the fact's negated prompts with P(new) > P(true): the new object where the claim denies it.

    `eval.metrics.success` notes both, as on all prompts of `PAIRED_KINDS`.
    """
    pairs = [(record.p_new, record.p_true) for record in after.scored("negations")]
    known = [(new, true) for new, true in pairs if new is not None and true is not None]
    # Where the model gives no numbers there is none: 0 would be the best.
    return mean_of(new > true for new, true in known if math.isfinite(new - true))


def _negation_gain(before: Measurement | None, after: Measurement) -> float | None:
    """The mean change of log P(new) on the negated prompts, log P being the mean over tokens."""
    if before is None:
        return None
    pairs = zip(before.scored("negations"), after.scored("negations"), strict=False)
    return _mean_change([(old.log_probs_new, new.log_probs_new) for old, new in pairs])


def _note_expected(fact: Fact, measurement: Measurement) -> None:
    for record, check in zip(measurement.checks(), fact_checks(fact), strict=False):
        record.expected = check.expected


def _margins(measurement: Measurement) -> list[float]:
    """By fact-check question log P(right answer) - log P(wrong answer)."""
    pairs = [(record.log_probs_right, record.log_probs_wrong) for record in measurement.checks()]
    return [fmean(right) - fmean(wrong) for right, wrong in pairs if right and wrong]


def _check_success(_before: Measurement | None, after: Measurement) -> float | None:
    """The share of fact-check questions whose right answer is more probable than the wrong one. A tie is no success."""
    return mean_of(margin > 0 for margin in _margins(after))


def _check_magnitude(_before: Measurement | None, after: Measurement) -> float | None:
    """The mean of log P(right answer) - log P(wrong answer): what a model has for "Yes" as such cancels out."""
    return mean_of(_margins(after))


def _reversal_accuracy(_before: Measurement | None, after: Measurement) -> float | None:
    """The share of reversed questions after which greedy decoding begins with the subject.

    So it does where each of the subject's tokens is the most likely one after those before it: no decoding is needed.
    """
    shares = [record.token_accuracy for record in after.probes("reversals")]
    return mean_of(share == 1 for share in shares if share is not None)


def _reversal_gain(before: Measurement | None, after: Measurement) -> float | None:
    """The mean change of log P(subject) on the reversed questions, log P being the mean over tokens."""
    if before is None:
        return None
    pairs = zip(before.probes("reversals"), after.probes("reversals"), strict=False)
    return _mean_change([(old.log_probs, new.log_probs) for old, new in pairs])


def _mean_change(pairs: Sequence[tuple[Sequence[float] | None, Sequence[float] | None]]) -> float | None:
    return mean_of(fmean(new) - fmean(old) for old, new in pairs if old and new)


METRICS = (
    Metric(
        "negation_rate",
        "new object on negated prompts",
        "%",
        "low",
        (Needs("probabilities", ("negations",)),),
        _negation_rate,
        short="negated",
        edit_should="keep",
        column=LeaderboardColumn(131),
    ),
    Metric(
        "negation_gain",
        "change of log P(new) on negated prompts",
        "nats",
        "low",
        (Needs("probabilities", ("negations",)),),
        _negation_gain,
        short="negated gain",
        line="  change of log P(new)",
        edit_should="keep",
    ),
    Metric(
        "fact_check_success",
        "fact-check questions, right answer",
        "%",
        "high",
        (Needs("probabilities", (CHECK_KIND,)),),
        _check_success,
        short="fact check",
        edit_should="change",
        judge=_note_expected,
        column=LeaderboardColumn(132),
    ),
    Metric(
        "fact_check_magnitude",
        "fact-check questions, log P(right) - log P(wrong)",
        "nats",
        "high",
        (Needs("probabilities", (CHECK_KIND,)),),
        _check_magnitude,
        short="fact check margin",
        line="  log P(right) - log P(wrong)",
        judge=_note_expected,
    ),
    Metric(
        "reversal_accuracy",
        "reversed question, the subject",
        "%",
        "high",
        (Needs("probabilities", ("reversals",)),),
        _reversal_accuracy,
        short="reversed",
        column=LeaderboardColumn(133),
    ),
    Metric(
        "reversal_gain",
        "change of log P(subject) on the reversed question",
        "nats",
        "high",
        (Needs("probabilities", ("reversals",)),),
        _reversal_gain,
        short="reversed gain",
        line="  change of log P(subject)",
    ),
    Metric(
        "same_subject_preservation",
        "same ten words on prompts about the subject",
        "%",
        "high",
        (Needs("kept_answers", (SUBJECT_KIND,)),),
        mean_over("preserved", SUBJECT_KIND),
        short="subject pres.",
        edit_should="keep",
        column=LeaderboardColumn(134),
    ),
    *(
        Metric(
            f"{kind}_kl",
            title,
            "nats",
            "low",
            (Needs("distributions", (kind,)),),
            mean_over("kl", kind),
            short=short,
            edit_should="keep",
            column=LeaderboardColumn(place),
        )
        for kind, title, short, place in (
            (SUBJECT_KIND, "KL on other prompts about the subject", "subject KL", 135),
            (RUNNING_KIND, "KL on the subject in running text", "running KL", 140),
        )
    ),
)
"""Negated prompts (Kassner & Schütze 2020); fact-checking, "Yes" against "No" (De Cao et al. 2021, on FEVER); reversed
questions (Berglund et al. 2023; Ma et al. 2023), reported, and no failure: no edit need bring that about; other
things of the subject ("other attributes" of Yao et al. 2023, "relation specificity" of Cohen et al. 2023)."""
