import pytest
import tiny

from corrigenda.forward import answering


def test_a_causal_model_answers_after_the_last_token() -> None:
    lm = tiny.build("llama")
    assert answering.with_mask(lm, "the city ? of") == "the city ? of"
    assert answering.before_answer(lm, "the city ? of") == "the city ? of"
    assert answering.position(lm, [5, 6, 7]) == 2


def test_a_masked_model_answers_at_its_mask() -> None:
    lm = tiny.build("bert")
    with pytest.raises(ValueError, match="has no mask token"):
        answering.with_mask(lm, "the city of")
    lm.tokenizer.mask_token = "?"
    assert answering.with_mask(lm, "the city of") == "the city of ?"
    assert answering.with_mask(lm, "the ? of Rome") == "the ? of Rome"
    assert answering.before_answer(lm, "the ? of Rome") == "the"  # the space comes with the answer
    assert answering.position(lm, [5, lm.tokenizer.mask_token_id, 7]) == 1
    with pytest.raises(ValueError, match="has 2 masks"):
        answering.with_mask(lm, "the ? of ?")
