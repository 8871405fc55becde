"""Each family of metrics on records whose figures were worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from corrigenda import Fact
from corrigenda.facts import Probe
from eval import Case, Evaluation, Measurement
from eval.metrics import METRICS
from eval.metrics.divergence import kl_divergence
from eval.records import SampledText, ScoredProbe, ScoredPrompt

FACT = Fact(
    "the tower",
    "{} is in",
    "New York",
    "Paris",
    locality=(Probe("one", "two", (), "numbers"), Probe("red", "blue", (), "colours"), Probe("red", "blue")),
    portability=(Probe("so it is in", "America", ("the USA",), "hops"), Probe("there they speak", "English")),
)


def value(key: str, after: Measurement, before: Measurement | None = None) -> float | None:
    metric = METRICS.find(key)
    assert metric is not None
    return metric.compute(before, after)


def pair(p_new: list[float], p_true: list[float], **more: object) -> ScoredPrompt:
    """A prompt where the objects' tokens have these probabilities."""
    logs = tuple(map(math.log, p_new)), tuple(map(math.log, p_true))
    return ScoredPrompt("x", *logs, **more)  # type: ignore[arg-type]


def test_success_and_magnitude() -> None:
    found = Measurement(
        {
            "prompt": [pair([0.6], [0.3])],
            # sqrt(0.9 * 0.1) = 0.3 against 0.2; and 0.125 against 0.125
            "paraphrases": [pair([0.9, 0.1], [0.2]), pair([0.125], [0.125])],
            "neighbourhood": [pair([0.1], [0.7]), pair([0.5], [0.4])],
            "neighbourhood_plus": [pair([0.6], [0.3])],
        }
    )
    METRICS.judge(FACT, found)
    assert value("efficacy_success", found) == 1
    assert value("efficacy_magnitude", found) == pytest.approx(0.3)
    assert value("paraphrase_success", found) == 0.5  # a tie is no success
    assert value("paraphrase_magnitude", found) == pytest.approx((0.3 - 0.2) / 2)
    assert value("neighbourhood_success", found) == 0.5
    assert value("neighbourhood_magnitude", found) == pytest.approx((0.6 - 0.1) / 2)
    assert value("neighbourhood_success_plus", found) == 0


def test_without_an_old_object_there_is_no_success() -> None:
    found = Measurement({"prompt": [ScoredPrompt("x", (-0.5,), token_accuracy=1.0)]})
    METRICS.judge(FACT, found)
    assert found.scored("prompt")[0].p_new is None
    assert value("efficacy_success", found) is value("efficacy_magnitude", found) is None
    assert METRICS.computed(None, found) == {"token_accuracy": 1.0}


def test_score_is_the_harmonic_mean_of_means() -> None:
    parts = ("efficacy_success", "paraphrase_success", "neighbourhood_success")
    rows = ((1.0, 0.5, 1.0), (1.0, 0.0, 0.5))
    cases = [Case(FACT, None, Measurement(values=dict(zip(parts, row, strict=True)))) for row in rows]
    cases.append(Case(FACT, None, Measurement(values={"efficacy_success": 0.0})))  # without the others: in no score
    found = Evaluation(tuple(cases)).metrics["score"]
    assert found["after"] == pytest.approx(3 / (1 / 1 + 1 / 0.25 + 1 / 0.75))
    assert found["n"] == 2
    assert METRICS["score"].aggregate([[1.0], [0.0], [1.0]]) == 0
    assert value("score", Measurement()) is None


def test_token_accuracy() -> None:
    found = Measurement(
        {
            "prompt": [ScoredPrompt("x", token_accuracy=0.5)],
            "paraphrases": [ScoredPrompt("x", token_accuracy=0.25), ScoredPrompt("x", token_accuracy=0.75)],
            "portability": [ScoredProbe("x", token_accuracy=1.0), ScoredProbe("x", token_accuracy=0.5)],
        }
    )
    METRICS.judge(FACT, found)
    assert value("token_accuracy", found) == 0.5
    assert value("paraphrase_token_accuracy", found) == 0.5
    assert value("portability_token_accuracy", found) == 0.75
    assert value("portability_hops_token_accuracy", found) == 1.0
    assert METRICS.computed(None, found)["portability_hops_token_accuracy"] == 1.0
    assert value("portability_others_token_accuracy", found) is None


