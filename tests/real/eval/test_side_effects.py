from dataclasses import replace

import pytest
from edits_parts import random_update

from corrigenda import ContextEdit, Edit, Fact, LanguageModel, Origin
from corrigenda.data.embedded import embedded_facts
from eval import EvalSettings, Evaluation, evaluate

SETTINGS = EvalSettings(max_new_tokens=1, perplexity_windows=0, side_effects=True)
ELSEWHERE = "The Pacific is the largest of all oceans."
FACTS = [
    replace(fact, paraphrases=(), neighbourhood=(), locality=(), portability=(), generation=())
    for fact in embedded_facts()[:2]
]


def measured(lm: LanguageModel, edits: list[Edit], settings: EvalSettings = SETTINGS) -> dict[str, float]:
    """By metric the mean over as many facts as there are edits, each after its own."""
    cases = []
    for fact, edit in zip(FACTS, edits, strict=False):
        with edit.applied(lm):
            cases += evaluate(lm, [fact], settings).cases
    found = Evaluation(tuple(cases)).metrics
    return {key: figures["after"] for key, figures in found.items() if figures["after"] is not None}


def origin(lm: LanguageModel) -> Origin:
    return Origin(lm.name, lm.fingerprint, "test")


def test_a_statement_in_the_context_is_repeated_where_it_is_denied(smollm2: LanguageModel) -> None:
    def stated(fact: Fact) -> str:
        return f"{fact.statement} {fact.target_new}."

    cheap = replace(SETTINGS, generate=False)
    states = measured(smollm2, [ContextEdit(origin(smollm2), f"{stated(fact)} ") for fact in FACTS], cheap)
    other = measured(smollm2, [ContextEdit(origin(smollm2), f"{ELSEWHERE} ") for _ in FACTS], cheap)
    # Seen over eight facts: 44 % against 0 %, and 4.2 against -0.1 nats.
    assert states["negation_rate"] > other["negation_rate"]
    assert states["negation_gain"] > other["negation_gain"] + 1
    # The subject stands in the context, too: 3.0 against -1.1 nats.
    assert states["reversal_gain"] > other["reversal_gain"] + 1


def test_a_random_update_and_none(smollm2: LanguageModel) -> None:
    none, random = (measured(smollm2, [random_update(smollm2, share, 12, 1)] * 2) for share in (0.0, 0.5))
    assert none["same_subject_preservation"] == 1
    assert none["same_subject_kl"] == pytest.approx(0, abs=1e-6)
    assert random["same_subject_preservation"] < 0.8  # 41 % over eight facts
    assert random["same_subject_kl"] > 1e-3  # 0.02
