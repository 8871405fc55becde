import math
from importlib.metadata import EntryPoint
from typing import Any

import pytest

import eval.metrics
from eval.evaluation import failed
from eval.leaderboard.columns import axes, columns, one_value, ranking
from eval.measurement import Measurement
from eval.metrics import METRICS, CurveColumn, LeaderboardColumn, Metric, Needs, Registry
from eval.protocols.curves import curve_columns

ACCURACIES = ("token_accuracy", "free_generation_strict", "free_generation_lenient")


def toy(key: str = "toy", **more: Any) -> Metric:
    declared = {"title": "a toy", "unit": "%", "better": "high", "needs": (Needs("probabilities", ("prompt",)),)}
    return Metric(key=key, compute=lambda before, after: 1.0, **(declared | more))  # type: ignore[arg-type]


REAL_USE = {
    f"{prefix}real_use_{setting}{way}"
    for prefix in ("", "paraphrase_")
    for setting in (
        "",
        *(f"{form}_{context}_" for form in ("plain", "chat") for context in ("bare", "context", "told")),
    )
    for way in ("match", "judged")
}


def test_what_an_edit_should_change() -> None:
    expected = {"efficacy_success", "paraphrase_success", "fact_check_success"}
    expected |= {f"{prefix}{key}" for prefix in ("", "paraphrase_", "portability_") for key in ACCURACIES}
    expected |= REAL_USE
    assert {key for key, metric in METRICS.items() if metric.edit_should == "change"} == expected
    state = Measurement(values={"preservation": 1.0, "efficacy_magnitude": 0.5, "from_elsewhere": 2.0})
    state.values |= {"token_accuracy": 1.0, "portability_hops_token_accuracy": 1.0, "preservation_hops": 1.0}
    lost = {"token_accuracy": 0.0, "portability_hops_token_accuracy": 0.0}
    assert failed(state).values == state.values | lost
    unknown = Measurement(values={"token_accuracy": math.nan, "from_elsewhere": math.nan})
    assert failed(unknown).values == {"token_accuracy": 0.0}


def test_what_tables_read() -> None:
    first = ("score", "preservation", "answer_kept", "first_token_kept", "bleed", "perplexity_drift")
    assert list(columns())[:6] == [*first]
    assert list(columns())[-2:] == ["seconds_per_edit", "peak_memory_mb"]
    assert {key for key, column in columns().items() if column.better == "low"} == {
        *("perplexity_drift", "windows_activated", "neighbourhood_kl", "locality_kl", "seconds_per_edit"),
        *("negation_rate", "same_subject_kl", "running_text_kl", "peak_memory_mb"),
        *("bleed", "bleed_same_subject", "bleed_running_text"),
    }
    assert ranking() == ["score", "efficacy_success", "token_accuracy"]
    assert axes() == {
        "across": ["efficacy_success", "free_generation_lenient", "token_accuracy"],
        "up": ["neighbourhood_success", "preservation", "neighbourhood_kl", "locality_kl"],
    }
    assert "blank_answers" not in columns()
    headings = list(curve_columns())
    assert headings[headings.index("preservation") + 1] == "blank_answers"
    assert headings[headings.index("fixed.preservation") + 1] == "fixed.blank_answers"
    assert list(curve_columns().items())[:3] == [
        ("right_after.token_accuracy", "right after"),
        ("token_accuracy", "reliability"),
        ("free_generation_strict", "free"),
    ]
    assert "perplexity_drift" in one_value("batch") & one_value("sequential")
    assert "perplexity_drift" not in one_value("single")
    assert "seconds_per_edit" in one_value("batch") - one_value("sequential")


def test_a_figure_that_rounds_to_zero_has_no_sign() -> None:
    of_shares, of_nats = METRICS["preservation"].written, METRICS["perplexity_drift"].written
    assert [of_shares.text(value) for value in (-0.0001, -0.001, 0.0005)] == ["0.0", "-0.1", "0.1"]
    assert [of_nats.text(value) for value in (-0.0004, -0.0006, 1.0)] == ["0.000", "-0.001", "1.000"]


def test_groups_are_found_by_their_keys() -> None:
    metric = METRICS.named("portability_multi_hop_free_generation_strict")
    assert (metric.line, metric.unit, metric.edit_should) == ("  multi hop: free generation strict", "%", "change")
    assert METRICS.named("preservation_forgetfulness").line == "  forgetfulness: preservation"
    assert METRICS.find("portability_token_accuracy") is METRICS["portability_token_accuracy"]
    keys = ["preservation_b", "token_accuracy", "preservation_a", "nothing", "preservation_a"]
    assert [metric.key for metric in METRICS.of_groups(keys)] == ["preservation_a", "preservation_b"]
    with pytest.raises(ValueError, match=r"fluency.*no groups"):
        METRICS["fluency"].of_group("a")


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(KeyError, match=r"eficacy_sucess.*efficacy_success"):
        METRICS["eficacy_sucess"]
    with pytest.raises(ValueError, match="did you mean preservation"):
        METRICS.named("presrvation")
    with pytest.raises(KeyError, match="the metrics are"):
        METRICS["zzz"]


def test_registering() -> None:
    registry = Registry((toy(),))
    with pytest.raises(ValueError, match="'toy' already"):
        registry.register(toy())
    registry.register(toy("other"))
    assert list(registry) == ["toy", "other"]
    assert registry.kinds("probabilities") == {"prompt"}
    assert registry.kinds("free_answers") == set()
    registry.remove("toy")
    assert "toy" not in registry
    with pytest.raises(KeyError, match="'toy'"):
        registry.remove("toy")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Needs("dreams"), "nothing measures 'dreams'"),  # type: ignore[arg-type]
        (lambda: Needs("free_answers", ("locality",)), "not measured on prompts of kind 'locality'"),
        (lambda: toy(better=None, column=LeaderboardColumn()), "better='high' or 'low'"),
        (lambda: toy(curve=(CurveColumn("fixed"),)), "needs probabilities \\['prompt'\\]"),
        (lambda: toy("a key"), "'a key' must be letters"),
        (lambda: toy(parts=("fluency",)), "both parts and combine"),
    ],
)
def test_a_bad_declaration_says_what_is_wrong(wrong: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong()


def test_installed_packages_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def found(group: str) -> list[EntryPoint]:
        asked.append(group)
        return [EntryPoint("broken", "no_such_module_of_metrics", group)]

    monkeypatch.setattr(eval.metrics, "entry_points", found)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_of_metrics"):
        eval.metrics.load_installed()
    assert asked == ["corrigenda.metrics"]
