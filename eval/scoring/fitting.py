"""What is asked of a fact, as a model reads it: tokenised once, before anything is run, and found to fit or not."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from corrigenda import ContextLengthError, Fact, LanguageModel
from corrigenda.data.side_effects import fact_checks, negations, reversals, running_text, same_subject
from corrigenda.forward.generation import Choose, Greedy, greedy, sampler
from corrigenda.prompts import encode_target
from eval.metrics import METRICS
from eval.real_use.questions import QuestionInSetting, questions_of
from eval.records import CHECK_KIND, PAIRED_KINDS, RUNNING_KIND, SUBJECT_KIND, TEXT_KIND
from eval.scoring.probabilities import targets_after
from eval.settings import EvalSettings

TOO_LONG = "too long"
"""How the error of a fact begins that the model cannot read."""

GENERATION_TOP_K = 5
"""Text for the fluency is sampled from so many tokens, as ROME's authors do."""

BESIDE = 3
"""Tokens that an answer may have beside its target: an article, a quotation mark, what shows that a word ends."""

KEPT = "kept"
"""The kind of those continuations that an edit should preserve, on whichever prompts."""


@dataclass(frozen=True)
class Continuation:
    """One prompt to go on after.

    Attributes:
        kind: of the prompt, or `KEPT`.
        prompt: the prompt.
        choose: how the next token is chosen.
        targets: what the answer is compared with, where it is judged.
    """

    kind: str
    prompt: str
    choose: Choose
    targets: tuple[str, ...] = ()

    @property
    def several_lines(self) -> bool:
        """Whether a target has several lines, so that a line break does not end the answer."""
        return any("\n" in target for target in self.targets)


@dataclass(frozen=True)
class Prepared:
    """What is asked of a fact.

    Attributes:
        fact: the fact.
        tokens: of each prompt that is scored or gone on after, as the model reads it now.
        scored: kind, prompt, and the tokens of the targets, of all that is scored.
        jobs: what the model goes on after, each with the most tokens that are added.
        questions: those in real use, likewise.
        error: why the fact cannot be measured: one line with the fact, the kind of the prompt that is longer than the
            model reads, its number of tokens and the limit; empty where all fits.
    """

    fact: Fact
    tokens: dict[str, list[int]] = field(default_factory=dict)
    scored: list[tuple[str, str, list[tuple[int, ...]]]] = field(default_factory=list)
    jobs: list[tuple[Continuation, int]] = field(default_factory=list)
    questions: list[tuple[QuestionInSetting, int]] = field(default_factory=list)
    error: str = ""


def prepare(
    lm: LanguageModel, fact: Fact, settings: EvalSettings, kept: Mapping[str, Sequence[int]] | None = None
) -> Prepared:
    """Tokenises what is asked of a fact, and sees whether it fits with targets and generated tokens.

    Args:
        lm: the model, with whatever edits are applied: one may put a text before every prompt.
        fact: the fact.
        settings: what is measured.
        kept: by prompt how the unedited model went on: this one does so for as many tokens, whatever is measured.
    """
    found, kind, tokens_of = Prepared(fact), "", cache(lm.tokens)
    try:
        wanted = METRICS.kinds("probabilities", "distributions", without=settings.without)
        for kind, prompt, targets in queries_of(fact):
            if kind in wanted:
                ids = found.tokens[prompt] = tokens_of(prompt)
                joint = fact.joint if kind in PAIRED_KINDS else None  # it speaks of the fact's own objects
                found.scored.append((kind, prompt, targets_after(lm, prompt, ids, targets, joint)))
        for job in jobs_of(lm, fact, settings) if settings.generate else ():
            kind, limit = job.kind, longest(lm, job, settings)
            ids = found.tokens[job.prompt] = tokens_of(job.prompt)
            lm.require_room(len(ids) + max(limit - 1, 0), f"a prompt with up to {limit} new tokens")
            found.jobs.append((job, limit))
        for prompt, tokens in (kept or {}).items():
            if prompt in found.tokens:
                kind, n_tokens = KEPT, len(found.tokens[prompt]) + len(tokens) - 1
                lm.require_room(n_tokens, f"a prompt with {len(tokens)} new tokens")
        if settings.generate and settings.real_use is not None:
            asked = METRICS.kinds("questions", without=settings.without)
            for one in questions_of(lm, fact, asked, settings.real_use):
                kind = f"a question in real use ({one.setting})"
                limit = room_for(lm, one.prompt, fact.answers, settings.real_use.max_new_tokens)
                lm.require_room(len(one.tokens) + limit - 1, f"a question with up to {limit} new tokens")
                found.questions.append((one, limit))
    except ContextLengthError as error:
        return Prepared(fact, error=f"{TOO_LONG}: fact {fact.id!r}, {kind}: {error}")
    return found


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
    for prompt in running_text(fact):
        yield RUNNING_KIND, prompt, []


def jobs_of(lm: LanguageModel, fact: Fact, settings: EvalSettings) -> Iterator[Continuation]:
    """The prompts of a fact that the model goes on after."""
    kinds = METRICS.kinds("free_answers", "sampled_text", without=settings.without)
    kept = METRICS.kinds("kept_answers", without=settings.without)
    prompts: dict[str, Sequence[str]] = {}
    if fact.target_new is not None:
        prompts |= {"prompt": (fact.statement,), "paraphrases": fact.paraphrases}
    for kind, wanted in prompts.items():
        if kind in kinds:
            said = tuple(f"{fact.joint or ''}{answer}" for answer in fact.answers)
            yield from (Continuation(kind, prompt, greedy, said) for prompt in wanted)
    if "portability" in kinds:
        # Probes of one prompt have one answer, with room for the longest of their targets.
        targets = {
            one.prompt: tuple(a for p in fact.portability if p.prompt == one.prompt for a in p.answers)
            for one in fact.portability
        }
        yield from (Continuation("portability", prompt, greedy, answers) for prompt, answers in targets.items())
    go_on = Greedy(lm.end_ids)
    stay = dict.fromkeys(prompt for kind, prompt, _ in queries_of(fact) if kind in kept)
    yield from (Continuation(KEPT, prompt, go_on) for prompt in stay)
    if TEXT_KIND in kinds:
        for prompt in fact.generation:
            # Every text has its own random numbers: the same before and after, whatever else is in the batch.
            yield Continuation(TEXT_KIND, prompt, _text_sampler(lm, settings.seed))


def longest(lm: LanguageModel, job: Continuation, settings: EvalSettings) -> int:
    """The most tokens that are added to a prompt: of an answer that is judged never fewer than its target has."""
    given = {TEXT_KIND: settings.fluency_tokens, KEPT: settings.preservation_tokens}.get(job.kind)
    return room_for(lm, job.prompt, job.targets, settings.max_new_tokens) if given is None else given


def room_for(lm: LanguageModel, prompt: str, targets: Sequence[str], least: int) -> int:
    """How many tokens an answer may have in which each target has room: `least`, or more where one is longer."""
    long = (target for target in targets if len(target.encode()) + BESIDE > least)  # no token is shorter than a byte
    return max([least, *(len(encode_target(lm.tokenizer, prompt, target)) + BESIDE for target in long)])


def _text_sampler(lm: LanguageModel, seed: int) -> Choose:
    """Draws a text's tokens; from a wrecked model that gives no numbers, the first of the vocabulary."""
    draw = sampler(torch.Generator().manual_seed(seed), GENERATION_TOP_K, banned=sorted(lm.end_ids))

    def choose(logits: Tensor) -> Tensor:
        return greedy(logits) if bool(logits.float().softmax(-1).isnan().any()) else draw(logits)

    return choose
