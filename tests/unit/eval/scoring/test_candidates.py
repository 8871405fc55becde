import math

import pytest
import tiny
import torch

from corrigenda import Fact, LanguageModel
from eval.scoring.candidates import bits_known

CITIES = ("Paris", "Rome", "London", "Big Ben", "Berlin Germany city")


lm = pytest.fixture(tiny.llama, scope="module")


def fact(city: str) -> Fact:
    return Fact("Danielle Darrieux", "{} was born in the city of", city, relation="born")


def test_a_model_that_gives_all_tokens_alike() -> None:
    """With V tokens P is 1/V of Rome and 1/V^2 of Big Ben: of their sum the one has V / (V + 1), the other the rest."""
    lm, v = tiny.build("llama"), tiny.VOCABULARY
    lm.model.lm_head.weight.data.zero_()
    both = bits_known(lm, [fact("Rome"), fact("Big Ben")], {"born": ("Rome", "Big Ben")})
    assert both == pytest.approx([1 - math.log2(1 + 1 / v), 0.0], abs=1e-6)
    assert bits_known(lm, [fact("Rome")], {"born": ("Rome", "Paris", "London")}) == pytest.approx([0.0], abs=1e-6)


def test_of_each_candidate_all_tokens_count(lm: LanguageModel) -> None:
    """Against a whole forward of each prompt with each candidate."""
    joint = []
    for city in CITIES:
        ids = torch.tensor([lm.tokens(f"{fact(city).statement} {city}")])
        logs = lm.model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])
        joint.append(float(logs[-len(city.split()) :].double().sum().exp()))
    expected = [max(0, math.log2(5) + math.log2(p / sum(joint))) for p in joint]
    assert max(expected) > 0.1
    assert bits_known(lm, list(map(fact, CITIES)), {"born": CITIES}) == pytest.approx(expected, abs=1e-4)


def test_figures_that_are_no_numbers_are_no_knowledge() -> None:
    lm = tiny.build("llama")
    lm.model.lm_head.weight.data.fill_(math.nan)
    assert bits_known(lm, [fact("Rome")], {"born": CITIES}) == [0.0]


@pytest.mark.parametrize("values", [("Paris", "London"), ("Rome",), ("Rome", "Rome"), None])
def test_an_object_that_cannot_be_drawn_is_named(lm: LanguageModel, values: tuple[str, ...] | None) -> None:
    with pytest.raises(ValueError, match="'Rome' must be one of two or more candidates of its relation 'born'"):
        bits_known(lm, [fact("Rome")], {} if values is None else {"born": values})
