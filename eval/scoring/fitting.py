"""Facts whose prompts are longer than the model reads: found before anything is run, and counted as failed."""

from __future__ import annotations

import math

from corrigenda import ContextLengthError, Fact, LanguageModel
from eval.metrics import METRICS
from eval.real_use.questions import questions_of
from eval.records import QUESTION_KIND, AskedQuestion, Measurement, ScoredProbe, ScoredPrompt
from eval.scoring.free_answers import jobs_of, longest, room_for
from eval.scoring.probabilities import PromptScore, TargetScore, tokens_of
from eval.scoring.teacher_forcing import joint_of, queries_of, record_of
from eval.settings import EvalSettings


def too_long(lm: LanguageModel, fact: Fact, settings: EvalSettings) -> str:
    """Why a fact cannot be measured: what of it, with targets or generated tokens, is longer than the model reads.

    Args:
        lm: the model, with whatever edits are applied: one may put a text before every prompt.
        fact: the fact.
        settings: what is measured.

    Returns:
        one line with the fact, the kind of the prompt, its number of tokens and the limit; empty where all fits.
    """
    kind = ""
    try:
        wanted = METRICS.kinds("probabilities", "distributions", without=settings.without)
        for kind, prompt, targets in queries_of(fact):
            if kind in wanted:
                tokens_of(lm, prompt, targets, joint_of(fact, kind))
        if settings.generate:
            answered = METRICS.kinds("free_answers", "sampled_text", without=settings.without)
            kept = METRICS.kinds("kept_answers", without=settings.without)
            for job in jobs_of(lm, 0, fact, answered, kept, settings):
                kind, limit = job.kind, longest(lm, job, settings)
                lm.require_room(
                    len(lm.tokens(job.prompt)) + max(limit - 1, 0), f"a prompt with up to {limit} new tokens"
                )
        if settings.generate and settings.real_use is not None:
            for one in questions_of(
                lm, 0, fact, METRICS.kinds("questions", without=settings.without), settings.real_use
            ):
                kind = f"a question in real use ({one.setting})"
                limit = room_for(lm, one.prompt, fact.answers, settings.real_use.max_new_tokens)
                lm.require_room(len(one.tokens) + limit - 1, f"a question with up to {limit} new tokens")
    except ContextLengthError as error:
        return f"too long: fact {fact.id!r}, {kind}: {error}"
    return ""


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
    answered: list[ScoredPrompt | ScoredProbe] = [
        *blank.scored("prompt", "paraphrases"),
        *blank.probes("portability"),
    ]
    for record in answered:
        record.answer = "" if settings.generate else None
    if settings.generate and settings.real_use is not None:
        reply = "" if settings.real_use.judge.named else None
        asked = questions_of(lm, 0, fact, METRICS.kinds("questions", without=settings.without), settings.real_use)
        questions = [AskedQuestion(one.prompt, one.kind, one.setting, one.asked, "", reply=reply) for one in asked]
        blank.prompts[QUESTION_KIND] = [*questions]
    METRICS.judge(fact, blank)
    values = METRICS.computed(None, blank)
    known = {key: METRICS.find(key) for key in values}
    missed = {key: 0.0 for key, metric in known.items() if metric is not None and metric.edit_should == "change"}
    return Measurement(values=missed, error=reason)
