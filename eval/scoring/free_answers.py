"""Lets the model go on after prompts: greedy answers, and sampled text, decoded together in as few batches as fit.

An answer that is judged ends at the end token or at a line break. Where an answer should stay, the model goes on for a
given number of tokens, end tokens barred and line breaks as any other: many models answer a bare question with nothing,
and two blank answers are the same whatever was done to the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.generation import decode, never
from corrigenda.forward.shared import SharedStart
from corrigenda.models.bare import first_line
from eval.measurement import Measurement
from eval.records import TEXT_KIND, SampledText, ScoredProbe, ScoredPrompt
from eval.scoring.fitting import KEPT, Continuation, Prepared
from eval.settings import EvalSettings

T = TypeVar("T")


def answer_freely(
    lm: LanguageModel,
    prepared: Sequence[Prepared],
    measurements: Sequence[Measurement],
    keep: bool,
    settings: EvalSettings,
) -> None:
    """Records free answers and sampled texts.

    Args:
        lm: a causal model.
        prepared: the facts.
        measurements: theirs, with the records that `score_targets` made; answers go there.
        keep: whether the model goes on where its answers should stay: these continuations go into
            `Measurement.continuations` too, and the records say whether the answer is blank where the next-token
            distribution is known.
        settings: how much is run at once.
    """
    jobs = [
        (number, job, limit)
        for number, one in enumerate(prepared)
        for job, limit in one.jobs
        if keep or job.kind != KEPT
    ]
    rows = [prepared[number].tokens[job.prompt] for number, job, _ in jobs]
    for part, prompts, start in batches_to_decode(lm, jobs, rows, settings):
        stop_at = {TEXT_KIND: lm.is_end, KEPT: never}
        stops = [stop_at.get(job.kind, lm.is_end if job.several_lines else lm.ends_answer) for _, job, _ in part]
        added = decode(lm, prompts, [limit for *_, limit in part], [job.choose for _, job, _ in part], stops, start)
        for (number, job, _), tokens in zip(part, added, strict=True):
            _note(lm, measurements[number], job, tokens)


def batches_to_decode(
    lm: LanguageModel, items: Sequence[T], prompts: Sequence[list[int]], settings: EvalSettings
) -> Iterator[tuple[list[T], list[list[int]], SharedStart]]:
    """Items whose prompts are decoded together, of like lengths; these prompts' tokens; what all prompts begin with."""
    start = SharedStart(lm, list(dict.fromkeys(map(tuple, prompts))))
    rows = max(1, settings.max_tokens // (64 + start.weight(start.length)))
    order = sorted(range(len(items)), key=lambda place: len(prompts[place]))
    for begin in range(0, len(order), rows):
        part = order[begin : begin + rows]
        yield [items[place] for place in part], [prompts[place] for place in part], start


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

    Args:
        lm: the model.
        tokens: how it goes on with end tokens barred.
        next_token: the log-probabilities of the next token, (vocabulary,), nothing barred.
    """
    if next_token is None:
        return None
    return lm.is_end(int(next_token.argmax())) or not first_line(lm.text(tokens)).strip()
