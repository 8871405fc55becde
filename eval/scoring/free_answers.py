"""Lets the model go on after prompts: greedy answers, and sampled text, decoded together in as few batches as fit.

An answer that is judged ends at the end token or at a line break. Where an answer should stay, the model goes on for a
given number of tokens, end tokens barred and line breaks as any other: many models answer a bare question with nothing,
and two blank answers are the same whatever was done to the model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.data.side_effects import same_subject
from corrigenda.forward.generation import Choose, Greedy, decode, greedy, never, sampler
from corrigenda.forward.shared import SharedStart
from corrigenda.models.bare import first_line
from corrigenda.prompts import encode_target
from eval.records import SUBJECT_KIND, TEXT_KIND, Measurement, SampledText, ScoredProbe, ScoredPrompt
from eval.settings import EvalSettings

T = TypeVar("T")

GENERATION_TOP_K = 5
"""Text for the fluency is sampled from so many tokens, as ROME's authors do."""

_BESIDE = 3
"""Tokens that an answer may have beside its target: an article, a quotation mark, what shows that a word ends."""

_KEPT = "kept"
"""The kind of those continuations that an edit should preserve, on whichever prompts."""


@dataclass(frozen=True)
class Continuation:
    """One prompt to go on after.

    Attributes:
        number: the fact's.
        kind: of the prompt, or `_KEPT`.
        prompt: the prompt.
        choose: how the next token is chosen.
        targets: what the answer is compared with, where it is judged.
    """

    number: int
    kind: str
    prompt: str
    choose: Choose
    targets: tuple[str, ...] = ()

    @property
    def several_lines(self) -> bool:
        """Whether a target has several lines, so that a line break does not end the answer."""
        return any("\n" in target for target in self.targets)


def answer_freely(
    lm: LanguageModel,
    facts: Sequence[Fact],
    measurements: Sequence[Measurement],
    kinds: Collection[str],
    kept: Collection[str],
    settings: EvalSettings,
) -> None:
    """Records free answers and sampled texts.

    Args:
        lm: a causal model.
        facts: the facts.
        measurements: theirs, with the records that `score_targets` made; answers go there.
        kinds: the kinds of prompts that are answered, or after which text is sampled.
        kept: the kinds of prompts whose answers should stay: their continuations go into `Measurement.continuations`
            too, and the records say whether the answer is blank where the next-token distribution is known.
        settings: how long the answers and texts are.

    Raises:
        ContextLengthError: a prompt with the tokens that may be added is longer than the model reads.
    """
    jobs = [job for number, fact in enumerate(facts) for job in jobs_of(lm, number, fact, kinds, kept, settings)]
    for part, prompts, start in batches_to_decode(lm, jobs, [job.prompt for job in jobs], settings):
        limits = [longest(lm, job, settings) for job in part]
        stop_at = {TEXT_KIND: lm.is_end, _KEPT: never}
        stops = [stop_at.get(job.kind, lm.is_end if job.several_lines else lm.ends_answer) for job in part]
        added = decode(lm, prompts, limits, [job.choose for job in part], stops, start)
        for job, tokens in zip(part, added, strict=True):
            _note(lm, measurements[job.number], job, tokens)


def batches_to_decode(
    lm: LanguageModel, items: Sequence[T], prompts: Sequence[str], settings: EvalSettings
) -> Iterator[tuple[list[T], list[list[int]], SharedStart]]:
    """Items whose prompts are decoded together, of like lengths; these prompts' tokens; what all prompts begin with."""
    tokens_of = {prompt: lm.tokens(prompt) for prompt in prompts}
    start = SharedStart(lm, list(tokens_of.values()))
    rows = max(1, settings.max_tokens // (64 + start.weight(start.length)))
    order = sorted(range(len(items)), key=lambda place: len(tokens_of[prompts[place]]))
    for begin in range(0, len(order), rows):
        part = order[begin : begin + rows]
        yield [items[place] for place in part], [tokens_of[prompts[place]] for place in part], start


def longest(lm: LanguageModel, job: Continuation, settings: EvalSettings) -> int:
    """The most tokens that are added to a prompt: of an answer that is judged never fewer than its target has."""
    given = {TEXT_KIND: settings.fluency_tokens, _KEPT: settings.preservation_tokens}.get(job.kind)
    return room_for(lm, job.prompt, job.targets, settings.max_new_tokens) if given is None else given


def room_for(lm: LanguageModel, prompt: str, targets: Sequence[str], least: int) -> int:
    """How many tokens an answer may have in which each target has room: `least`, or more where one is longer."""
    long = (target for target in targets if len(target.encode()) + _BESIDE > least)  # no token is shorter than a byte
    return max([least, *(len(encode_target(lm.tokenizer, prompt, target)) + _BESIDE for target in long)])


def jobs_of(
    lm: LanguageModel,
    number: int,
    fact: Fact,
    kinds: Collection[str],
    kept: Collection[str],
    settings: EvalSettings,
) -> Iterator[Continuation]:
    """The prompts of a fact that the model goes on after; arguments as of `answer_freely`."""
    prompts: dict[str, Sequence[str]] = {}
    if fact.target_new is not None:
        prompts |= {"prompt": (fact.statement,), "paraphrases": fact.paraphrases}
    for kind, wanted in prompts.items():
        if kind in kinds:
            said = tuple(f"{fact.joint or ''}{answer}" for answer in fact.answers)
            yield from (Continuation(number, kind, prompt, greedy, said) for prompt in wanted)
    if "portability" in kinds:
        # Probes of one prompt have one answer, with room for the longest of their targets.
        targets = {
            one.prompt: tuple(a for p in fact.portability if p.prompt == one.prompt for a in p.answers)
            for one in fact.portability
        }
        yield from (Continuation(number, "portability", prompt, greedy, answers) for prompt, answers in targets.items())
    neighbours = fact.neighbourhood if "neighbourhood" in kept else ()
    elsewhere = [probe.prompt for probe in fact.locality] if "locality" in kept else []
    subject = same_subject(fact) if SUBJECT_KIND in kept else ()
    go_on = Greedy(lm.end_ids)
    yield from (
        Continuation(number, _KEPT, prompt, go_on) for prompt in dict.fromkeys([*neighbours, *elsewhere, *subject])
    )
    if TEXT_KIND in kinds:
        for prompt in fact.generation:
            # Every text has its own random numbers: the same before and after, whatever else is in the batch.
            yield Continuation(number, TEXT_KIND, prompt, _text_sampler(lm, settings.seed))


def _note(lm: LanguageModel, measurement: Measurement, job: Continuation, tokens: list[int]) -> None:
    """Puts what was decoded into the records of its prompt."""
    text = lm.text(tokens)
    if job.kind not in (TEXT_KIND, _KEPT) and not job.several_lines:
        text = first_line(text)
    if job.kind == TEXT_KIND:
        measurement.prompts.setdefault(TEXT_KIND, []).append(SampledText(job.prompt, text))
        return
    records: list[ScoredPrompt | ScoredProbe] = [*measurement.scored(job.kind), *measurement.probes(job.kind)]
    blank = None
    if job.kind == _KEPT:
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


def _text_sampler(lm: LanguageModel, seed: int) -> Choose:
    """Draws a text's tokens; from a wrecked model that gives no numbers, the first of the vocabulary."""
    draw = sampler(torch.Generator().manual_seed(seed), GENERATION_TOP_K, banned=sorted(lm.end_ids))

    def choose(logits: Tensor) -> Tensor:
        return greedy(logits) if bool(logits.float().softmax(-1).isnan().any()) else draw(logits)

    return choose
