from dataclasses import replace

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
