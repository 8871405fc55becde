import dataclasses

import pytest
import tiny
import torch
from torch.nn.functional import cross_entropy

from corrigenda import LanguageModel
from corrigenda.dictionaries.dictionary import FeatureDictionary
from locate.features.figures import measure_dictionary, randomised
from locate.features.states import batches, ffn_states

TEXTS = [[1, *range(4 + n, 16 + n)] for n in range(20)]
EYE, NONE = torch.eye(tiny.WIDTH), torch.zeros(tiny.WIDTH)
WHOLE, ZERO = torch.cat([EYE, -EYE]), torch.zeros(2 * tiny.WIDTH)


lm = pytest.fixture(tiny.llama, scope="module")


def output(lm: LanguageModel) -> torch.Tensor:
    return torch.cat([ffn_states(lm, 1, lm.batch(some))[1][:, 1:].flatten(0, 1) for some in batches(TEXTS)])


def test_the_unit_vectors_explain_all_and_recover_all(lm: LanguageModel) -> None:
    found = measure_dictionary(lm, FeatureDictionary(1, WHOLE, ZERO, WHOLE, NONE), TEXTS)
    assert found.explained == pytest.approx(1, abs=1e-6)
    assert found.recovered == pytest.approx(1, abs=1e-4)
    assert found.l0 == tiny.WIDTH
    assert found.dead == 0
    assert found.tokens == 20 * 12
    logits = lm.model(torch.tensor(TEXTS)).logits[:, 1:-1]
    loss = cross_entropy(logits.flatten(0, 1), torch.tensor(TEXTS)[:, 2:].flatten())
    assert found.loss == pytest.approx(float(loss), abs=1e-5)


def test_the_mean_explains_nothing_and_recovers_nothing(lm: LanguageModel) -> None:
    mean = output(lm).mean(0)
    one = FeatureDictionary(1, WHOLE, ZERO - 1e6, WHOLE, mean)
    found = measure_dictionary(lm, one, TEXTS)
    assert found.explained == pytest.approx(0, abs=1e-5)
    assert found.recovered == pytest.approx(0, abs=1e-3)
    assert (found.l0, found.dead) == (0, 1)
    assert abs(found.ablated - found.loss) > 0.01


def test_figures_by_hand(lm: LanguageModel) -> None:
    y = output(lm).double()
    one = dataclasses.replace(FeatureDictionary(1, WHOLE, ZERO, WHOLE, NONE), k=1)
    found = measure_dictionary(lm, one, TEXTS, [{"tokens": 3.0, "unexplained": 0.5}])
    kept = torch.zeros_like(y)
    places = y.abs().argmax(1, keepdim=True)
    kept.scatter_(1, places, y.gather(1, places))
    assert found.explained == pytest.approx(
        1 - float((y - kept).square().sum() / (y - y.mean(0)).square().sum()), abs=1e-5
    )
    assert found.firing.sum() == pytest.approx(1)
    assert found.l0 == pytest.approx(1)
    assert found.curve == ((3.0, 0.5),)


def test_a_network_that_does_nothing_is_said_in_a_line() -> None:
    lm = tiny.build("llama")
    lm.memory(1).values.zero_()
    with pytest.raises(ValueError, match="layer 1 of tiny-llama does nothing over these texts, so that"):
        measure_dictionary(lm, FeatureDictionary(1, WHOLE, ZERO, WHOLE, NONE), TEXTS)


def test_random_weights_are_others_and_drawn_the_same_way_twice(lm: LanguageModel) -> None:
    one, two, other = (randomised(lm, seed) for seed in (0, 0, 1))
    assert one.fingerprint == two.fingerprint
    assert len({lm.fingerprint, one.fingerprint, other.fingerprint}) == 3
    assert one.n_layers == lm.n_layers
