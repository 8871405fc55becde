from contextlib import ExitStack

import pytest
import tiny
import torch
from by_hooks import changed_input, coefficients, logits

from corrigenda import LanguageModel
from editing.neurons.steer import steer

TEXT = "the mother tongue of Danielle Darrieux is the"
NEURONS = {(1, 3): 1.0, (1, 7): -1.0, (-1, 0): 0.5}


def by_hooks(lm: LanguageModel, amounts: dict[int, dict[int, float]], how: str, last: bool) -> torch.Tensor:
    """The logits with plain hooks on the modules that hold the values."""
    with ExitStack() as stack:
        for layer, chosen in amounts.items():

            def change(m, chosen=chosen):
                m = m.clone()
                flat = m if m.ndim == 2 else m[0]
                for neuron, amount in chosen.items():
                    where = slice(-1, None) if last else slice(None)
                    flat[where, neuron] = amount + (flat[where, neuron] if how == "add" else 0)
                return m

            stack.enter_context(changed_input(lm.architecture.values(layer), change))
        return logits(lm, lm.tokens(TEXT))[None]


@pytest.mark.parametrize("positions", ["all", "predicting"])
@pytest.mark.parametrize("how", ["set", "add"])
@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_coefficients_are_driven(family: str, how: str, positions: str) -> None:
    lm = tiny.build(family)
    edit = steer(lm, NEURONS, 2.0, how, positions)
    wanted = by_hooks(lm, {1: {3: 2.0, 7: -2.0}, 3: {0: 1.0}}, how, positions == "predicting")
    ids = torch.tensor([lm.tokens(TEXT)])
    with torch.no_grad():
        plain = lm.model(input_ids=ids).logits
        with edit.applied(lm):
            steered = lm.model(input_ids=ids).logits
        assert torch.equal(lm.model(input_ids=ids).logits, plain)
    assert torch.allclose(steered, wanted, atol=1e-5)
    assert not torch.allclose(steered, plain, atol=1e-4)
    assert ("neurons 3 = 2, 7 = -2" in edit.describe()) == (how == "set")


def test_the_unit_is_of_the_layers_coefficients(lm: LanguageModel) -> None:
    texts = [TEXT, "Big Ben stands in"]
    edit = steer(lm, NEURONS, 2.0, prompts=texts)
    rows = [coefficients(lm, 1, lm.tokens(text))[1:] for text in texts]
    unit = float(torch.cat(rows).square().mean().sqrt())
    assert edit.scales[1][1].tolist() == pytest.approx([2 * unit, -2 * unit], rel=1e-5)
    assert edit.origin.settings["units"]["1"] == pytest.approx(unit, rel=1e-5)


def test_what_cannot_be_steered() -> None:
    lm = tiny.build("gpt2")
    with pytest.raises(ValueError, match="no neuron"):
        steer(lm, {}, 1.0)
    with pytest.raises(IndexError, match="neuron 9999"):
        steer(lm, {(0, 9999): 1.0}, 1.0)
    with pytest.raises(ValueError, match="how='push'"):
        steer(lm, NEURONS, 1.0, "push")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no token after their first"):
        steer(lm, NEURONS, 1.0, prompts=["the"])
