"""What a model gives to targets after prompts: probabilities under teacher forcing and next-token distributions."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.forward.generation import bar
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.prompt_caches import PromptCaches
from corrigenda.forward.recording import Recording
from corrigenda.forward.shared import SharedStart
from corrigenda.prompts import encode_target
from corrigenda.text.display import quoted

T = TypeVar("T")

MOST_LOGITS = 2**28
"""So many logits are held at once at most: a gigabyte in float32, whatever the vocabulary."""


@dataclass(frozen=True)
class TargetScore:
    """One target after one prompt.

    Attributes:
        log_probs: of its tokens, each given the prompt and the tokens before it, in nats.
        hits: for each token, whether it is the most likely one there.
        best: for each token, which one is the most likely there.
    """

    log_probs: tuple[float, ...]
    hits: tuple[bool, ...]
    best: tuple[int, ...] = ()

    @property
    def token_accuracy(self) -> float:
        """The share of tokens that are the most likely ones."""
        return sum(self.hits) / len(self.hits)

    @property
    def probability(self) -> float:
        """P: exp of the mean log-probability of the tokens, whatever their number, as the authors' scorer has it."""
        return math.exp(sum(self.log_probs) / len(self.log_probs))


@dataclass(frozen=True)
class PromptScore:
    """What follows one prompt: its targets' scores, and the next token's log-probabilities, (vocabulary,), or None."""

    targets: tuple[TargetScore, ...]
    next_token: Tensor | None


def probabilities(new: TargetScore, true: TargetScore) -> tuple[float, float]:
    """P(new) and P(true), each exp of the mean log-probability of its tokens: targets of any lengths compare."""
    return new.probability, true.probability


def score(
    lm: LanguageModel,
    queries: Sequence[tuple[str, Sequence[str]]],
    keep_distributions: bool = False,
    max_tokens: int = 4096,
) -> list[PromptScore]:
    """Scores targets after prompts; `score_tokens` of texts.

    Raises:
        ContextLengthError: a prompt with its target is longer than the model reads, or a target than is scored.
        ValueError: the model is not causal, or a prompt or target is empty.
    """
    read = [(prompt, lm.tokens(prompt), targets) for prompt, targets in queries]
    tokens = [(prompt, ids, targets_after(lm, prompt, ids, targets)) for prompt, ids, targets in read]
    return score_tokens(lm, tokens, keep_distributions, max_tokens)


