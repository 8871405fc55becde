"""Compares a model with the unedited one, prompt by prompt: how far distributions moved, which continuations stayed."""

from collections.abc import Sequence

import torch

from corrigenda import LanguageModel
from eval.measurement import Measurement
from eval.metrics.divergence import kl_divergence
from eval.scoring.fitting import Prepared
from eval.scoring.probabilities import continues_as
from eval.settings import EvalSettings


def drop_ties(
    lm: LanguageModel, prepared: Sequence[Prepared], measurements: Sequence[Measurement], settings: EvalSettings
) -> None:
    """Takes away the continuations that the unedited model itself does not give in one forward over the whole row.

    In half precision two tokens may be equally likely to within rounding, and decoding with a cache then takes another
    one than a forward over the whole row. Whether an edit kept such a continuation cannot be said. Their records say
    `tied`.
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


def compare_with_before(lm: LanguageModel, measurements: Sequence[Measurement], before: Sequence[Measurement]) -> None:
    """Records the KL from the distributions before, and how far the edited model goes on as before where it should.

    Both measurements are of the same facts, with continuations, those before with distributions.
    """
    for old, new in zip(before, measurements, strict=True):
        both = old.distributions.keys() & new.distributions.keys()
        kls = {prompt: kl_divergence(old.distributions[prompt], new.distributions[prompt]) for prompt in both}
        blank = {record.prompt: record.blank for record in old.keeping()}
        for record in new.keeping():
            record.kl, record.blank = kls.get(record.prompt), blank.get(record.prompt)
            if (now := new.continuations.get(record.prompt)) is not None:
                kept = old.continuations[record.prompt]
                same = next((place for place, token in enumerate(now) if token != kept[place]), len(kept))
                record.same_tokens, record.preserved = same, same == len(kept)
