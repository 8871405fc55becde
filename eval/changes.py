"""Compares a model with the unedited one, prompt by prompt: how far distributions moved, and which answers stayed."""

from __future__ import annotations

from collections.abc import Sequence

from corrigenda import LanguageModel
from eval.metrics.divergence import kl_divergence
from eval.records import Measurement
from eval.scoring import continues_as
from eval.settings import EvalSettings


def compare_with_before(
    lm: LanguageModel, measurements: Sequence[Measurement], before: Sequence[Measurement], settings: EvalSettings
) -> None:
    """Records the KL from the distributions before, and whether the answers before are still given.

    Args:
        lm: a causal model, edited.
        measurements: of this model; the records get what was found.
        before: of the same facts on the unedited model, with distributions and answers.
        settings: how much is run at once.
    """
    for old, new in zip(before, measurements, strict=True):
        if old.distributions:
            pairs = zip(old.distributions, new.distributions, strict=True)
            for record, (p, q) in zip(new.compared(), pairs, strict=True):
                record.kl = kl_divergence(p, q)
    wanted = [
        (number, prompt)
        for number, (old, new) in enumerate(zip(before, measurements, strict=True))
        for prompt in dict.fromkeys(record.prompt for record in new.keeping())
        if prompt in old.answers
    ]
    if not wanted:
        return
    same = continues_as(
        lm, [(prompt, *before[number].answers[prompt]) for number, prompt in wanted], settings.max_tokens
    )
    for (number, prompt), kept in zip(wanted, same, strict=True):
        for answered in measurements[number].keeping():
            if answered.prompt == prompt:
                answered.preserved = kept
