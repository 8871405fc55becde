"""Scores the targets of facts after their prompts, under teacher forcing, and records what came."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from corrigenda import Fact, LanguageModel
from corrigenda.data.side_effects import fact_checks, negations, reversals, same_subject
from eval.records import (
    CHECK_KIND,
    PAIRED_KINDS,
    PROBE_KINDS,
    SUBJECT_KIND,
    Measurement,
    Record,
    ScoredCheck,
    ScoredProbe,
    ScoredPrompt,
)
from eval.scoring.probabilities import PromptScore, score
from eval.settings import EvalSettings


def score_targets(
    lm: LanguageModel,
    facts: Sequence[Fact],
    measurements: Sequence[Measurement],
    kinds: Collection[str],
    compared: Collection[str],
    settings: EvalSettings,
) -> None:
    """Records the targets' log-probabilities, and the next-token distributions after some kinds of prompts.

    Args:
        lm: a causal model.
        facts: the facts.
        measurements: where a record for each prompt is added, by fact.
        kinds: the kinds of prompts that are scored.
        compared: those of them whose next-token distributions are kept (`Measurement.distributions`).
        settings: how much is run at once.
    """
    plan = [
        (number, kind, prompt, targets)
        for number, fact in enumerate(facts)
        for kind, prompt, targets in queries_of(fact)
        if kind in kinds
    ]
    queries = [(prompt, targets) for _, _, prompt, targets in plan]
    joints = [joint_of(facts[number], kind) for number, kind, _, _ in plan]
    scores = score(lm, queries, keep_distributions=True, max_tokens=settings.max_tokens, joints=joints)
    for (number, kind, prompt, _), found in zip(plan, scores, strict=True):
        measurement = measurements[number]
        measurement.prompts.setdefault(kind, []).append(record_of(facts[number], kind, prompt, found))
        if kind in compared:
            assert found.next_token is not None
            measurement.distributions[prompt] = found.next_token


def queries_of(fact: Fact) -> Iterator[tuple[str, str, list[str]]]:
    """Kind, prompt and targets of all that is scored of a fact."""
    pair = [target for target in (fact.target_new, fact.target_true) if target is not None]
    yield "prompt", fact.statement, pair
    for prompt in fact.paraphrases:
        yield "paraphrases", prompt, pair
    for prompt in fact.neighbourhood:
        yield "neighbourhood", prompt, pair
    if fact.verb == "modify":
        stated = f"{fact.claim}. "
        for prompt in fact.neighbourhood:
            yield "neighbourhood_plus", stated + prompt, pair
    for probe in fact.locality:
        yield "locality", probe.prompt, [probe.answer]
    for probe in fact.portability:
        yield "portability", probe.prompt, [probe.answer]
    for prompt in negations(fact):
        yield "negations", prompt, pair
    for check in fact_checks(fact):
        yield CHECK_KIND, check.prompt, [check.expected, check.other]
    for prompt in reversals(fact):
        yield "reversals", prompt, [fact.subject]
    for prompt in same_subject(fact):
        yield SUBJECT_KIND, prompt, []


def joint_of(fact: Fact, kind: str) -> str | None:
    """What a fact says that stands before the targets of a kind of prompts: it speaks of its own objects."""
    return fact.joint if kind in PAIRED_KINDS else None


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
    if kind == SUBJECT_KIND:
        return record
    targets = iter(found.targets)
    if fact.target_new is not None:
        new = next(targets)
        record.log_probs_new, record.token_accuracy = new.log_probs, new.token_accuracy
    if fact.target_true is not None:
        record.log_probs_true = next(targets).log_probs
    return record
