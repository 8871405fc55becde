from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch
from by_hooks import logits
from malformed_parts import refused

from corrigenda import Edit, Fact, LanguageModel, Origin, ValueEdit
from corrigenda.errors import UnsupportedModelError
from corrigenda.forward.recording import forward_logits
from corrigenda.prompts import encode
from locate import Circuit, Circuits, circuit_change, knowledge_circuit
from locate.circuits.results import CircuitSurvey
from locate.question import UnknownFactError

FORM = "the {} tower is located in the city of"
FACT = Fact("Eiffel", FORM, target_new="Rome", target_true="Paris")
BERLIN, LONDON, PARIS = (
    Fact(name, FORM, None, city) for name, city in [("red", "Berlin"), ("Big", "London"), ("a", "Paris")]
)


lm = pytest.fixture(tiny.llama, scope="module")


def found(
    lm: LanguageModel, fact: Fact = FACT, others: Any = (BERLIN, LONDON), answer: str = "Paris", **settings: Any
) -> Circuit:
    return knowledge_circuit(lm, fact, answer, others, **({"steps": 2, "exact": 2} | settings))


def logit_difference(lm: LanguageModel, prompt: str, other: str) -> float:
    batch = lm.batch([encode(lm.tokenizer, prompt)])
    with torch.no_grad():
        logits = forward_logits(lm, batch, batch.lengths - 1)[0]
    one, two = (encode(lm.tokenizer, name)[0] for name in ("Paris", other))
    return float(logits[one] - logits[two])


def test_the_metric_is_that_of_the_prompt_and_of_the_counterfactual(lm: LanguageModel) -> None:
    circuit = found(lm)
    assert circuit.counterfactual == FORM.format("red")
    assert circuit.objects == ("Paris", "Berlin")
    wanted = [logit_difference(lm, FORM.format(name), "Berlin") for name in ("red", "Eiffel")]
    assert circuit.ends.tolist() == pytest.approx(wanted, abs=1e-4)
    assert circuit.values[:, -1].tolist() == pytest.approx([wanted[1]] * 3, abs=1e-4)
    assert float(circuit.written_by().sum()) == pytest.approx(float(circuit.scores.sum()), abs=1e-4)


def test_the_exact_scores_of_the_first_edges_stand_beside_theirs(lm: LanguageModel) -> None:
    circuit = found(lm)
    assert circuit.exact_edges.tolist() == circuit.order[:2].tolist()
    assert (circuit.exact - circuit.scores[circuit.exact_edges]).abs().max() < 0.5 * circuit.exact.abs().max()


def test_exact_scores_of_edges_that_are_named(lm: LanguageModel) -> None:
    pair = ("embedding", "0.head 1.v")
    circuit = found(lm, exact=0, edges=[pair], controls=["random"])
    [edge] = circuit.exact_edges.tolist()
    assert circuit.edge(edge) == pair
    assert circuit.by == ("score", "random")
    assert circuit.summary()["exact"] == [[*pair, float(circuit.exact)]]
    assert circuit.table().row_count == 11 - (edge in circuit.order[:10])
    Circuits(edges=(("0.head 1", "0.ffn"),)).check(lm)
    refused(ValueError, r"there is no source '9\.ffn'", Circuits(edges=(("9.ffn", "logits"),)).check, lm)


@pytest.mark.parametrize("ablation", ["mean", "zero"])
def test_other_ablations_end_elsewhere(lm: LanguageModel, ablation: str) -> None:
    """With the mean over the two others a circuit of no edge says what it says; with all it is the prompt's."""
    plain, other = found(lm), found(lm, ablation=ablation)
    assert float(other.ends[1]) == pytest.approx(float(plain.ends[1]), abs=1e-4)
    assert float(other.ends[0]) != pytest.approx(float(plain.ends[0]), abs=1e-3)


def test_a_log_probability_with_zeros_needs_no_counterfactual(lm: LanguageModel) -> None:
    circuit = found(lm, others=(), ablation="zero", metric="log_probability")
    assert (circuit.other, circuit.counterfactual) == (None, "")


