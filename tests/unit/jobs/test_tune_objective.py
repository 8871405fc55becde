import pytest
import tiny
from omegaconf import OmegaConf

from corrigenda.data import FactSet
from corrigenda.errors import SettingsError
from jobs.tune import job
from jobs.tune.objective import Objective, objective_for

FIGURES = {"score": 0.6, "preservation": 0.3, "free_generation_strict": 0.2, "perplexity_drift": 0.05}
FIRST = {key: {"after": value} for key, value in FIGURES.items()}


def test_the_value() -> None:
    objective = Objective(("score", "preservation"), 0.1)
    assert objective.value(FIGURES) == pytest.approx(2 / (1 / 0.6 + 1 / 0.3))
    assert objective.value(FIGURES | {"preservation": 0.0}) == pytest.approx(2 / (1 / 0.6 + 100))
    # Above the bound: below all that keep within it, and the less harm the better.
    assert objective.value(FIGURES | {"perplexity_drift": 0.4}) == pytest.approx(-0.3)
    # Texts that are more likely than before are no harm, however much.
    assert objective.value(FIGURES | {"perplexity_drift": -0.4}) == pytest.approx(0.4)
    assert Objective(("score", "preservation"), None).value(FIGURES | {"perplexity_drift": 9.0}) == pytest.approx(0.4)


def test_a_missing_figure_gives_no_value() -> None:
    assert Objective(("score",), 0.1).value({"score": 0.5}) is None
    assert Objective(("score",), 0.1).value({"perplexity_drift": 0.0}) is None
    assert Objective(("score",), None).value({"score": 0.5}) == 0.5


def test_what_is_lost_against_the_first_trial() -> None:
    objective = Objective(("score",), 0.1, {"score": 0.5, "free_generation_strict": 0.25})
    assert objective.value(FIGURES) == pytest.approx(-0.05)
    assert objective.value(FIGURES | {"free_generation_strict": 0.25}) == pytest.approx(0.6)
    worst = objective.value(FIGURES | {"score": 0.3, "perplexity_drift": 0.4})
    assert worst == pytest.approx(-(0.2 + 0.05 + 0.3))
    assert objective.value({"score": 0.6, "perplexity_drift": 0.0}) is None


def test_what_the_data_set_declares() -> None:
    found = objective_for("counterfact", (), 0.1, 0.05, FIRST)
    assert found.metrics == ("score", "free_generation_strict", "preservation")
    assert found.floors == pytest.approx({"score": 0.55, "free_generation_strict": 0.15})
    assert found.value(FIGURES) is not None
    assert objective_for("zsre", (), 0.1, None, FIRST).metrics == ("free_generation_strict", "preservation")
    assert objective_for("zsre", (), 0.1, None, FIRST).floors == {}
    assert objective_for("auto", (), 0.1, 0.05, FIRST).metrics == found.metrics
    named = objective_for("auto", ["free_generation_strict", "preservation"], 0.1, 0.5, FIRST)
    assert named.metrics == ("free_generation_strict", "preservation")
    assert named.floors == {"free_generation_strict": 0.0}
    assert found.in_words == (
        "harmonic mean of score (S), free generation, strict and same ten words, with a perplexity "
        "drift of at most 0.1, and at least: score (S) 55.0, free generation, strict 15.0"
    )


def test_to_do_nothing_is_worth_nothing() -> None:
    objective = objective_for("counterfact", (), 0.1, None, FIRST)
    kept = {"score": 0.35, "free_generation_strict": 0.0, "preservation": 1.0, "perplexity_drift": 0.0}
    good = {"score": 0.88, "free_generation_strict": 0.85, "preservation": 0.32, "perplexity_drift": 0.01}
    weak = {"score": 0.76, "free_generation_strict": 0.5, "preservation": 0.40, "perplexity_drift": 0.0}
    values = [objective.value(one) for one in (kept, weak, good)]
    assert None not in values
    assert values == sorted(values, key=float)  # type: ignore[arg-type]
    assert float(values[0] or 0.0) < 0.05


def test_what_was_not_measured_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"job\.metrics: paraphrase_success was not measured; these were: score, "):
        objective_for("zsre", ["paraphrase_success"], None, None, FIRST)
    with pytest.raises(SettingsError, match="nothing that ranks such facts was measured; name some"):
        objective_for("zsre", (), None, None, {"token_accuracy": {"after": 0.5}})
    with pytest.raises(SettingsError, match=r"job\.most_drift=0\.1: the perplexity drift was not measured"):
        objective_for("zsre", (), 0.1, None, {"free_generation_strict": {"after": 0.5}})
    with pytest.raises(SettingsError, match=r"job\.metrics: perplexity_drift is no share of which high values are"):
        objective_for("zsre", ["perplexity_drift"], None, None, FIRST)
    with pytest.raises(ValueError, match="there is no metric 'scor'"):
        objective_for("zsre", ["scor"], None, None, FIRST)


def test_what_is_not_tuned_and_the_schema_make_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = tiny.build("llama")
    monkeypatch.setattr(job, "code_of", lambda *_: "code")

    def run_id(schema: str, *named: str) -> str:
        monkeypatch.setattr(job, "override_names", lambda: list(named))
        parts = {"editor": {"_target_": "editing.Memit"}, "data": {}, "job": {"trials": 3}}
        return job._identity(OmegaConf.create(parts), lm, FactSet("a", (), schema=schema))["id"]

    assert len({run_id("plain"), run_id("zsre"), run_id("plain", "editor.ratio")}) == 3
    assert run_id("plain", "job.trials") == run_id("plain")
