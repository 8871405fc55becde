import dataclasses
from pathlib import Path

import pytest

from corrigenda import Fact, LanguageModel
from corrigenda.data.read import read_facts
from corrigenda.moments.text import Text
from editing import CrispEdit, Editor, FineTune, UltraEdit
from eval import EvalSettings, evaluate

Figures = dict[str, tuple[float, float]]


@pytest.fixture(scope="module")
def facts(shared: Path) -> list[Fact]:
    """Four on which settings are chosen, with two neighbourhood prompts each."""
    found = read_facts(shared / "data" / "counterfact.json", offset=1004, limit=4)
    rest = {"generation": (), "locality": (), "portability": ()}
    return [dataclasses.replace(fact, neighbourhood=fact.neighbourhood[:2], **rest) for fact in found]


def measured(lm: LanguageModel, editor: Editor, facts: list[Fact]) -> Figures:
    """Each metric before and after."""
    with editor.edit(lm, facts).applied(lm):
        found = evaluate(lm, facts, EvalSettings(generate=False, perplexity_windows=4)).metrics
    return {key: (float(one["before"] or 0), float(one["after"] or 0)) for key, one in found.items()}


def test_ultraedit(smollm2: LanguageModel, facts: list[Fact]) -> None:
    found = measured(smollm2, UltraEdit(), facts)
    before, after = found["efficacy_success"]
    assert before < 0.5
    assert after > 0.85
    assert found["paraphrase_success"][1] > found["paraphrase_success"][0]
    assert abs(found["perplexity_drift"][1]) < 0.1


def test_crispedit_moves_neighbours_less_than_fine_tuning(smollm2: LanguageModel, facts: list[Fact]) -> None:
    # The curvature over fewer tokens than by default, and each one's gradients over few later tokens.
    short = Text(tokens=2048, length=16)
    crisp = measured(smollm2, CrispEdit(epochs=12, text=short, tokens_per_coefficient=1), facts[:2])
    plain = measured(smollm2, FineTune(epochs=12), facts[:2])
    for figures in (crisp, plain):
        before, after = figures["efficacy_success"]
        assert after > before + 0.3
    assert crisp["neighbourhood_kl"][1] < 0.5 * plain["neighbourhood_kl"][1]
