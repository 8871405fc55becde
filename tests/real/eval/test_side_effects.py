from dataclasses import replace

import pytest
from edits_parts import random_update

from corrigenda import ContextEdit, Edit, LanguageModel, Origin
from corrigenda.data.embedded import embedded_facts
from eval import EvalSettings, evaluate

SETTINGS = EvalSettings(max_new_tokens=1, perplexity_windows=0, side_effects=True)
ELSEWHERE = "The Pacific is the largest of all oceans."
FACT = replace(embedded_facts()[3], paraphrases=(), neighbourhood=(), locality=(), portability=(), generation=())


def measured(lm: LanguageModel, edit: Edit, settings: EvalSettings = SETTINGS) -> dict[str, float]:
    """Each metric with the edit."""
    with edit.applied(lm):
        found = evaluate(lm, [FACT], settings).metrics
    return {key: figures["after"] for key, figures in found.items() if figures["after"] is not None}


def origin(lm: LanguageModel) -> Origin:
    return Origin(lm.name, lm.fingerprint, "test")


def test_a_statement_in_the_context_is_repeated_where_it_is_denied(smollm2: LanguageModel) -> None:
    cheap = replace(SETTINGS, generate=False)
    states, other = (
        measured(smollm2, ContextEdit(origin(smollm2), f"{text} "), cheap)
        for text in (f"{FACT.statement} {FACT.target_new}.", ELSEWHERE)
    )
    # Seen over eight facts: 44 % against 0 %, and 4.2 against -0.1 nats.
    assert states["negation_rate"] > other["negation_rate"]
    assert states["negation_gain"] > other["negation_gain"] + 1
    # The subject stands in the context, too: 3.0 against -1.1 nats.
    assert states["reversal_gain"] > other["reversal_gain"] + 1


def test_a_random_update_and_none(smollm2: LanguageModel) -> None:
    none, random = (measured(smollm2, random_update(smollm2, share, 12, 1)) for share in (0.0, 0.5))
    assert none["same_subject_preservation"] == 1
    assert none["same_subject_kl"] == pytest.approx(0, abs=1e-6)
    assert random["same_subject_preservation"] < 0.8  # 41 % over eight facts
    assert random["same_subject_kl"] > 1e-3  # 0.02
