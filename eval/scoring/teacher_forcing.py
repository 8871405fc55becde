"""Scores the targets of facts after their prompts, under teacher forcing, and records what came."""

from collections.abc import Collection, Sequence
from typing import Any

from corrigenda import Fact, LanguageModel
from corrigenda.forward.prompt_caches import PromptCaches
from eval.measurement import Measurement
from eval.records import CHECK_KIND, PROBE_KINDS, UNSCORED_KINDS, Record, ScoredCheck, ScoredProbe, ScoredPrompt
from eval.scoring.fitting import Continuation, Prepared
from eval.scoring.probabilities import PromptScore, score_tokens
from eval.settings import EvalSettings


def score_targets(
    lm: LanguageModel,
    prepared: Sequence[Prepared],
    measurements: Sequence[Measurement],
    compared: Collection[str],
    jobs: Sequence[tuple[int, Continuation, int]],
    settings: EvalSettings,
) -> PromptCaches:
    """Records the targets' log-probabilities, and the next-token distributions after the kinds of prompts `compared`.

    A record for each prompt is added to the measurements. What the model will go on after
    (`free_answers.continuations_of`) is run here, too, and the attention caches of these prompts are given back.
    """
    plan = [(number, *query) for number, one in enumerate(prepared) for query in one.scored]
    queries = [(prompt, prepared[number].tokens[prompt], targets) for number, _, prompt, targets in plan]
    further = [(job.prompt, prepared[number].tokens[job.prompt], ()) for number, job, _ in jobs]
    caches = PromptCaches(lm, [ids for _, ids, _ in further])
    how: dict[str, Any] = {"keep_distributions": True, "max_tokens": settings.max_tokens, "caches": caches}
    scores = score_tokens(lm, [*queries, *further], **how)
    for (number, kind, prompt, _), found in zip(plan, scores, strict=False):
        measurement = measurements[number]
        measurement.prompts.setdefault(kind, []).append(record_of(prepared[number].fact, kind, prompt, found))
        if kind in compared:
            assert found.next_token is not None
            measurement.distributions[prompt] = found.next_token
    return caches


def record_of(fact: Fact, kind: str, prompt: str, found: PromptScore) -> Record:
    """The record of a prompt from the scores of the targets that `queries_of` names."""
    if kind in PROBE_KINDS:
        [target] = found.targets
        most_likely = target.best if kind == "locality" else None
        return ScoredProbe(prompt, target.log_probs, target.token_accuracy, most_likely)
    if kind == CHECK_KIND:
        right, wrong = found.targets
        return ScoredCheck(prompt, right.log_probs, wrong.log_probs)
    record = ScoredPrompt(prompt)
    if kind in UNSCORED_KINDS:
        return record
    targets = iter(found.targets)
    if fact.target_new is not None:
        new = next(targets)
        record.log_probs_new, record.token_accuracy = new.log_probs, new.token_accuracy
    if fact.target_true is not None:
        record.log_probs_true = next(targets).log_probs
    return record
