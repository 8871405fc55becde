"""One measurement of one model on facts: every prompt's record, and the value of every metric they allow.

The metrics' names and definitions are DESIGN's. A metric that a fact's prompts do not allow is absent, never zero.
Where a fact has several prompts of a kind its value is their mean.
"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.data.embedded import held_out_text
from corrigenda.forward.generation import Choose, decode, greedy, sampler
from corrigenda.forward.shared import SharedStart
from eval.answers import matches_leniently, matches_strictly
from eval.groups import grouped, note_groups
from eval.scoring import PromptScore, TargetScore, continues_as, perplexity, probabilities, score

GENERATION_TOP_K = 5
"""Text for the fluency is sampled from so many tokens, as ROME's authors do."""


@dataclass(frozen=True)
class EvalSettings:
    """What is measured, and how far.

    Attributes:
        generate: whether to let the model answer freely (free-generation accuracy, preservation, fluency): the dear
            part.
        max_new_tokens: the longest free answer.
        preservation_tokens: how much of an answer has to stay the same to count as preserved. (Fifty tokens of small
            talk differ after any change at all; what the answer is shows in its first few.)
        fluency_tokens: the length of the sampled text whose fluency is measured.
        perplexity_tokens: how much of the held-out text is read; 0 for no perplexity.
        max_tokens: tokens run at once.
        seed: for the sampled text.
        harness_tasks: tasks of the lm-evaluation-harness, for `eval.lm_eval.harness`: not measured fact by fact.
        harness_folder: a folder with task files of your own.
        harness_limit: the most examples of each task; None for all.
    """

    generate: bool = True
    max_new_tokens: int = 50
    preservation_tokens: int = 10
    fluency_tokens: int = 50
    perplexity_tokens: int = 512
    max_tokens: int = 4096
    seed: int = 0
    harness_tasks: Sequence[str] = ()
    harness_folder: str | None = None
    harness_limit: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.harness_tasks, str):
            raise ValueError(f"harness_tasks must be a list of tasks: [{self.harness_tasks}]")
        object.__setattr__(self, "harness_tasks", tuple(self.harness_tasks))  # not a configuration's own kind of list


@dataclass
class Measurement:
    """What one model, edited or not, did with one fact's prompts.

    Attributes:
        prompts: by kind (prompt, paraphrases, ...), a record for each prompt, of plain JSON values.
        values: by metric, the fact's value.
        distributions: the next-token log-probabilities after each neighbourhood prompt; for the KL, not for files.
        answers: for each prompt whose answer should be preserved its tokens and whether it ended there by itself.
    """

    prompts: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    distributions: list[Tensor] = field(default_factory=list)
    answers: dict[str, tuple[list[int], bool]] = field(default_factory=dict)


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
        a measurement for each fact.
    """
    settings = settings or EvalSettings()
    measurements = [Measurement() for _ in facts]
    _score_targets(lm, facts, measurements, settings)
    if settings.generate:
        _generate(lm, facts, measurements, settings, keep_answers=before is None)
    if settings.perplexity_tokens:
        value = held_out_log_perplexity(lm, settings) if log_perplexity is None else log_perplexity
        for measurement in measurements:
            measurement.values["log_perplexity"] = value
    if before is not None:
        _compare(lm, facts, measurements, before, settings)
    return measurements


def held_out_log_perplexity(lm: LanguageModel, settings: EvalSettings) -> float:
    """The logarithm of the model's perplexity on the held-out text that ships with the project."""
    return math.log(perplexity(lm, _held_out(lm, settings.perplexity_tokens)))


# -- probabilities under teacher forcing


def _score_targets(
    lm: LanguageModel, facts: Sequence[Fact], measurements: Sequence[Measurement], settings: EvalSettings
) -> None:
    queries: list[tuple[str, list[str]]] = []
    plan: list[tuple[int, str, str]] = []  # fact, kind, prompt
    for number, fact in enumerate(facts):
        pair = [target for target in (fact.target_new, fact.target_true) if target is not None]
        wanted = [("prompt", fact.statement, pair)]
        wanted += [("paraphrases", prompt, pair) for prompt in fact.paraphrases]
        wanted += [("neighbourhood", prompt, pair) for prompt in fact.neighbourhood]
        if fact.verb == "modify":
            stated = f"{fact.statement} {fact.target_new}. "
            wanted += [("neighbourhood_plus", stated + prompt, pair) for prompt in fact.neighbourhood]
        wanted += [("locality", probe.prompt, [probe.answer]) for probe in fact.locality]
        wanted += [("portability", probe.prompt, [probe.answer]) for probe in fact.portability]
        plan += [(number, kind, prompt) for kind, prompt, _ in wanted]
        queries += [(prompt, targets) for _, prompt, targets in wanted]
    scores = score(lm, queries, keep_distributions=True, max_tokens=settings.max_tokens)
    for (number, kind, prompt), found in zip(plan, scores, strict=True):
        measurement = measurements[number]
        measurement.prompts.setdefault(kind, []).append(_record(facts[number], kind, prompt, found))
        if kind == "neighbourhood":
            assert found.next_token is not None
            measurement.distributions.append(found.next_token)
    for fact, measurement in zip(facts, measurements, strict=True):
        note_groups(fact, measurement.prompts)
        probability_values(measurement)


