import warnings

import pytest
import tiny
import torch

from corrigenda import LanguageModel
from locate.flow.function import decode_early, transplant
from locate.lens.words import UnknownTokenError

SOURCE, TARGET = "the capital of France is", "Paris Rome London England"


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_early_decoding_by_hand(family: str) -> None:
    lm = tiny.build(family)
    found = decode_early(lm, SOURCE, {"argument": "France", "answer": "Paris"})
    states = lm.model(input_ids=torch.tensor([lm.tokens(SOURCE)]), output_hidden_states=True).hidden_states
    norm, head = lm.architecture.final_norm, lm.model.get_output_embeddings()
    for layer in range(lm.n_layers - 1):
        scores = head(norm(states[layer + 1][0, -1]))
        assert found.top[layer] == lm.tokenizer.decode([int(scores.argmax())])
        for row, word in enumerate(("France", "Paris")):
            token = lm.tokens(word)[0]
            assert int(found.ranks[row, layer]) == int((scores > scores[token]).sum())
            assert float(found.probabilities[row, layer]) == pytest.approx(float(scores.softmax(-1)[token]), abs=1e-5)
    last = lm.model(input_ids=torch.tensor([lm.tokens(SOURCE)])).logits[0, -1]
    assert found.top[-1] == lm.tokenizer.decode([int(last.argmax())])
    assert found.ranks[0, found.best_layer("argument")] == found.ranks[0].min()


def ffn_outputs(lm: LanguageModel, text: str) -> list[torch.Tensor]:
    found = []
    for layer in range(lm.n_layers):
        with lm.memory(layer).capture() as seen:
            lm.model(input_ids=torch.tensor([lm.tokens(text)]))
        found.append(seen.output[0, -1])
    return found


@pytest.mark.parametrize("how", ["add", "replace"])
@pytest.mark.parametrize("family", [*tiny.DECODER_KINDS, *tiny.MIXTURE_KINDS])
def test_transplanted_updates_equal_whole_forwards(family: str, how: str) -> None:
    lm = tiny.build(family)
    rome = lm.tokens("Rome")[0]
    ids = torch.tensor([lm.tokens(TARGET)])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = transplant(lm, SOURCE, TARGET, "Rome", how)
        plain = lm.model(input_ids=ids).logits[0, -1].softmax(-1)
        assert found.before == pytest.approx(float(plain[rome]), rel=1e-4)
        for layer, update in enumerate(ffn_outputs(lm, SOURCE)):

            def change(output: torch.Tensor, update: torch.Tensor = update) -> torch.Tensor:
                output = output.clone()
                output[0, -1] = update + (output[0, -1] if how == "add" else 0)
                return output

            with lm.memory(layer).through(change):
                wanted = lm.model(input_ids=ids).logits[0, -1].softmax(-1)
            assert float(found.probabilities[layer]) == pytest.approx(float(wanted[rome]), rel=1e-4)
            assert found.top[layer] == lm.tokenizer.decode([int(wanted.argmax())])
    assert float((found.probabilities / found.before - 1).abs().max()) > 1e-3


def test_what_cannot_be_asked(lm: LanguageModel) -> None:
    with pytest.raises(UnknownTokenError, match="2 tokens"):
        decode_early(lm, SOURCE, {"answer": "Big Ben"})
    with pytest.raises(ValueError, match="how='move'"):
        transplant(lm, SOURCE, TARGET, "Rome", "move")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'function' is not followed"):
        decode_early(lm, SOURCE, {"answer": "Paris"}).best_layer("function")
