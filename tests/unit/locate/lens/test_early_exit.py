from dataclasses import replace

import pytest
import tiny
import torch

from corrigenda import LanguageModel
from corrigenda.forward.recording import forward_logits
from corrigenda.moments.text import Text
from locate.lens.early_exit import RULES, EarlyExitSettings, Observed, early_exit, exits_at, observe, settled_rates
from locate.lens.words import read_states

SMALL = EarlyExitSettings(text=Text(tokens=80, length=8), per_sequence=3, k=4)


def made() -> Observed:
    return Observed(
        sequences=torch.tensor([0, 1, 2]),
        tops=torch.tensor([[5, 7, 7, 7], [7, 5, 7, 7], [1, 1, 2, 3]]),
        probabilities=torch.tensor([[0.1, 0.6, 0.7, 0.9], [0.8, 0.2, 0.3, 0.4], [0.1, 0.2, 0.9, 0.2]]),
        dominant=torch.tensor([[[0, 2]] * 4, [[0, 3]] * 4, [[4, 3]] * 4]),
    )


def test_settled_and_patience_are_those_by_hand() -> None:
    assert made().settled.int().tolist() == [[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]]
    assert made().patience.tolist() == [[0, 0, 1, 2], [0, 0, 0, 1], [0, 1, 0, 0]]


def test_an_exit_is_at_the_first_layer_that_is_sure_enough() -> None:
    right, saved = exits_at(made().probabilities, made().tops, 0.6)
    assert right.tolist() == [True, True, False]
    assert saved.tolist() == [2, 3, 1]
    right, saved = exits_at(made().probabilities, made().tops, torch.inf)
    assert right.all()
    assert saved.tolist() == [0, 0, 0]


def test_rates_are_counts_drawn_to_the_layers_own() -> None:
    rates = settled_rates(made(), 2, 3)
    own = 2 / 3  # of layer 2, where two of three are settled
    assert rates.shape == (4, 6)
    assert rates[2].tolist() == pytest.approx(
        [(2 + 2 * own) / 4, own, (1 + 2 * own) / 3, (1 + 2 * own) / 4, (0 + 2 * own) / 3, own]
    )


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_what_is_observed_is_the_lens_and_the_dominant_values(family: str) -> None:
    lm = tiny.build(family)
    sequences = SMALL.text.sequences(lm)
    seen = observe(lm, sequences, SMALL)
    assert seen.tops.shape == (30, tiny.DEPTH)
    assert seen.dominant.shape == (30, tiny.DEPTH, 4)
    whole = observe(lm, sequences[:1], replace(SMALL, per_sequence=100))
    with torch.no_grad(), lm.memory(2).capture() as memory:
        logits = forward_logits(lm, lm.batch(sequences[:1]))[0]
    assert torch.equal(whole.tops[:, -1], logits.argmax(-1))
    assert torch.allclose(whole.probabilities[:, -1], logits.softmax(-1).amax(-1), atol=1e-5)
    m = memory.coefficients[0]
    order = (m.abs() * lm.memory(2).values.norm(dim=1)).argsort(dim=1, descending=True)[:, :4]
    assert torch.equal(whole.dominant[:, 2], 2 * order + (m.gather(1, order) < 0))
    assert read_states(lm, torch.zeros(0, tiny.WIDTH)).shape[0] == 0


def test_three_rules_are_taught_and_measured() -> None:
    found = early_exit(tiny.build("llama"), SMALL)
    assert (found.n_taught, found.n, found.n_sequences) == (15, 15, 5)
    assert set(found.chosen) == set(RULES)
    for figures in found.chosen.values():
        assert 0 <= figures["accuracy"][0] <= 1
        assert 0 <= figures["saved"][0] <= tiny.DEPTH - 1
    # With no threshold nothing is saved, and nothing is wrong.
    for rule in range(3):
        last = found.accuracy[rule].isfinite().nonzero().max()
        assert float(found.accuracy[rule, last]) == 1
        assert float(found.saved[rule, last]) == 0
    assert float(found.settled[-1]) == 1


def test_the_rule_of_sub_updates_by_hand(lm: LanguageModel) -> None:
    settings = replace(SMALL, target=0.4)
    found = early_exit(lm, settings)
    seen = observe(lm, SMALL.text.sequences(lm), settings)
    taught, wanted = range(15), range(15, 30)
    threshold = found.chosen["sub_updates"]["threshold"]
    right, saved = [], []
    for position in wanted:
        exits = tiny.DEPTH - 1
        for layer in reversed(range(tiny.DEPTH - 1)):
            own = sum(bool(seen.settled[p, layer]) for p in taught) / 15
            rates = []
            for value in seen.dominant[position, layer].tolist():
                here = [bool(seen.settled[p, layer]) for p in taught if value in seen.dominant[p, layer].tolist()]
                rates.append((sum(here) + 5 * own) / (len(here) + 5))
            if sum(rates) / len(rates) >= threshold:
                exits = layer
        right.append(bool(seen.tops[position, exits] == seen.tops[position, -1]))
        saved.append(tiny.DEPTH - 1 - exits)
    assert 0 < sum(saved) / 15 < tiny.DEPTH - 1  # else the scores would not matter
    assert found.chosen["sub_updates"]["saved"][0] == pytest.approx(sum(saved) / 15)
    assert found.chosen["sub_updates"]["accuracy"][0] == pytest.approx(sum(right) / 15)


def test_the_threshold_is_learned_from_one_half_and_measured_on_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def observed(*_: object) -> Observed:
        """Sequences 0 to 4 change their token in the last layer, 5 to 9 never do."""
        tops = torch.tensor([[1, 1, 1, 2]] * 5 + [[3, 3, 3, 3]] * 5)
        sure = torch.full((10, 4), 0.5)
        return Observed(torch.arange(10), tops, sure, torch.zeros(10, 4, 2, dtype=torch.long))

    monkeypatch.setattr("locate.lens.early_exit.observe", observed)
    found = early_exit(tiny.build("llama"), SMALL)
    assert found.settled.tolist() == [1, 1, 1, 1]
    assert found.chosen["top_probability"]["threshold"] is None
    assert found.chosen["top_probability"]["saved"][0] == 0


def test_a_model_that_settles_at_once_needs_no_further_layer(lm: LanguageModel) -> None:
    for layer in range(1, tiny.DEPTH):  # what comes after the first layer adds nothing
        lm.memory(layer).values.zero_()
        lm.architecture.attention_output(layer).weight.data.zero_()
    found = early_exit(lm, SMALL)
    assert found.settled.tolist() == [1.0] * tiny.DEPTH
    for rule in RULES:
        assert found.chosen[rule]["accuracy"][0] == 1
        assert found.chosen[rule]["saved"][0] == tiny.DEPTH - 1


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="there are 1 sequences"):
        early_exit(tiny.build("llama"), replace(SMALL, text=Text(tokens=8, length=8)))