def _record(fact: Fact, kind: str, prompt: str, found: PromptScore) -> dict[str, Any]:
    """A prompt's plain record: P(new), P(true), their tokens' log-probabilities, and the token accuracy."""
    record: dict[str, Any] = {"prompt": prompt}
    if kind in ("locality", "portability"):
        target = found.targets[0]
        most_likely = {"most_likely": list(target.best)} if kind == "locality" else {}
        return record | {"log_probs": target.log_probs, "token_accuracy": target.token_accuracy} | most_likely
    scores: dict[str, TargetScore] = {}
    names = [name for name in ("new", "true") if getattr(fact, f"target_{name}") is not None]
    scores.update(zip(names, found.targets, strict=True))
    for name, value in scores.items():
        record[f"log_probs_{name}"] = value.log_probs
    if len(scores) == 2:
        record["p_new"], record["p_true"] = probabilities(scores["new"], scores["true"])
    if "new" in scores:
        record["token_accuracy"] = scores["new"].token_accuracy
    return record


def probability_values(measurement: Measurement) -> None:
    """Works out the values that follow from the prompts' probabilities."""
    prompts, values = measurement.prompts, measurement.values
    # kind of prompt, names of the success and the magnitude, and whether the new object is the wanted one
    for kind, success, magnitude, new_wanted in (
        ("prompt", "efficacy_success", "efficacy_magnitude", True),
        ("paraphrases", "paraphrase_success", "paraphrase_magnitude", True),
        ("neighbourhood", "neighbourhood_success", "neighbourhood_magnitude", False),
        ("neighbourhood_plus", "neighbourhood_success_plus", None, False),
    ):
        gains = [(r["p_new"] - r["p_true"]) * (1 if new_wanted else -1) for r in prompts.get(kind, []) if "p_new" in r]
        if gains:
            values[success] = fmean(gain > 0 for gain in gains)
            if magnitude is not None:
                values[magnitude] = fmean(gains)
    for kind, prefix in (("prompt", ""), ("paraphrases", "paraphrase_"), ("portability", "portability_")):
        hits = [record["token_accuracy"] for record in prompts.get(kind, []) if "token_accuracy" in record]
        if hits:
            values[f"{prefix}token_accuracy"] = fmean(hits)
    for group, records in grouped(prompts.get("portability", [])).items():
        values[f"portability_{group}_token_accuracy"] = fmean(record["token_accuracy"] for record in records)


# -- free generation