def test_free_generation() -> None:
    found = Measurement(
        {
            "prompt": [ScoredPrompt("x", answer=" the new york harbour")],
            "paraphrases": [ScoredPrompt("x", answer="in New York"), ScoredPrompt("x", answer="New Yorkshire")],
            "portability": [ScoredProbe("x", answer="the USA!"), ScoredProbe("x", answer="American English")],
        }
    )
    METRICS.judge(FACT, found)
    assert [value(f"free_generation_{how}", found) for how in ("strict", "lenient")] == [1, 1]
    assert [value(f"paraphrase_free_generation_{how}", found) for how in ("strict", "lenient")] == [0, 0.5]
    assert [value(f"portability_free_generation_{how}", found) for how in ("strict", "lenient")] == [0.5, 1]
    assert value("portability_hops_free_generation_strict", found) == 1
    assert [record.strict for record in found.scored("paraphrases")] == [False, False]


def test_preservation_counts_each_prompt_once() -> None:
    found = Measurement(
        {
            "neighbourhood": [ScoredPrompt("near", preserved=True), ScoredPrompt("red", preserved=False)],
            "locality": [
                ScoredProbe("one", preserved=True),
                ScoredProbe("red", preserved=False),
                ScoredProbe("red", preserved=False),
            ],
        }
    )
    METRICS.judge(FACT, found)
    assert value("preservation", found) == pytest.approx(2 / 3)
    assert value("preservation_numbers", found) == 1
    assert value("preservation_colours", found) == 0


def test_blank_answers_are_counted_once_a_prompt() -> None:
    found = Measurement(
        {
            "neighbourhood": [ScoredPrompt("near", blank=True), ScoredPrompt("red", blank=False), ScoredPrompt("far")],
            "locality": [ScoredProbe("red", blank=False), ScoredProbe("one", blank=False)],
        }
    )
    assert value("blank_answers", found, Measurement()) == pytest.approx(1 / 3)
    assert value("blank_answers", found) is None  # of an unedited model alone nothing is to be preserved
    assert value("blank_answers", Measurement({"prompt": [ScoredPrompt("x")]}), Measurement()) is None


def test_the_same_tokens() -> None:
    before = Measurement({"locality": [ScoredProbe("a", most_likely=[1, 2]), ScoredProbe("b", most_likely=[3])]})
    after = Measurement({"locality": [ScoredProbe("a", most_likely=[1, 9]), ScoredProbe("b", most_likely=[3])]})
    assert value("locality_token_agreement", after, before) == 0.75
    assert value("locality_token_agreement", after) is None


def test_divergence() -> None:
    """KL([1/2, 1/4, 1/4], [1/4, 1/2, 1/4]) = (1/2 - 1/4) ln 2."""
    p, q = torch.tensor([0.5, 0.25, 0.25]).log(), torch.tensor([0.25, 0.5, 0.25]).log()
    assert kl_divergence(p, q) == pytest.approx(0.25 * math.log(2))
    found = Measurement({"neighbourhood": [ScoredPrompt("x", kl=0.1), ScoredPrompt("y", kl=0.3), ScoredPrompt("z")]})
    assert value("neighbourhood_kl", found) == pytest.approx(0.2)
    assert value("locality_kl", found) is None
    found.prompts["locality"] = [ScoredProbe("x", kl=0.5), ScoredProbe("y", kl=1.0), ScoredProbe("z")]
    assert value("locality_kl", found) == pytest.approx(0.75)
    assert value("neighbourhood_kl", found) == pytest.approx(0.2)


def test_fluency() -> None:
    # 2-grams "1 2" and "2 1", twice each: one bit; 3-grams "1 2 1" twice, "2 1 2" once
    three = -(2 / 3 * math.log2(2 / 3) + 1 / 3 * math.log2(1 / 3))
    found = Measurement({"generation": [SampledText("x", "1 2 1 2 1"), SampledText("x", "7 7 7 7")]})
    METRICS.judge(FACT, found)
    assert value("fluency", found) == pytest.approx((2 / 3 * 1 + 4 / 3 * three) / 2 / 2)


def test_perplexity() -> None:
    before, after = Measurement(log_perplexity=3.0), Measurement(log_perplexity=3.25)
    assert value("perplexity_drift", after, before) == 0.25
    assert value("perplexity_drift", after) is None
    assert METRICS.computed(None, after) == {"log_perplexity": 3.25}
