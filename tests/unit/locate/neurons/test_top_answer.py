import pytest
import tiny
import torch

from corrigenda import Fact, LanguageModel
from locate import Neurons
from locate.neurons.knowledge_neurons import knowledge_neurons
from locate.question import ask

FACT = Fact("Thomas", "the mother tongue of {} is", "Dutch", "French", paraphrases=("Thomas speaks", "one two"))


def that_says(token: int) -> LanguageModel:
    """A model whose most likely token is always the same: its row of the unembedding is what the last states share."""
    lm = tiny.build("gpt2")
    with torch.no_grad():
        head = lm.model.get_output_embeddings()
        head.weight = torch.nn.Parameter(head.weight.clone(), requires_grad=False)  # no longer the embeddings
        lm.architecture.final_norm.bias.fill_(1.0)
        head.weight[token] = 5.0
    return lm


@pytest.mark.parametrize("token", [2, 3, 20])
def test_the_token_is_carried(token: int) -> None:
    lm = that_says(token)
    for found in (Neurons(steps=1, answer="top").find(lm, FACT), Neurons(steps=1).find(lm, FACT, "top")):
        assert [one.question.answer_ids for one in found.results] == [(token,)] * 3
        assert [one.question.prompt for one in found.results] == [FACT.statement, "Thomas speaks", "one two"]


def test_an_answer_by_its_tokens(lm: LanguageModel) -> None:
    by_text, by_tokens = ask(lm, FACT, "French guitar"), ask(lm, FACT, lm.tokens("French guitar"))
    assert by_tokens == by_text
    assert knowledge_neurons(lm, "Thomas speaks", [2], steps=1).question.answer_ids == (2,)
    with pytest.raises(ValueError, match="answer of no token"):
        ask(lm, FACT, [])
