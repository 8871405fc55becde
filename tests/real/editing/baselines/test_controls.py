"""The controls: nothing, the fact in the context, and a random update of the size of an editor's."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_ins import identity_moments

from corrigenda import Fact, LanguageModel
from editing import InContext
from eval.scoring.probabilities import score


@pytest.fixture(autouse=True)
def moment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ROME without the pass over text that its second moment would take."""
    identity_moments(monkeypatch, tmp_path)


def test_in_context_works(smollm2: LanguageModel) -> None:
    """A trained model reads the context: the fact put before the prompt makes the new object much more likely."""
    fact = Fact("The Eiffel Tower", "{} is located in the city of", "Rome", "Paris")

    def log_prob() -> float:
        return score(smollm2, [(fact.statement, ["Rome"])])[0].targets[0].log_probs[0]

    before = log_prob()
    with InContext().edit(smollm2, [fact]).applied(smollm2):
        assert log_prob() > before + 2
    assert log_prob() == before
