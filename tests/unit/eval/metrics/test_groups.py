import dataclasses

import pytest
import tiny
from edits_parts import random_update

from corrigenda import Fact, LanguageModel
from corrigenda.facts import Probe
from eval import METRICS, Case, EvalSettings, Evaluation, Measurement, measure
from eval.evaluation import failed, judged
from eval.records import ScoredProbe, ScoredPrompt

SMALL = EvalSettings(max_new_tokens=4, preservation_tokens=3, perplexity_windows=0)
ACCURACIES = ("token_accuracy", "free_generation_strict", "free_generation_lenient")
PORTABILITY = (
    Probe("the tower is in the country", "Italy", (), "multi_hop"),
    Probe("the city of the tower is in", "London", (), "multi_hop"),
    Probe("the Big tower is in", "Rome", ("Berlin",), "subject_aliasing"),
    Probe("in the tower one speaks", "Dutch"),
)
LOCALITY = (
    Probe("Big Ben is located in", "London", (), "relation_specificity"),
    Probe("the river is located in", "Paris", (), "forgetfulness"),
    Probe("Thomas plays the", "piano", (), "forgetfulness"),
)
FACT = Fact("tower", "the {} is in", "Rome", "Paris", locality=LOCALITY, portability=PORTABILITY)


lm = pytest.fixture(tiny.llama, scope="module")


def right_answers(lm: LanguageModel, fact: Fact) -> Fact:
    """The fact with what the model says as the answer to its first probe of each kind, so that figures differ."""
    first, *others = fact.portability
    answer = lm.generate(first.prompt, 1)
    return dataclasses.replace(fact, portability=(dataclasses.replace(first, answer=answer), *others))


def measured(lm: LanguageModel, fact: Fact) -> Case:
    (before,) = measure(lm, [fact], SMALL)
    with random_update(lm, 1.0).applied(lm):
        (after,) = measure(lm, [fact], SMALL, [before])
    return judged(fact, before, after)


def test_groups_by_another_way(lm: LanguageModel) -> None:
    fact = right_answers(lm, FACT)
    case = measured(lm, fact)
    for group in ("multi_hop", "subject_aliasing"):
        alone = measured(lm, dataclasses.replace(fact, portability=[p for p in fact.portability if p.group == group]))
        for key in ACCURACIES:
            for moment in ("before", "after"):
                values, expected = getattr(case, moment).values, getattr(alone, moment).values
                assert values[f"portability_{group}_{key}"] == expected[f"portability_{key}"]
    for group in ("relation_specificity", "forgetfulness"):
        alone = measured(lm, dataclasses.replace(fact, locality=[p for p in fact.locality if p.group == group]))
        assert case.after.values[f"preservation_{group}"] == alone.after.values["preservation"]
    assert case.before is not None
    assert case.before.values["portability_multi_hop_token_accuracy"] == 0.5  # one of two is what the model says
    assert case.before.values["portability_subject_aliasing_token_accuracy"] == 0.0


def test_a_group_takes_no_metrics_place() -> None:
    def said(word: str) -> Measurement:
        probe = ScoredProbe("a", content_word=word, group="same_subject")
        return Measurement({"locality": [probe], "same_subject": [ScoredPrompt("b", content_word="x")]})

    before, after = said("x"), said("y")
    assert METRICS.computed(before, after)["answer_kept_same_subject"] == 1


def test_groups_in_the_summary(lm: LanguageModel) -> None:
    case = measured(lm, FACT)
    metrics = Evaluation((case,)).metrics
    groups = {f"portability_{group}_{key}" for group in ("multi_hop", "subject_aliasing") for key in ACCURACIES}
    groups |= {"preservation_relation_specificity", "preservation_forgetfulness"}
    assert groups <= metrics.keys()
    assert set(list(metrics)[-len(groups) :]) == groups  # after the metrics that every data set has
    assert metrics["portability_multi_hop_token_accuracy"]["before"] is not None
    assert metrics["preservation_forgetfulness"]["before"] is None
    table = str(Evaluation((case,)))
    assert "multi hop: token accuracy" in table
    assert "relation specificity: preservation" in table
    again = Evaluation((Case.from_dict(case.to_dict()),)).metrics
    assert again == metrics


def test_without_groups_there_are_none(lm: LanguageModel) -> None:
    plain = [Probe(p.prompt, p.answer) for p in PORTABILITY]
    case = measured(lm, dataclasses.replace(FACT, portability=plain, locality=()))
    assert {key for key in case.after.values if key.startswith("portability_")} == {
        f"portability_{key}" for key in ACCURACIES
    }


def test_a_failed_edit_brought_nothing_about(lm: LanguageModel) -> None:
    (state,) = measure(lm, [right_answers(lm, FACT)], SMALL)
    assert state.values["portability_multi_hop_token_accuracy"] > 0
    values = failed(state).values
    assert values["portability_multi_hop_token_accuracy"] == 0.0