def test_a_space_alone_before_the_answer_is_not_what_is_followed() -> None:
    lm = tiny.build_byte_level()
    space, one = lm.tokenizer(" 1")["input_ids"]
    circuit = found(lm, tiny.NUMBER, (), "1949", ablation="zero", metric="log_probability")
    said = logits(lm, [*lm.tokens(tiny.NUMBER.statement), space])[-1]
    assert circuit.objects[0] == "1"
    assert float(circuit.ends[1]) == pytest.approx(float(said.log_softmax(-1)[one]), abs=1e-4)


@pytest.mark.parametrize(
    ("others", "settings", "said"),
    [
        (replace(BERLIN, subject="Big Ben"), {}, "take a subject of as many tokens"),
        (PARIS, {}, "begins as 'Paris' does"),
        (Fact("red", FORM, "Rome"), {}, "has no true object"),
        ((PARIS,), {}, "there is no counterfactual"),
        ((BERLIN,), {"ablation": "mean"}, "a mean is over two or more"),
        ((), {"method": "acdc"}, "method='acdc'"),
        ((), {"steps": 0}, "steps=0"),
    ],
)
def test_what_does_not_fit_is_said(lm: LanguageModel, others: Any, settings: dict[str, Any], said: str) -> None:
    refused(ValueError, said, found, lm, others=others, **settings)


def test_models_without_a_graph_and_facts_that_are_not_known_are_refused(lm: LanguageModel) -> None:
    Circuits().check(lm)
    refused(UnsupportedModelError, "masked", Circuits().check, tiny.build("bert"))
    with pytest.raises(UnknownFactError):
        Circuits().find(lm, FACT, None, (BERLIN,))


def test_many_facts_have_the_faithfulness_of_their_mean_metric(lm: LanguageModel) -> None:
    circuits = [found(lm), found(lm, replace(FACT, subject="north"))]
    survey = CircuitSurvey.of(circuits)
    none, everything = torch.stack([each.ends for each in circuits]).mean(0).tolist()
    mean = float(torch.stack([each.values[0, 3] for each in circuits]).mean())
    assert survey.faithfulness["score"][3][0] == pytest.approx((mean - none) / (everything - none), abs=1e-4)
    refused(ValueError, "no circuit", CircuitSurvey.of, [])


def test_counterfactuals_about_the_new_object_come_last(lm: LanguageModel) -> None:
    """With an edit to it the two objects would be one."""
    assert found(lm, replace(FACT, target_new="Berlin")).other == LONDON
    assert found(lm, replace(FACT, target_new="London")).other == BERLIN


def known(lm: LanguageModel) -> tuple[Fact, Edit]:
    """A fact that the model says, with an edit of its weights."""
    batch = lm.batch([encode(lm.tokenizer, FACT.statement)])
    with torch.no_grad():
        says = lm.text([int(forward_logits(lm, batch, batch.lengths - 1)[0].argmax())])
    fact = replace(FACT, target_true=says, target_new="piano")
    change = torch.randn(lm.memory(1).values.shape, generator=torch.Generator().manual_seed(0))
    return fact, ValueEdit.of(lm, Origin(lm.name, lm.fingerprint, "drawn", {}, (fact,)), {1: change})


def test_an_edit_changes_which_edges_count(lm: LanguageModel) -> None:
    fact, edit = known(lm)
    change = circuit_change(lm, fact, edit, (BERLIN, LONDON), steps=1, exact=0)
    assert change.before.objects[0] == fact.target_true
    assert change.after.objects == ("piano", change.before.objects[1])
    assert change.after.by[-1] == "before"
    assert 0 <= change.overlap < 1
    assert float(change.gains.sum()) == pytest.approx(0, abs=1e-4)
    assert change.table().row_count == 10
    refused(ValueError, "needs its true and its new object", circuit_change, lm, replace(fact, target_true=None), edit)


def test_with_an_edit_the_counterfactual_and_the_mean_stay(lm: LanguageModel) -> None:
    fact, edit = known(lm)
    change = circuit_change(lm, fact, edit, (BERLIN, LONDON), ablation="mean", method="eap", exact=0, controls=())
    assert change.before.other == change.after.other == BERLIN
    assert (change.before.by, change.after.by) == (("score",), ("score", "before"))
    with edit.applied(lm):
        alone = found(lm, replace(fact, target_true=None), (BERLIN, LONDON), answer="piano", ablation="mean")
    assert change.after.ends.tolist() == pytest.approx(alone.ends.tolist(), abs=1e-5)
