"""Lets the model go on after prompts: greedy answers, and sampled text, decoded together in as few batches as fit.

An answer that is judged ends at the end token or at a line break. Where an answer should stay, the model goes on for a
given number of tokens, end tokens barred and line breaks as any other: two blank answers would always be the same.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.generation import Greedy, decode, never
from corrigenda.forward.prompt_caches import PromptCaches
from corrigenda.forward.shared import SharedStart
from corrigenda.models.bare import first_line
from eval.measurement import Measurement
from eval.records import TEXT_KIND, SampledText, ScoredProbe, ScoredPrompt
from eval.scoring.fitting import KEPT, Continuation, Prepared
from eval.scoring.probabilities import batches
from eval.settings import EvalSettings

T = TypeVar("T")


def continuations_of(
    lm: LanguageModel, prepared: Sequence[Prepared], before: Sequence[Measurement] | None
) -> list[tuple[int, Continuation, int]]:
    """What the model goes on after: the number of a fact, what is asked, and the most tokens that are added.

    Where the facts were measured `before`, on the unedited model, it goes on for as many tokens; where that has no
    continuation, there is nothing to compare.
    """
    jobs = [
        (number, job, limit)
        for number, one in enumerate(prepared)
        for job, limit in one.jobs
        if before is None or job.kind != KEPT
    ]
    go_on = Greedy(lm.end_ids)
    return jobs + [
        (number, Continuation(KEPT, prompt, go_on), len(tokens))
        for number, (one, old) in enumerate(zip(prepared, before or (), strict=False))
        for prompt, tokens in old.continuations.items()
        if prompt in one.tokens
    ]


def answer_freely(
    lm: LanguageModel,
    prepared: Sequence[Prepared],
    measurements: Sequence[Measurement],
    jobs: Sequence[tuple[int, Continuation, int]],
    caches: PromptCaches,
    settings: EvalSettings,
) -> None:
    """Records free answers, continuations and sampled texts after the `jobs` of `continuations_of`.

    They go to the records that `score_targets` made, and continuations where answers should stay into
    `Measurement.continuations` too. The records of these say whether the answer is blank where the next-token
    distribution is known. `caches` are those of the jobs' prompts that `score_targets` kept.
    """
    rows, most = [prepared[number].tokens[job.prompt] for number, job, _ in jobs], [limit for *_, limit in jobs]
    stop_at = {TEXT_KIND: lm.is_end, KEPT: never}
    added: dict[int, list[int]] = {}
    for places, prompts, start in batches_to_decode(lm, range(len(jobs)), rows, most, settings, caches):
        part = [jobs[place] for place in places]
        stops = [stop_at.get(job.kind, lm.is_end if job.several_lines else lm.ends_answer) for _, job, _ in part]
        limits = [limit for *_, limit in part]
        added |= zip(places, decode(lm, prompts, limits, [job.choose for _, job, _ in part], stops, start), strict=True)
    for place, (number, job, _) in enumerate(jobs):  # in the facts' order, not in that of the lengths
        _note(lm, measurements[number], job, added[place])


def batches_to_decode(
    lm: LanguageModel,
    items: Sequence[T],
    prompts: Sequence[list[int]],
    limits: Sequence[int],
    settings: EvalSettings,
    caches: PromptCaches | None = None,
) -> Iterator[tuple[list[T], list[list[int]], SharedStart | PromptCaches]]:
    """Items whose prompts are decoded together, of like lengths; these prompts' tokens; what was run of all prompts.

    `prompts` are the tokens of each item's prompt, `limits` the most tokens that are added to each. Where the caches of
    prompts are not complete, what all prompts begin with is run here.
    """
    known = caches is not None and caches.complete
    shared = SharedStart(lm, [] if known else list(dict.fromkeys(map(tuple, prompts))))
    weights = [shared.weight(len(prompt)) + limit for prompt, limit in zip(prompts, limits, strict=True)]
    start = caches if caches is not None and known else shared
    for group in batches(range(len(items)), weights, settings.max_tokens):
        yield [items[place] for place in group], [prompts[place] for place in group], start


def _note(lm: LanguageModel, measurement: Measurement, job: Continuation, tokens: list[int]) -> None:
    """Puts what was decoded into the records of its prompt."""
    text = lm.text(tokens)
    if job.kind not in (TEXT_KIND, KEPT) and not job.several_lines:
        text = first_line(text)
    if job.kind == TEXT_KIND:
        measurement.prompts.setdefault(TEXT_KIND, []).append(SampledText(job.prompt, text))
        return
    records: list[ScoredPrompt | ScoredProbe] = [*measurement.scored(job.kind), *measurement.probes(job.kind)]
    blank = None
    if job.kind == KEPT:
        measurement.continuations[job.prompt] = tokens
        records = measurement.keeping()
        blank = _is_blank(lm, tokens, measurement.distributions.get(job.prompt))
    for record in records:
        if record.prompt == job.prompt:
            record.answer, record.blank = text, blank


def _is_blank(lm: LanguageModel, tokens: Sequence[int], next_token: Tensor | None) -> bool | None:
    """Whether an answer that ends at the end token or a line break holds nothing; None where that is not known.

    `tokens` are how the model goes on with end tokens barred; `next_token` the log-probabilities of the next one,
    (vocabulary,), nothing barred.
    """
    if next_token is None:
        return None
    return lm.is_end(int(next_token.argmax())) or not first_line(lm.text(tokens)).strip()
