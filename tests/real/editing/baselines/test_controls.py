"""The controls: nothing, the fact in the context, and a random update of the size of an editor's."""

from __future__ import annotations

import pytest
import torch

import editing.locate_then_edit.rome
from corrigenda import Fact, LanguageModel
from corrigenda.moments.second_moment import SecondMoment
from corrigenda.moments.text import Text
from editing import InContext
from eval.scoring.probabilities import score


@pytest.fixture(autouse=True)
def moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """ROME without the pass over text that its second moment would take."""

    def identity(lm: LanguageModel, layer: int, text: Text) -> SecondMoment:
        return SecondMoment(torch.eye(lm.memory(layer).d_ffn, dtype=torch.float64), 1, layer, text)

    monkeypatch.setattr(editing.locate_then_edit.rome, "second_moment", identity)


def test_in_context_works(smollm2: LanguageModel) -> None:
    """A trained model reads the context: the fact put before the prompt makes the new object much more likely."""
    fact = Fact("The Eiffel Tower", "{} is located in the city of", "Rome", "Paris")

    def log_prob() -> float:
        return score(smollm2, [(fact.statement, ["Rome"])])[0].targets[0].log_probs[0]

    before = log_prob()
    with InContext().edit(smollm2, [fact]).applied(smollm2):
        assert log_prob() > before + 2
    assert log_prob() == before
