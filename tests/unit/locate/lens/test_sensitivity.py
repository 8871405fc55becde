import math

import pytest
import tiny
import torch
from by_hooks import coefficients
from tokenizers.processors import TemplateProcessing

from corrigenda import LanguageModel
from corrigenda.moments.text import Text
from locate.lens import sensitivity as module
from locate.lens.sensitivity import Sensitivity, sensitivity
from locate.lens.triggers import trigger_examples

TEXT = Text(tokens=240, length=12)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOKENS", 40)


def coefficient(lm: LanguageModel, ids: list[int], layer: int, neuron: int) -> float:
    """At the last token of a text that is run alone."""
    return float(coefficients(lm, layer, ids)[-1, neuron])


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_changes_are_those_of_single_texts(family: str) -> None:
    lm = tiny.build(family)
    triggers = trigger_examples(lm, TEXT, 4)
    found = sensitivity(lm, triggers, neurons=5, top=2, seed=3)
    assert found.changes.shape == (tiny.DEPTH, 5, 2, 3)
    n_random = n_short = 0
    for layer in range(tiny.DEPTH):
        assert len(set(found.neurons[layer].tolist())) == 5
        for place, neuron in enumerate(found.neurons[layer].tolist()):
            for rank in range(2):
                ids = triggers.ids(layer, neuron, rank)
                was = coefficient(lm, ids, layer, neuron)
                shorter = [ids[:at] + ids[at + 1 :] for at in range(len(ids))]
                changes = [coefficient(lm, each, layer, neuron) / was - 1 if was else math.nan for each in shorter]
                first, last, between = found.changes[layer, place, rank].tolist()
                if len(ids) == 2:  # a first token alone would be left
                    assert found.changes[layer, place, rank].isnan().all()
                    n_short += 1
                    continue
                assert first == pytest.approx(changes[0], abs=1e-3, rel=1e-3, nan_ok=True)
                assert last == pytest.approx(changes[-1], abs=1e-3, rel=1e-3, nan_ok=True)
                if was:
                    n_random += 1
                    assert any(between == pytest.approx(each, abs=1e-3, rel=1e-3) for each in changes[1:-1])
    assert n_random > 10
    assert n_short > 0


def test_a_bos_is_no_token_of_the_text(lm: LanguageModel) -> None:
    lm.tokenizer._tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    triggers = trigger_examples(lm, TEXT, 2)
    found = sensitivity(lm, triggers, neurons=12, top=2)
    n_short = 0
    for place, neuron in enumerate(found.neurons[0].tolist()):
        for rank in range(2):
            ids = triggers.ids(0, neuron, rank)
            assert ids[0] == 1
            if len(ids) <= 3:
                n_short += 1
                assert found.changes[0, place, rank].isnan().all()
                continue
            was, then = (coefficient(lm, each, 0, neuron) for each in (ids, [1, *ids[2:]]))
            assert float(found.changes[0, place, rank, 0]) == pytest.approx(then / was - 1, abs=1e-3, rel=1e-3)
    assert 0 < n_short < 24


def test_means_count_each_neuron_once_and_leave_out_what_was_not_measured() -> None:
    nan = math.nan
    # Two layers, two neurons, two triggers; the second neuron of layer 0 has one measured trigger.
    last = torch.tensor([[[-0.2, -0.4], [-1.0, nan]], [[0.0, 0.0], [nan, nan]]])
    found = Sensitivity(torch.zeros(2, 2), torch.stack([last, last * 2, torch.full_like(last, nan)], dim=-1))
    [first, second] = found.by_layer["first"]
    assert (first.mean, first.n) == (pytest.approx(-0.65), 2)
    assert (second.mean, second.n, second.low) == (0, 1, None)
    assert found.by_layer["random"] == [None, None]
    assert found.summary()["by_layer"]["random"] == {}
    shallow = found.by_depth["shallow"]["last"]
    assert shallow.mean == pytest.approx(-1.3)
    with pytest.raises(ValueError, match="removed='second': the tokens that were removed are first, last, random"):
        found.of("second", [0])


def test_fewer_triggers_and_bad_input(lm: LanguageModel) -> None:
    triggers = trigger_examples(lm, TEXT, 4)
    found = sensitivity(lm, triggers, neurons=3, top=9)  # there are only four
    assert found.changes.shape == (tiny.DEPTH, 3, 4, 3)
    assert "deep" in found.summary()["by_depth"]
    with pytest.raises(ValueError, match="neurons=0 must be at least 1"):
        sensitivity(lm, triggers, neurons=0)
    with pytest.raises(ValueError, match="the triggers are of 4 layers of 48 neurons, and tiny-gpt2 has 4 of 128"):
        sensitivity(tiny.build("gpt2"), triggers)
