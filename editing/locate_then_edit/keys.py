"""One run over a fact's prompts in all their contexts: the subject's keys, the old value, and where v* is solved from.

Editors that write at the subject's last token (ROME and its descendants) all start here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.forward.recording import Recording
from corrigenda.forward.shared import record_shared
from corrigenda.prompts import TokenBatch, encode, encode_target, slot_in, subject_span


@dataclass(frozen=True)
class Prompts:
    """The rows of several facts: each statement after each prefix, with the target's tokens but the last.

    After them all comes, for each fact, a prompt about the subject whose continuation is to stay as it is.

    Attributes:
        batch: the rows' tokens, fact by fact, prefix by prefix (the bare prompt first).
        fact: (row,), which fact a row belongs to.
        subject: (row,), the position of the subject's last token.
        predicts: (row, position), where the target's tokens are predicted, or the distribution is to be kept.
        targets: (n,), those tokens, in the order of `predicts`; -1 where the distribution is to be kept.
        rewriting: (row,), False for the rows about what is to be kept.
        at_start: (fact,), whether the subject ends at the very first token of the bare prompt.
    """

    batch: TokenBatch
    fact: Tensor
    subject: Tensor
    predicts: Tensor
    targets: Tensor
    rewriting: Tensor
    at_start: Tensor

    @property
    def bare(self) -> Tensor:
        """(fact,), the first row of each fact: its bare prompt."""
        first = torch.ones_like(self.fact, dtype=torch.bool)
        first[1:] = self.fact[1:] != self.fact[:-1]
        return (first & self.rewriting).nonzero()[:, 0]


def build_prompts(
    lm: LanguageModel,
    facts: Sequence[Fact],
    prefixes: Sequence[str],
    kept_prompt: str,
    kept_position: Literal["subject", "last"],
) -> Prompts:
    """The rows that an edit of `facts` is computed on.

    Args:
        lm: the model.
        facts: the facts; each needs a `target_new`.
        prefixes: the texts that stand before the statements; the first is empty.
        kept_prompt: the prompt whose continuation is to stay as it is, with one ``{}``.
        kept_position: where it is to stay: at the subject's last token, or at the prompt's.

    A subject that ends at the very first token is left out without a prefix, where there are others: the first
    position's activations are unlike any other's in most models (attention sinks), so a key taken there stands for
    "the beginning of the text" more than for the subject, and an update along it breaks every text ("The Fall of
    ROME", Yang et al. 2024). Such an edit then holds wherever something precedes the subject.
    """
    rows: list[list[int]] = []
    owner, subject = [], []
    predicted: list[tuple[int, list[int]]] = []  # for each row the first predicting position, and what it predicts
    at_start = []
    for number, fact in enumerate(facts):
        assert fact.target_new is not None
        _, end = subject_span(lm.tokenizer, fact.statement, fact.subject, fact.prompt.index("{}"))
        at_start.append(end == 1)
        contexts = prefixes[1:] if end == 1 and len(prefixes) > 1 else prefixes
        for prefix in contexts:
            prompt = lm.reads(prefix + fact.statement)
            ids = encode(lm.tokenizer, prompt)
            target = encode_target(lm.tokenizer, prompt, fact.target_new)
            rows.append(ids + target[:-1])
            owner.append(number)
            slot = slot_in(prompt, fact.prompt, fact.subject)
            subject.append(subject_span(lm.tokenizer, prompt, fact.subject, slot)[1] - 1)
            predicted.append((len(ids) - 1, target))
    n_rewriting = len(rows)
    for number, fact in enumerate(facts):
        prompt = lm.reads(kept_prompt.replace("{}", fact.subject))
        end = subject_span(lm.tokenizer, prompt, fact.subject, slot_in(prompt, kept_prompt, fact.subject))[1]
        ids = encode(lm.tokenizer, prompt)
        rows.append(ids[:end] if kept_position == "subject" else ids)
        owner.append(number)
        subject.append(end - 1)
        predicted.append((len(rows[-1]) - 1, [-1]))
    batch = lm.batch(rows)
    predicts = torch.zeros(batch.input_ids.shape, dtype=torch.bool)
    for row, (first, tokens) in enumerate(predicted):
        predicts[row, first : first + len(tokens)] = True
    device = batch.input_ids.device
    return Prompts(
        batch=batch,
        fact=torch.tensor(owner, device=device),
        subject=torch.tensor(subject, device=device),
        predicts=predicts.to(device),
        targets=torch.tensor([token for _, tokens in predicted for token in tokens], device=device),
        rewriting=torch.arange(len(rows), device=device) < n_rewriting,
        at_start=torch.tensor(at_start),
    )


@dataclass(frozen=True)
class Rewrites:
    """The prompts of several facts, run once.

    Attributes:
        prompts: the rows.
        recording: where partial forwards at `layer` start from.
        layer: the layer to be edited.
        bare_keys: (fact, d_ffn), the coefficients at the subject's last token of each fact's first row: the bare
            prompt, unless that is left out (see `build_prompts`).
        mean_keys: (fact, d_ffn), k*, their mean over all rows of the fact.
        old_values: (fact, d_model), v0, the FFN's output at the subject's last token of the first row.
    """

    prompts: Prompts
    recording: Recording
    layer: int
    bare_keys: Tensor
    mean_keys: Tensor
    old_values: Tensor


def run_prompts(lm: LanguageModel, prompts: Prompts, layer: int) -> Rewrites:
    """Runs the rows once, and what they begin with in common once for all; the only full forward an edit needs."""
    layers = [number for number in (layer, layer + 1) if number < lm.n_layers]
    forward = record_shared(lm, prompts.batch, layers, limit=prompts.subject)
    with lm.memory(layer).capture(forward.local(prompts.subject)) as seen:
        recording = forward.record(layers)
    rewriting = prompts.rewriting
    keys, outputs = seen.coefficients.float(), seen.output.float()
    n_facts = len(prompts.at_start)
    rows = torch.bincount(prompts.fact[rewriting], minlength=n_facts)
    sums = torch.zeros(n_facts, keys.shape[1], device=keys.device)
    sums.index_add_(0, prompts.fact[rewriting], keys[rewriting])
    return Rewrites(prompts, recording, layer, keys[prompts.bare], sums / rows[:, None], outputs[prompts.bare])
