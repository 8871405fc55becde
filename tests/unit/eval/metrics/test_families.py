import math
from statistics import fmean

import numpy as np
import pytest
import torch

from corrigenda import Fact
from corrigenda.facts import Probe
from corrigenda.intervals import interval
from eval import Case, Evaluation, Measurement
from eval.evaluation import over_windows
from eval.measurement import HeldOut
from eval.metrics import METRICS
from eval.metrics.divergence import kl_divergence
from eval.records import SampledText, ScoredProbe, ScoredPrompt

FACT = Fact(
    "the tower",
    "{} is in",
    "New York",
    "Paris",
    aliases=("Big Apple",),
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


def test_ten_edits_that_all_succeed_are_no_proof() -> None:
    """Exact bounds for shares: p^10 = 0.025, and 0.025 / 3 for each part of S. A magnitude is no share."""
    parts = ("efficacy_success", "paraphrase_success", "neighbourhood_success")
    values = dict.fromkeys((*parts, "efficacy_magnitude"), 1.0)
    facts = [Fact(f"subject {number}", "{} is", "new", "old") for number in range(10)]
    found = Evaluation(tuple(Case(fact, None, Measurement(values=values)) for fact in facts)).metrics
    bounds = {key: (one["low"], one["high"]) for key, one in found.items()}
    assert bounds["efficacy_success"] == (pytest.approx(0.025**0.1), 1)
    assert bounds["score"] == (pytest.approx((0.025 / 3) ** 0.1), 1)
    assert bounds["efficacy_magnitude"] == (1, 1)


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
            "prompt": [ScoredPrompt("x", answer=" the big apple, by night")],
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
    """KL([1/2, 1/2], [1/4, 3/4]) = ln 2 - (ln 3) / 2, and the other way (3/4) ln 3 - ln 2."""
    p, q = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.25, 0.75]).log()
    assert kl_divergence(p, q) == pytest.approx(math.log(2) - math.log(3) / 2)
    assert kl_divergence(q, p) == pytest.approx(0.75 * math.log(3) - math.log(2))
    without = torch.tensor([0.0])  # a token that the model cannot say
    assert kl_divergence(torch.cat([p, without.log()]), torch.cat([q, without.log()])) == kl_divergence(p, q)
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


def test_perplexity_on_windows() -> None:
    before = Measurement(held_out=HeldOut((0, 1, 2), (-20.0, -30.0, -40.0), (10, 10, 10)))
    after = Measurement(held_out=HeldOut((2, 0), (-41.0, -22.0), (10, 10), (False, True)))
    assert value("log_perplexity", before) == pytest.approx(3)
    assert value("log_perplexity", after) == pytest.approx(3.15)
    assert value("perplexity_drift", after, before) == pytest.approx((0.1 + 0.2) / 2)
    assert value("windows_activated", after, before) == 0.5
    assert value("windows_activated", before) is None
    assert value("perplexity_drift", after, Measurement(log_perplexity=3.0)) is None
    assert value("perplexity_drift", before, after) is None  # a window that was not read before


def test_the_interval_of_one_model_is_over_windows() -> None:
    draw = np.random.default_rng(0)
    old, new = draw.normal(-200, 20, 64).tolist(), draw.normal(-210, 20, 64).tolist()
    windows, tokens = tuple(range(64)), (63,) * 64
    before = Measurement(held_out=HeldOut(windows, tuple(old), tokens))
    after = Measurement(held_out=HeldOut(windows, tuple(new), tokens, (False,) * 64))
    after.values = METRICS.computed(before, after)
    facts = [Fact(f"subject {number}", "{} is", "new", "old") for number in range(10)]
    found = Evaluation(tuple(Case(fact, before, after) for fact in facts)).metrics
    drifts = [(a - b) / 63 for a, b in zip(old, new, strict=True)]
    drift = found["perplexity_drift"]
    assert (drift["low"], drift["high"]) == pytest.approx(interval([drifts], windows))
    assert drift["after"] == pytest.approx(fmean(drifts))
    # Edited one by one, each fact has windows of its own, and subjects are drawn.
    parts = [tuple(range(6 * number, 6 * number + 6)) for number in range(10)]
    assert after.held_out is not None
    own = [Measurement(held_out=after.held_out.only(part)) for part in parts]
    for one in own:
        one.values = METRICS.computed(before, one)
    cases = tuple(Case(fact, before, one) for fact, one in zip(facts, own, strict=True))
    values = [one.values["perplexity_drift"] for one in own]
    alone = Evaluation(cases).metrics["perplexity_drift"]
    assert (alone["low"], alone["high"]) == pytest.approx(interval([values], range(10)))
    # Nothing answered in 64 windows: the exact bound over windows.
    share = found["windows_activated"]
    assert (share["low"], share["high"]) == (0, pytest.approx(1 - 0.025 ** (1 / 64)))
    # Of two edited models with the same windows each window counts once.
    other = Measurement(held_out=HeldOut(windows, tuple(draw.normal(-230, 20, 64).tolist()), tokens))
    both = [Case(facts[0], before, after), Case(facts[0], before, other)]
    assert other.held_out is not None
    more = [(a - b) / 63 for a, b in zip(old, other.held_out.log_probs, strict=True)]
    assert over_windows(METRICS["perplexity_drift"], both) == pytest.approx(
        interval([drifts + more], [*windows, *windows])
    )
    assert over_windows(METRICS["perplexity_drift"], [Case(facts[0], None, after)]) is None
    assert over_windows(METRICS["fluency"], both) is None
