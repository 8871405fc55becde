"""Compares a model with the unedited one, prompt by prompt: how far distributions moved, which continuations stayed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from corrigenda import LanguageModel
from corrigenda.forward.generation import Greedy, decode, never
from eval.measurement import Measurement
from eval.metrics.divergence import kl_divergence
from eval.scoring.fitting import Prepared
from eval.scoring.free_answers import batches_to_decode
from eval.scoring.probabilities import continues_as
from eval.settings import EvalSettings


def drop_ties(
    lm: LanguageModel, prepared: Sequence[Prepared], measurements: Sequence[Measurement], settings: EvalSettings
) -> None:
    """Takes away the continuations that the model itself does not give in the forward of `compare_with_before`.

    In half precision two tokens may be equally likely to within rounding, and decoding with a cache then takes another
    one than a forward over the whole row. Whether an edit kept such a continuation cannot be said. Their records say
    `tied`.

    Args:
        lm: the unedited model.
        prepared: the facts.
        measurements: of this model, with continuations.
        settings: how much is run at once.
    """
    if lm.dtype in (torch.float32, torch.float64):
        return
    places = [(number, prompt) for number, one in enumerate(measurements) for prompt in one.continuations]
    items = [(prepared[number].tokens[prompt], measurements[number].continuations[prompt]) for number, prompt in places]
    for (number, prompt), again in zip(places, continues_as(lm, items, settings.max_tokens, lm.end_ids), strict=True):
        if not again:
            del measurements[number].continuations[prompt]
            for record in measurements[number].keeping():
                if record.prompt == prompt:
                    record.tied = True


def compare_with_before(
    lm: LanguageModel,
    prepared: Sequence[Prepared],
    measurements: Sequence[Measurement],
    before: Sequence[Measurement],
    settings: EvalSettings,
) -> None:
    """Records the KL from the distributions before, and how the model goes on where its answers should stay.

    Whether a continuation, end tokens barred, is the same takes one forward over the prompt with the unedited model's;
    only those that are not are decoded.

    Args:
        lm: a causal model, edited.
        prepared: the facts.
        measurements: theirs; the records get what was found.
        before: of the same facts on the unedited model, with distributions and continuations.
        settings: how much is run at once.
    """
    for old, new in zip(before, measurements, strict=True):
        both = old.distributions.keys() & new.distributions.keys()
        kls = {prompt: kl_divergence(old.distributions[prompt], new.distributions[prompt]) for prompt in both}
        blank = {record.prompt: record.blank for record in old.keeping()}
        for record in new.keeping():
            record.kl, record.blank = kls.get(record.prompt), blank.get(record.prompt)
    old_of = {
        (number, prompt): old.continuations[prompt]
        for number, (old, new) in enumerate(zip(before, measurements, strict=True))
        for prompt in dict.fromkeys(record.prompt for record in new.keeping())
        if prompt in old.continuations
    }
    if not old_of:
        return
    items = [(prepared[number].tokens[prompt], tokens) for (number, prompt), tokens in old_of.items()]
    still = continues_as(lm, items, settings.max_tokens, lm.end_ids)
    now_of = {place: tokens for (place, tokens), kept in zip(old_of.items(), still, strict=True) if kept}
    others = [place for place in old_of if place not in now_of]
    rows = [prepared[number].tokens[prompt] for number, prompt in others]
    for places, prompts, start in batches_to_decode(lm, others, rows, settings):
        limits = [len(old_of[place]) for place in places]
        now_of |= zip(places, decode(lm, prompts, limits, Greedy(lm.end_ids), never, start), strict=True)
    for (number, prompt), now in now_of.items():
        kept = old_of[number, prompt]
        same = next((place for place, token in enumerate(now) if token != kept[place]), len(kept))
        for record in measurements[number].keeping():
            if record.prompt == prompt:
                record.answer, record.same_tokens, record.preserved = lm.text(now), same, same == len(kept)
