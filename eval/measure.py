"""`measure`: one measurement of one model on facts, with the value of every metric that their prompts allow.

What the model does with the prompts is recorded first (`eval.scoring`); the metrics (`eval.metrics`) are computed from
these records, while measuring as later from a file. A metric that a fact's prompts do not allow is absent, never zero.
Where a fact has several prompts of a kind its value is their mean.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch

from corrigenda import Fact, LanguageModel
from corrigenda.facts import as_facts
from corrigenda.models.alone import one_thread
from corrigenda.runs.ids import code_version
from corrigenda.settings.checked import check_class
from eval.measurement import HeldOut, Measurement
from eval.metrics import METRICS
from eval.real_use.asking import ask_in_real_use
from eval.real_use.questions import questions_of
from eval.records import QUESTION_KIND, AskedQuestion, ScoredProbe, ScoredPrompt
from eval.scoring.changes import compare_with_before, drop_ties
from eval.scoring.fitting import Prepared, prepare, queries_of
from eval.scoring.free_answers import answer_freely, continuations_of
from eval.scoring.held_out import read_held_out
from eval.scoring.probabilities import PromptScore, TargetScore
from eval.scoring.teacher_forcing import record_of, score_targets
from eval.settings import EvalSettings


@one_thread
def measure(
    lm: LanguageModel,
    facts: Sequence[Fact],
    settings: EvalSettings | None = None,
    before: Sequence[Measurement] | None = None,
    held_out: HeldOut | None = None,
) -> list[Measurement]:
    """Measures the model as it is now.

    Args:
        lm: a causal model, with whatever edits are applied.
        facts: the facts, run together in batches.
        settings: what to measure.
        before: the same facts' measurements on the unedited model; with them come the metrics that compare
            (preservation, token agreement, KL elsewhere, perplexity drift).
        held_out: what the model gives to the held-out texts, where it is known already (`read_held_out`). Otherwise
            the windows are read that the measurements before have, or all.

    Returns:
        a measurement for each fact; for one that is longer than the model reads it says why there is none
        (`Measurement.error`), and the others are measured as if they were alone.
    """
    facts = as_facts("measure", facts)
    settings = EvalSettings() if settings is None else settings
    check_class("measure", "settings", settings, EvalSettings)
    if held_out is not None:
        check_class("measure", "held_out", held_out, HeldOut)
    if before is not None and len(before) != len(facts):
        raise ValueError(f"measure: before has {len(before)} measurements, and there are {len(facts)} facts")
    kept = [None] * len(facts) if before is None else [one.continuations for one in before]
    prepared = [prepare(lm, fact, settings, tokens) for fact, tokens in zip(facts, kept, strict=True)]
    read = [number for number, one in enumerate(prepared) if not one.error]
    old = None if before is None else [before[number] for number in read]
    found = iter(_measure(lm, [prepared[number] for number in read], settings, old, held_out) if read else ())
    return [not_measured(lm, one.fact, one.error, settings) if one.error else next(found) for one in prepared]


def depends_on(lm: LanguageModel, settings: EvalSettings, module: str) -> list[Any]:
    """What measurements of the unedited model depend on besides the facts, as JSON values: so is named what is kept.

    The weights and how they compute, what answers go by, precision and kind of device, what is measured, the metrics,
    and the versions of the code (of `module`, which keeps it) and of the libraries. What is measured again where all of
    that is the same is the same, bit for bit.
    """
    code = code_version(entry=(module, *sorted(set(METRICS.modules.values()))))
    libraries = [torch.__version__, version("transformers")]
    reads = [lm.answers_key, str(lm.model.config._attn_implementation)]
    return [*reads, str(lm.dtype), lm.device.type, settings.before_an_edit, list(METRICS), code, *libraries]


def _measure(
    lm: LanguageModel,
    prepared: Sequence[Prepared],
    settings: EvalSettings,
    before: Sequence[Measurement] | None,
    held_out: HeldOut | None,
) -> list[Measurement]:
    """The measurements of facts all of which the model can read."""
    measurements = [Measurement() for _ in prepared]
    compared = METRICS.kinds("distributions", without=settings.without)
    jobs = continuations_of(lm, prepared, before)
    caches = score_targets(lm, prepared, measurements, compared, jobs, settings)
    answer_freely(lm, prepared, measurements, jobs, caches, settings)
    del caches
    if before is None:
        drop_ties(lm, prepared, measurements, settings)
    if settings.generate and settings.real_use is not None:
        ask_in_real_use(lm, prepared, measurements, settings.real_use.judge, settings.max_tokens)
    if settings.perplexity_windows:
        _put_held_out(lm, measurements, settings, before, held_out)
    if before is not None:
        compare_with_before(lm, measurements, before)
    for number, (one, measurement) in enumerate(zip(prepared, measurements, strict=True)):
        METRICS.judge(one.fact, measurement)
        measurement.values = METRICS.computed(None if before is None else before[number], measurement)
    return measurements


def not_measured(lm: LanguageModel, fact: Fact, reason: str, settings: EvalSettings) -> Measurement:
    """The measurement of a fact that the model cannot read: it holds no record, and the reason.

    What an edit should bring about counts as not brought about (0), as where an edit is refused; all else is absent.
    """
    blank = Measurement()
    scored = METRICS.kinds("probabilities", without=settings.without)
    for kind, prompt, targets in queries_of(fact):
        if kind in scored:
            nothing = tuple(TargetScore((-math.inf,), (False,), (-1,)) for _ in targets)
            blank.prompts.setdefault(kind, []).append(record_of(fact, kind, prompt, PromptScore(nothing, None)))
    answered: list[ScoredPrompt | ScoredProbe] = [*blank.scored("prompt", "paraphrases"), *blank.probes("portability")]
    for record in answered:
        record.answer = "" if settings.generate else None
    if settings.generate and settings.real_use is not None:
        reply = "" if settings.real_use.judge.named else None
        asked = questions_of(lm, fact, METRICS.kinds("questions", without=settings.without), settings.real_use)
        questions = [AskedQuestion(one.prompt, one.kind, one.setting, one.asked, "", reply=reply) for one in asked]
        blank.prompts[QUESTION_KIND] = [*questions]
    METRICS.judge(fact, blank)
    return Measurement(values=METRICS.missed(METRICS.computed(None, blank)), error=reason)


def on_windows(measurement: Measurement, windows: Sequence[int]) -> Measurement:
    """A measurement of the unedited model on some windows of the held-out texts only, its values worked out for these.

    What is measured later and compared with it reads the same windows.
    """
    if measurement.held_out is None or not windows:
        return measurement
    found = replace(measurement, held_out=measurement.held_out.only(windows))
    found.values = measurement.values | METRICS.computed(None, found)
    return found


def _put_held_out(
    lm: LanguageModel,
    measurements: Sequence[Measurement],
    settings: EvalSettings,
    before: Sequence[Measurement] | None,
    held_out: HeldOut | None,
) -> None:
    """Notes what the model gives to the held-out texts; in each fact's measurement to the windows it has before."""
    asked = [None if one.held_out is None else one.held_out.windows for one in before or ()]
    windows = [one for one in asked if one is not None]
    if held_out is None:
        # Of one fact after the other: each window is read once, and the order is that of the facts.
        wanted = (
            list(dict.fromkeys(number for some in windows for number in some)) if len(windows) == len(asked) else ()
        )
        held_out = read_held_out(lm, settings, wanted or None)
    for number, measurement in enumerate(measurements):
        mine = asked[number] if before is not None else None
        measurement.held_out = held_out if held_out is None or mine is None else held_out.only(mine)