def _generate(
    lm: LanguageModel,
    facts: Sequence[Fact],
    measurements: Sequence[Measurement],
    settings: EvalSettings,
    keep_answers: bool,
) -> None:
    """Free answers and sampled text, decoded together in as few batches as fit."""
    jobs: list[tuple[int, str, str, Choose]] = []  # fact, kind, prompt, chooser
    for number, fact in enumerate(facts):
        if fact.target_new is not None:
            jobs.append((number, "prompt", fact.statement, greedy))
            jobs += [(number, "paraphrases", prompt, greedy) for prompt in fact.paraphrases]
        jobs += [(number, "portability", probe.prompt, greedy) for probe in fact.portability]
        if keep_answers:  # an edited model's need not be decoded: see `continues_as`
            jobs += [(number, "preserved", prompt, greedy) for prompt in _preserved(fact)]
        for prompt in fact.generation:
            # Every text has its own random numbers: the same before and after, whatever else is in the batch.
            jobs.append((number, "generation", prompt, _text_sampler(lm, settings.seed)))
    tokens_of = {prompt: lm.tokens(prompt) for _, _, prompt, _ in jobs}
    start = SharedStart(lm, list(tokens_of.values()))
    rows = max(1, settings.max_tokens // (64 + start.weight(start.length)))
    jobs.sort(key=lambda job: len(tokens_of[job[2]]))
    for begin in range(0, len(jobs), rows):
        part = jobs[begin : begin + rows]
        limits = {"generation": settings.fluency_tokens, "preserved": settings.preservation_tokens}
        longest = [limits.get(kind, settings.max_new_tokens) for _, kind, _, _ in part]
        stops = [lm.is_end if kind == "generation" else lm.ends_answer for _, kind, _, _ in part]
        added = decode(lm, [tokens_of[job[2]] for job in part], longest, [job[3] for job in part], stops, start)
        for (number, kind, prompt, _), tokens, limit in zip(part, added, longest, strict=True):
            measurement = measurements[number]
            text = lm.text(tokens)
            if kind == "generation":
                record = {"prompt": prompt, "text": text, "entropy": ngram_entropy(words(text))}
                measurement.prompts.setdefault(kind, []).append(record)
                continue
            if kind == "preserved":
                measurement.answers[prompt] = (tokens, len(tokens) < limit)
                for record in measurement.prompts.get("neighbourhood", []) + measurement.prompts.get("locality", []):
                    if record["prompt"] == prompt:
                        record["answer"] = text
                continue
            for record in measurement.prompts[kind]:
                if record["prompt"] == prompt:
                    record["answer"] = text
    for fact, measurement in zip(facts, measurements, strict=True):
        generation_values(fact, measurement)


def _text_sampler(lm: LanguageModel, seed: int) -> Choose:
    """Draws a text's tokens; from a wrecked model that gives no numbers, the first of the vocabulary."""
    draw = sampler(torch.Generator().manual_seed(seed), GENERATION_TOP_K, banned=sorted(lm.end_ids))

    def choose(logits: Tensor) -> Tensor:
        return greedy(logits) if bool(logits.float().softmax(-1).isnan().any()) else draw(logits)

    return choose


def generation_values(fact: Fact, measurement: Measurement) -> None:
    """Judges the free answers, and works out the values that follow from them and from the sampled texts."""
    for kind, prefix in (("prompt", ""), ("paraphrases", "paraphrase_"), ("portability", "portability_")):
        records = [record for record in measurement.prompts.get(kind, []) if "answer" in record]
        for number, record in enumerate(records):
            targets = fact.portability[number].answers if kind == "portability" else fact.answers
            record["strict"] = matches_strictly(record["answer"], targets)
            record["lenient"] = matches_leniently(record["answer"], targets)
        if records:
            measurement.values[f"{prefix}free_generation_strict"] = fmean(r["strict"] for r in records)
            measurement.values[f"{prefix}free_generation_lenient"] = fmean(r["lenient"] for r in records)
        for group, part in grouped(records).items():
            measurement.values[f"{prefix}{group}_free_generation_strict"] = fmean(r["strict"] for r in part)
            measurement.values[f"{prefix}{group}_free_generation_lenient"] = fmean(r["lenient"] for r in part)
    if texts := measurement.prompts.get("generation"):
        measurement.values["fluency"] = fmean(record["entropy"] for record in texts)


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


# -- before and after


def _compare(
    lm: LanguageModel,
    facts: Sequence[Fact],
    measurements: Sequence[Measurement],
    before: Sequence[Measurement],
    settings: EvalSettings,
) -> None:
    items: list[tuple[str, list[int], bool]] = []
    owner: list[tuple[int, str]] = []
    for number, (fact, old, new) in enumerate(zip(facts, before, measurements, strict=True)):
        if old.distributions:
            kls = [_kl(p, q) for p, q in zip(old.distributions, new.distributions, strict=True)]
            for record, kl in zip(new.prompts["neighbourhood"], kls, strict=True):
                record["kl"] = kl
            new.values["neighbourhood_kl"] = fmean(kls)
        agreement = [
            fmean(map(operator.eq, *(record["most_likely"] for record in pair)))
            for pair in zip(old.prompts.get("locality", []), new.prompts.get("locality", []), strict=True)
            if pair[0]["most_likely"]
        ]
        if agreement:
            new.values["locality_token_agreement"] = fmean(agreement)
        if "log_perplexity" in old.values and "log_perplexity" in new.values:
            new.values["perplexity_drift"] = new.values["log_perplexity"] - old.values["log_perplexity"]
        if old.answers:
            for prompt in _preserved(fact):
                items.append((prompt, *old.answers[prompt]))
                owner.append((number, prompt))
    if not items:
        return
    same = continues_as(lm, items, settings.max_tokens)
    per_fact: dict[int, list[bool]] = {}
    for (number, prompt), kept in zip(owner, same, strict=True):
        per_fact.setdefault(number, []).append(kept)
        prompts = measurements[number].prompts
        for record in prompts.get("neighbourhood", []) + prompts.get("locality", []):
            if record["prompt"] == prompt:
                record["preserved"] = kept
    for number, kept_all in per_fact.items():
        measurements[number].values["preservation"] = fmean(kept_all)
        for group, records in grouped(measurements[number].prompts.get("locality", [])).items():
            measurements[number].values[f"preservation_{group}"] = fmean(r["preserved"] for r in records)


def _preserved(fact: Fact) -> list[str]:
    """The prompts whose answers an edit must leave as they are."""
    return list(dict.fromkeys([*fact.neighbourhood, *(probe.prompt for probe in fact.locality)]))


def _kl(before: Tensor, after: Tensor) -> float:
    """KL(before, after) in nats, from log-probabilities."""
    return float((before.double().exp() * (before.double() - after.double())).sum())


def _held_out(lm: LanguageModel, tokens: int) -> str:
    """The first tokens of the held-out text, as text."""
    ids = lm.tokenizer(held_out_text(), add_special_tokens=False)["input_ids"][:tokens]
    return str(lm.tokenizer.decode(ids))
