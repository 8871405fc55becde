from corrigenda import Fact, LanguageModel
from locate import Neurons


def test_a_token_without_a_space(smollm2: LanguageModel) -> None:
    fact = Fact("Paris", "{}\n1\n2\n3\n", "9", paraphrases=("Rome\n1\n2\n3\n", "1\n2\n3\n"))
    found = Neurons(method="activation", answer="top").find(smollm2, fact)
    answers = [one.question.answer_ids for one in found.results]
    assert answers == [answers[0]] * 3
    [token] = answers[0]
    text = smollm2.tokenizer.decode([token])
    assert not text.startswith(" ")
    assert smollm2.tokenizer(f" {text}")["input_ids"] != [token]
