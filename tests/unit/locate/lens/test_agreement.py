import pytest
import tiny
import torch

from corrigenda import LanguageModel
from corrigenda.intervals import exact_share
from corrigenda.moments.text import Text
from locate.lens import agreement as module
from locate.lens.agreement import Agreement, agreement
from locate.lens.triggers import Triggers, trigger_examples

TEXT = Text(tokens=240, length=12)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS", 20)


def made() -> Agreement:
    """Two layers of three memories; the last of the second layer was never used."""
    return Agreement(
        n_vocabulary=10,
        top_tokens=torch.tensor([[4, 5, 6], [4, 5, -1]]),
        peaks=torch.tensor([[0.1, 0.5, 0.2], [0.9, 0.3, 0.99]]),
        next_tokens=torch.tensor([[[4, 1], [1, 5], [1, 1]], [[4, 4], [5, 1], [-1, -1]]]),
        ranks=torch.tensor([[0, 3, 7], [0, 0, 9]]),
        permuted_tokens=torch.tensor([[1, 4, 1], [5, 5, 4]]),
        permuted_ranks=torch.tensor([[3, 4, 6], [5, 0, 9]]),
    )


def test_shares_by_hand() -> None:
    found = made()
    assert found.chance == pytest.approx(0.1)
    [first, second] = found.by_layer["agreement"]
    assert (first.mean, first.n) == (pytest.approx(1 / 3), 3)
    assert (first.low, first.high) == exact_share(1 / 3, 3)
    assert (second.mean, second.n) == (1.0, 2)  # a memory that was never used is none of them
    assert [each.mean for each in found.by_layer["permuted"] if each] == [0.0, 0.5]
    assert found.median_ranks == {"rank": [3.0, 0.0], "permuted rank": [4.0, 0.0]}
    assert found.peaked == [(1, 0), (0, 1), (1, 1), (0, 2), (0, 0)]
    assert found.peaked_in() == {0: 3, 1: 2}
    assert {name: share.mean for name, share in found.of_peaked.items() if share} == {
        "top trigger": pytest.approx(3 / 5),
        "any trigger": pytest.approx(4 / 5),
    }


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "opt"])
def test_values_are_read_with_the_sign_of_the_top_trigger(family: str) -> None:
    lm = tiny.build(family)
    triggers = trigger_examples(lm, TEXT, 3)
    found = agreement(lm, triggers)
    norm, head = lm.architecture.final_norm, lm.architecture.head
    gamma = norm.weight + 1 if family == "gemma2" else norm.weight
    for layer in (0, tiny.DEPTH - 1):
        values = lm.memory(layer).values
        for neuron in range(len(values)):
            sign = triggers.coefficients[layer, neuron, 0].sign()
            if sign == 0:
                assert found.top_tokens[layer, neuron] == -1
                continue
            scores = head.weight @ (gamma * values[neuron] * sign)
            assert int(found.top_tokens[layer, neuron]) == int(scores.argmax())
            assert float(found.peaks[layer, neuron]) == pytest.approx(float(scores.softmax(0).max()), rel=1e-3)
            ids = triggers.ids(layer, neuron)
            text = triggers.tokens[int(triggers.texts[layer, neuron, 0])].tolist()
            after = scores[text[len(ids)]]
            assert int(found.ranks[layer, neuron]) == int((scores > after).sum())
        # The control has the same tokens, in another order.
        assert sorted(found.permuted_tokens[layer].tolist()) == sorted(triggers.next_tokens[layer, :, 0].tolist())


def test_a_memory_that_does_what_it_should_agrees(lm: LanguageModel) -> None:
    triggers = trigger_examples(lm, TEXT, 3)
    before = agreement(lm, triggers)
    # Each value of layer 2 becomes the direction of the token after its key's top trigger.
    head, gamma = lm.architecture.head.weight, lm.architecture.final_norm.weight
    # By the pseudo-inverse: of all directions those whose scores are nearest to 1 at the token and 0 elsewhere.
    directions = torch.linalg.pinv(head * gamma).T
    wanted = directions[triggers.next_tokens[2, :, 0].long()]
    lm.memory(2).add_to_values(triggers.coefficients[2, :, :1].sign() * wanted - lm.memory(2).values)
    found = agreement(lm, triggers)
    assert float(found.agrees[2].float().mean()) > 0.9 > float(before.agrees[2].float().mean())
    assert float(found.agrees_permuted[2].float().mean()) < 0.5
    assert torch.equal(found.top_tokens[1], before.top_tokens[1])


def test_nothing_to_agree_on_and_bad_input(lm: LanguageModel) -> None:
    triggers = trigger_examples(lm, TEXT, 3)
    unused = Triggers(True, "x", torch.zeros_like(triggers.coefficients), triggers.prefixes, triggers.tokens)
    nothing = agreement(lm, unused)
    assert nothing.by_layer["agreement"] == [None] * tiny.DEPTH
    assert nothing.summary()["agreement"] == {}
    with pytest.raises(ValueError, match="seed=-1 must be at least 0"):
        agreement(lm, triggers, seed=-1)
