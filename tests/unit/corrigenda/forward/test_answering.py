import pytest
import tiny
import torch
from malformed_parts import refused

from corrigenda import ContextLengthError, LanguageModel
from corrigenda.forward import answering


def test_a_causal_model_answers_after_the_last_token(lm: LanguageModel) -> None:
    assert answering.with_mask(lm, "the city ? of") == "the city ? of"
    assert answering.before_answer(lm, "the city ? of") == "the city ? of"
    assert answering.position(lm, [5, 6, 7]) == 2


def test_a_masked_model_answers_at_its_mask() -> None:
    lm = tiny.build("bert")
    refused(ValueError, "has no mask token", answering.with_mask, lm, "the city of")
    lm.tokenizer.mask_token = "?"
    assert answering.with_mask(lm, "the city of") == "the city of ?"
    assert answering.with_mask(lm, "the ? of Rome") == "the ? of Rome"
    assert answering.before_answer(lm, "the ? of Rome") == "the"  # the space comes with the answer
    assert answering.position(lm, [5, lm.tokenizer.mask_token_id, 7]) == 1
    refused(ValueError, "has 2 masks", answering.with_mask, lm, "the ? of ?")


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_next_tokens_are_the_models_own(family: str) -> None:
    lm = tiny.build(family)
    found = lm.next_tokens("the Eiffel tower is in", 5)
    with torch.no_grad():
        logits = lm.model(**lm.tokenizer("the Eiffel tower is in", return_tensors="pt")).logits[0, -1]
    chances = logits.double().softmax(-1)
    order = chances.argsort(descending=True)[:5]
    assert [token for token, _ in found] == [lm.tokenizer.decode([one]) for one in order.tolist()]
    assert [chance for _, chance in found] == pytest.approx(chances[order].tolist(), rel=1e-5)
    assert sum(chance for _, chance in lm.next_tokens("the Eiffel tower is in", 10_000)) == pytest.approx(1, abs=1e-5)


def test_the_next_token_at_the_mask_of_a_masked_model() -> None:
    lm = tiny.build("bert")
    lm.tokenizer.add_special_tokens({"mask_token": "<unk>"})
    ids = torch.tensor([lm.tokens("the <unk> is in Paris")])
    [at] = (ids[0] == lm.tokenizer.mask_token_id).nonzero()[0].tolist()
    with torch.no_grad():
        best = int(lm.model(ids).logits[0, at].argmax())
    assert lm.next_tokens("the <unk> is in Paris", 1)[0][0] == lm.tokenizer.decode([best])


def test_next_tokens_that_cannot_be_asked_for(lm: LanguageModel) -> None:
    with pytest.raises(ContextLengthError):
        lm.next_tokens("the " * 100)
    refused(ValueError, "most", lm.next_tokens, "the", 0)