@torch.no_grad()
def score_tokens(
    lm: LanguageModel,
    queries: Sequence[tuple[str, list[int], Sequence[tuple[int, ...]]]],
    keep_distributions: bool = False,
    max_tokens: int = 4096,
    caches: PromptCaches | None = None,
) -> list[PromptScore]:
    """Scores targets after prompts.

    A prompt is run once, however many targets and queries it has: the first token of every target is read off the same
    distribution, and only what follows it is run on top of the prompt's attention cache. With `keep_distributions` the
    whole next-token distributions are kept (on the CPU, in float32). At most `max_tokens` run at once, padding
    included. `caches` keeps the attention caches of prompts from which the model will go on; none where all prompts
    begin with a long text, which a decoding runs once, too. Raises ValueError: the model is not causal.
    """
    if not lm.architecture.family.causal:
        raise ValueError(f"{lm.name} is a masked model; targets are scored after prompts in causal models only")
    tokens = {prompt: ids for prompt, ids, _ in queries}
    prompts = list(tokens)
    wanted: dict[str, dict[tuple[int, ...], None]] = {prompt: {} for prompt in prompts}
    for prompt, _, targets in queries:
        wanted[prompt].update(dict.fromkeys(targets))
    found: dict[tuple[str, tuple[int, ...]], TargetScore] = {}
    distributions: dict[str, Tensor] = {}
    start_of_all = SharedStart(lm, list(tokens.values()))
    for group in batches(prompts, [start_of_all.weight(len(tokens[prompt])) for prompt in prompts], max_tokens):
        batch = lm.batch([tokens[prompt] for prompt in group])
        recording = start_of_all.record(batch, batch.lengths - 1)
        assert recording.logits is not None
        if caches is not None and start_of_all.length == 0:
            caches.add(recording)
        first = recording.logits.float().log_softmax(-1)
        best = first.argmax(-1)
        longer = []  # (row, the target's tokens)
        for row, prompt in enumerate(group):
            if keep_distributions:
                distributions[prompt] = first[row].clone().cpu()  # not a view of the whole batch
            for ids in wanted[prompt]:
                most = int(best[row])
                found[prompt, ids] = TargetScore((float(first[row, ids[0]]),), (most == ids[0],), (most,))
                if len(ids) > 1:
                    longer.append((row, ids))
        for part in _in_pieces(longer, min(max_tokens, MOST_LOGITS // first.shape[1])):
            starts = [found[group[row], ids] for row, ids in part]
            scores = _longer_targets(lm, recording, batch.lengths, [tokens[prompt] for prompt in group], part, starts)
            found |= {(group[row], ids): one for (row, ids), one in zip(part, scores, strict=True)}
    return [
        PromptScore(tuple(found[prompt, ids] for ids in targets), distributions.get(prompt))
        for prompt, _, targets in queries
    ]


def _longer_targets(
    lm: LanguageModel,
    recording: Recording,
    lengths: Tensor,
    prompts: Sequence[Sequence[int]],
    targets: Sequence[tuple[int, tuple[int, ...]]],
    starts: Sequence[TargetScore],
) -> Iterator[TargetScore]:
    """The scores of targets of several tokens, run on top of the attention cache of their prompts.

    `lengths`, (n,), are those of the prompts in the recorded batch, a row each; `targets` the row of each one's prompt,
    and its tokens; `starts` the score of each one's first token.
    """
    rows = torch.tensor([row for row, _ in targets], device=lengths.device)
    whole = lm.batch([[*prompts[row], *ids[:-1]] for row, ids in targets])
    partial = PartialForward(lm, recording, 0, lengths[rows], rows, whole)
    last = partial.logits().float().log_softmax(-1)
    for place, ((row, ids), start) in enumerate(zip(targets, starts, strict=True)):
        # 0, or the prompt's length where the model had to run that again
        begin = int(lengths[row] - partial.start[place])
        logs = last[place, begin : begin + len(ids) - 1]
        follow = torch.tensor(ids[1:], device=logs.device)
        most_likely = logs.argmax(-1)
        yield TargetScore(
            start.log_probs + tuple(logs.gather(1, follow[:, None])[:, 0].tolist()),
            start.hits + tuple((most_likely == follow).tolist()),
            start.best + tuple(most_likely.tolist()),
        )


def targets_after(
    lm: LanguageModel, prompt: str, ids: Sequence[int], targets: Sequence[str], between: str | None = None
) -> list[tuple[int, ...]]:
    """The tokens of targets after a prompt, with what stands `between` them; `ids` are the prompt's own.

    Raises:
        ContextLengthError: the prompt with a target is longer than the model reads, or a target than is scored.
        ValueError: a target is empty.
    """
    lm.require_room(len(ids), f"the prompt {quoted(prompt)}")
    read, found = lm.reads(prompt), []
    for target in targets:
        found.append(tuple(encode_target(lm.tokenizer, read, target, between)))
        both = f"the prompt {quoted(prompt)} with the target {quoted(target)}"
        lm.require_room(len(ids) + len(found[-1]) - 1, both)
    return found


def _in_pieces(
    longer: Sequence[tuple[int, tuple[int, ...]]], max_tokens: int
) -> Iterator[Sequence[tuple[int, tuple[int, ...]]]]:
    """Targets of several tokens, as many at once as have at most `max_tokens` logits' positions when padded."""
    lengths = [len(ids) - 1 for _, ids in longer]
    if not longer or len(longer) * max(lengths) <= max_tokens:
        return iter([longer] if longer else [])
    return batches(longer, lengths, max_tokens)


@torch.no_grad()
def continues_as(
    lm: LanguageModel,
    items: Sequence[tuple[list[int], list[int]]],
    max_tokens: int = 4096,
    banned: Collection[int] = (),
) -> list[bool]:
    """Whether greedy decoding from each prompt would begin with exactly these tokens.

    Decided by one forward under teacher forcing instead of a decoding: if every token is the most likely one after the
    tokens before it, greedy decoding takes them one after another. `banned` are tokens that it never takes
    (`corrigenda.forward.generation.Greedy`). At most `max_tokens` run at once, padding included.
    """
    result = [True] * len(items)
    start = SharedStart(lm, [prompt for prompt, _ in items])
    lengths = [start.weight(len(prompt) + len(answer)) for prompt, answer in items]
    for group in batches(range(len(items)), lengths, max_tokens):
        # The last token is not read, as in the decoding.
        batch = lm.batch([items[i][0] + items[i][1][:-1] for i in group], [len(items[i][0]) for i in group])
        mask = torch.zeros(batch.input_ids.shape, dtype=torch.bool)
        for place, i in enumerate(group):
            prompt, answer = items[i]
            mask[place, len(prompt) - 1 : len(prompt) - 1 + len(answer)] = True
        best = iter(bar(start.logits(batch, mask.to(batch.lengths.device)), banned).argmax(-1).tolist())
        for i in group:
            answer = items[i][1]
            result[i] = list(islice(best, len(answer))) == answer
    return result


def batches(items: Sequence[T], lengths: Sequence[int], max_tokens: int) -> Iterator[list[T]]:
    """Groups of items of like length, each with at most `max_tokens` tokens when padded to its longest."""
    order = sorted(range(len(items)), key=lambda i: lengths[i])
    group: list[T] = []
    for i in order:
        if group and (len(group) + 1) * lengths[i] > max_tokens:
            yield group
            group = []
        group.append(items[i])
    if group:
        yield group
