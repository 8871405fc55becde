"""What settings are tuned for, by hand-computed numbers."""

from __future__ import annotations

import pytest

from corrigenda.settings import SettingsError
from jobs.tuning.objective import Objective, objective_for

FIGURES = {"score": 0.6, "preservation": 0.3, "free_generation_strict": 0.2, "perplexity_drift": 0.05}


def test_the_value() -> None:
    objective = Objective(("score", "preservation"), 0.1)
    assert objective.value(FIGURES) == pytest.approx(2 / (1 / 0.6 + 1 / 0.3))
    assert objective.value(FIGURES | {"preservation": 0.0}) == 0
    # Above the bound: below all that keep within it, and the less harm the better.
    assert objective.value(FIGURES | {"perplexity_drift": 0.4}) == pytest.approx(-0.3)
    assert Objective(("score", "preservation"), None).value(FIGURES | {"perplexity_drift": 9.0}) == pytest.approx(0.4)


def test_a_missing_figure_gives_no_value() -> None:
    assert Objective(("score",), 0.1).value({"score": 0.5}) is None
    assert Objective(("score",), 0.1).value({"perplexity_drift": 0.0}) is None
    assert Objective(("score",), None).value({"score": 0.5}) == 0.5


def test_what_the_data_set_declares() -> None:
    assert objective_for("counterfact", (), 0.1, FIGURES).metrics == ("score", "preservation")
    assert objective_for("zsre", (), 0.1, FIGURES).metrics == ("free_generation_strict", "preservation")
    assert objective_for("auto", (), 0.1, FIGURES).metrics == ("score", "preservation")
    assert objective_for("auto", ["free_generation_strict"], 0.1, FIGURES).metrics == ("free_generation_strict",)
    described = objective_for("counterfact", (), 0.1, FIGURES).in_words
    assert described.startswith("harmonic mean of score (S) and preservation")
    assert described.endswith(", with a perplexity drift of at most 0.1")


def test_what_was_not_measured_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"job\.metrics: paraphrase_success was not measured; these were: score, "):
        objective_for("zsre", ["paraphrase_success"], None, FIGURES)
    with pytest.raises(SettingsError, match="nothing that ranks such facts was measured; name some"):
        objective_for("zsre", (), None, {"token_accuracy": 0.5})
    with pytest.raises(SettingsError, match=r"job\.most_drift=0\.1: the perplexity drift was not measured"):
        objective_for("zsre", (), 0.1, {"free_generation_strict": 0.5})
    with pytest.raises(SettingsError, match=r"job\.metrics: perplexity_drift is no share of which high values are"):
        objective_for("zsre", ["perplexity_drift"], None, FIGURES)
    with pytest.raises(ValueError, match="there is no metric 'scor'"):
        objective_for("zsre", ["scor"], None, FIGURES)
