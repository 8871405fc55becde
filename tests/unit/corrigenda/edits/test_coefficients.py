"""Edits that scale coefficients: what they compute, that they leave nothing behind, and what they refuse."""

from contextlib import AbstractContextManager

import pytest
import tiny
import torch
from by_hooks import changed_input
from edits_parts import origin
from torch import Tensor

from corrigenda import CoefficientEdit, LanguageModel, WrongModelError
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import forward_logits, record

FACTORS = {(0, 3): 0.0, (0, 7): 2.0, (2, 1): -1.5}
IDS = torch.tensor([[5, 6, 7, 8, 9], [10, 11, 12, 13, 14]])


def edit_of(lm: LanguageModel, factors: dict[tuple[int, int], float] | None = None) -> CoefficientEdit:
    return CoefficientEdit.of(lm, origin(lm), FACTORS if factors is None else factors)


def logits(lm: LanguageModel) -> Tensor:
    with torch.no_grad():
        return lm.model(input_ids=IDS).logits


def values_scaled(lm: LanguageModel, factors: dict[tuple[int, int], float]) -> Tensor:
    """The same by the weights: f m_i v_i is m_i (f v_i)."""
    kept = {layer: lm.memory(layer).values.clone() for layer, _ in factors}
    for (layer, neuron), factor in factors.items():
        lm.memory(layer).values[neuron] *= factor
    result = logits(lm)
    for layer, values in kept.items():
        lm.memory(layer).values.copy_(values)
    return result


@pytest.mark.parametrize("family", tiny.KINDS)
def test_scales_coefficients_as_scaled_values_would(family: str) -> None:
    lm = tiny.build(family)
    before = logits(lm)
    expected = values_scaled(lm, FACTORS)
    assert (expected - before).abs().max() > 1e-3
    with edit_of(lm).applied(lm):
        torch.testing.assert_close(logits(lm), expected, atol=1e-4, rtol=1e-4)


def test_a_model_that_was_compiled_before_hears_an_edit_and_no_longer_after_it() -> None:
    lm = tiny.build("gpt2")
    compiled = torch.compile(lm.model, backend="eager")
    with torch.no_grad():
        before = compiled(input_ids=IDS).logits
        with edit_of(lm).applied(lm):
            torch.testing.assert_close(compiled(input_ids=IDS).logits, logits(lm))
            assert not torch.allclose(logits(lm), before)
        torch.testing.assert_close(compiled(input_ids=IDS).logits, before)


def test_edits_multiply(lm: LanguageModel) -> None:
    with edit_of(lm, {(1, 2): 3.0, (1, 5): 0.5}).applied(lm), edit_of(lm, {(1, 2): 0.5}).applied(lm):
        both = logits(lm)
    with edit_of(lm, {(1, 2): 1.5, (1, 5): 0.5}).applied(lm):
        torch.testing.assert_close(both, logits(lm), atol=1e-5, rtol=1e-5)


# -- where the answer is predicted only


def scaled_by_hand(lm: LanguageModel, at: list[list[bool]]) -> AbstractContextManager[None]:
    """The coefficients of layer 1, numbers 2 and 5, times 0 and 3 at chosen positions, by a plain hook."""
    where = torch.tensor(at)

    def change(entered: Tensor) -> Tensor:
        m = entered.reshape(*where.shape, -1).clone()
        for neuron, factor in ((2, 0.0), (5, 3.0)):
            m[..., neuron] = torch.where(where, factor * m[..., neuron], m[..., neuron])
        return m.reshape(entered.shape)

    return changed_input(lm.architecture.values(1), change)


def predicting(lm: LanguageModel) -> CoefficientEdit:
    return CoefficientEdit.of(lm, origin(lm), {(1, 2): 0.0, (1, 5): 3.0}, "predicting")


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_where_the_answer_is_predicted(family: str) -> None:
    """At the prompt's last token and all after it: a prompt of three tokens and one of five, told and untold."""
    lm = tiny.build(family)
    batch = lm.batch(IDS.tolist(), [3, 5])
    untold = [[False] * 4 + [True]] * 2  # a forward that nobody told anything is a prompt
    told = [[False, False, True, True, True], untold[0]]
    before = forward_logits(lm, batch)
    with scaled_by_hand(lm, told):
        expected = forward_logits(lm, batch)
    assert float((expected - before).abs().max()) > 1e-3
    with scaled_by_hand(lm, untold):
        expected_untold = logits(lm)
    with predicting(lm).applied(lm):
        torch.testing.assert_close(forward_logits(lm, batch), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(logits(lm), expected_untold, atol=1e-5, rtol=1e-5)
        recording = record(lm, batch, layers=[1])
        partial = PartialForward(lm, recording, 1, torch.tensor([2, 2]))
        torch.testing.assert_close(partial.logits(), expected[:, 2:], atol=1e-4, rtol=1e-4)


def test_generation_is_scaled_step_by_step(lm: LanguageModel) -> None:
    """Each generated token is one that predicts the next: as if the text so far were run at once."""
    prompt = "the Eiffel Tower is located in"
    ids = lm.tokens(prompt)
    with predicting(lm).applied(lm), torch.no_grad():
        made = lm.model.generate(
            torch.tensor([ids]),
            max_new_tokens=4,
            do_sample=False,
            eos_token_id=None,
            return_dict_in_generate=True,
            output_logits=True,
        )
    text = made.sequences[0].tolist()
    assert len(text) == len(ids) + 4
    for step, place in enumerate(range(len(ids), len(text))):
        with scaled_by_hand(lm, [[position >= len(ids) - 1 for position in range(place)]]), torch.no_grad():
            expected = lm.model(torch.tensor([text[:place]])).logits[0, -1]
        torch.testing.assert_close(made.logits[step][0], expected, atol=1e-5, rtol=1e-5)


def test_a_masked_model_predicts_at_its_mask() -> None:
    lm = tiny.build("bert")
    lm.tokenizer.mask_token = "?"
    mask = int(lm.tokenizer.mask_token_id)
    ids = [[5, 6, mask, 7, 8], [mask, 6, 7, 8, 9]]
    with scaled_by_hand(lm, [[token == mask for token in row] for row in ids]), torch.no_grad():
        expected = lm.model(input_ids=torch.tensor(ids)).logits
    with predicting(lm).applied(lm), torch.no_grad():
        torch.testing.assert_close(lm.model(input_ids=torch.tensor(ids)).logits, expected, atol=1e-5, rtol=1e-5)
        with pytest.raises(ValueError, match="was given embeddings, and a coefficient edit"):
            lm.model(inputs_embeds=torch.zeros(1, 3, tiny.WIDTH))
    lm.tokenizer.mask_token = None
    with pytest.raises(WrongModelError, match="its tokenizer has no mask token"):
        predicting(lm).apply(lm)


def test_an_edit_of_nothing(lm: LanguageModel) -> None:
    before = logits(lm)
    edit = edit_of(lm, {})
    with edit.applied(lm):
        assert torch.equal(logits(lm), before)
    assert "no neuron" in edit.describe()


def test_describe(lm: LanguageModel) -> None:
    assert "layer 0, neurons 3 x 0, 7 x 2; layer 2, neurons 1 x -1.5" in edit_of(lm).describe()
    assert "where the answer is predicted" in predicting(lm).describe()
    assert "and 3 more" in edit_of(lm, {(1, n): 0.0 for n in range(8)}).describe()
    assert edit_of(lm, {(-1, 4): 0.0}).scales.keys() == {3}
