import pytest
import tiny
import torch
from by_hooks import logits
from knowledge_neurons_parts import ANSWERS, PROMPT, brute_force, build, probability, quiet, tokens
from malformed_parts import refused

from corrigenda import CoefficientEdit, Fact, LanguageModel, Origin
from locate.neurons.attribution import attribute
from locate.neurons.knowledge_neurons import (
    KnowledgeNeuronsResult,
    attribute_all,
    knowledge_neurons,
    layers_by_attribution,
)
from locate.neurons.locator import Neurons
from locate.question import Question, ask

FACT = Fact("Danielle Darrieux", "the mother tongue of {} is", "Dutch", "French")


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_baselines(family: str) -> None:
    lm = build(family)
    row = tokens(lm, PROMPT, ANSWERS["several"])
    gradient = knowledge_neurons(lm, PROMPT, ANSWERS["several"], method="gradient", layers=[2])
    activation = knowledge_neurons(lm, PROMPT, ANSWERS["several"], method="activation", layers=[2])
    expected = brute_force(lm, 2, row, [1.0])
    torch.testing.assert_close(gradient.attributions[0], expected, atol=1e-3 * float(expected.abs().max()), rtol=0)
    with torch.no_grad():
        _, m = probability(lm, 2, row)
    assert len(m) == 3
    torch.testing.assert_close(activation.attributions[0], m.abs().mean(0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(gradient.activations, activation.attributions)


def test_right_rule() -> None:
    lm = build("llama")
    found = knowledge_neurons(lm, PROMPT, "French", steps=2, rule="right", layers=[1])
    expected = brute_force(lm, 1, tokens(lm, PROMPT, "French"), [0.5, 1.0])
    torch.testing.assert_close(found.attributions[0], expected, atol=1e-3 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "gemma2", "gemma3_text", "opt"])
def test_completeness(family: str, answer: str) -> None:
    """With 100 steps the sum over a layer's neurons is what zeroing its coefficients takes away, to 1 %."""
    lm = build(family)
    row = tokens(lm, PROMPT, ANSWERS[answer])
    with quiet():
        found = knowledge_neurons(lm, PROMPT, ANSWERS[answer], steps=100)
    for layer in range(tiny.DEPTH):
        with torch.no_grad():
            full, m = probability(lm, layer, row)
            baseline, _ = probability(lm, layer, row, torch.zeros_like(m))
        # Where a layer hardly matters the two sides are the difference of nearly equal numbers.
        assert float(found.by_layer()[layer]) == pytest.approx(float(full - baseline), rel=0.01, abs=1e-3 * float(full))


@pytest.mark.parametrize("max_tokens", [1, 7, 1000])
def test_batches_do_not_matter(max_tokens: int) -> None:
    lm = build("mistral")
    asked = [(PROMPT, "French"), ("the capital of France is", "Paris , London"), (FACT, None), ("Big Ben", "stands")]
    together = attribute_all(lm, asked, steps=3, layers=[0, 1, 3], max_tokens=max_tokens)
    for (prompt, answer), found in zip(asked, together, strict=True):
        alone = knowledge_neurons(lm, prompt, answer, steps=3)
        largest = float(alone.attributions.abs().max())
        torch.testing.assert_close(found.attributions, alone.attributions[[0, 1, 3]], atol=1e-4 * largest, rtol=0)
        torch.testing.assert_close(found.activations, alone.activations[[0, 1, 3]], atol=1e-5, rtol=1e-4)
        assert found.probability == pytest.approx(alone.probability, rel=1e-4)
        assert found.layers == (0, 1, 3)


def test_under_an_edit() -> None:
    lm = build("llama")
    edit = CoefficientEdit.of(lm, Origin(lm.name, lm.fingerprint, "by hand"), {(1, n): 3.0 for n in range(10)})
    plain = knowledge_neurons(lm, PROMPT, "French", steps=2, layers=[1])
    with edit.applied(lm):
        found = knowledge_neurons(lm, PROMPT, "French", steps=2, layers=[1])
        expected = brute_force(lm, 1, tokens(lm, PROMPT, "French"), [0.25, 0.75])
    largest = float(expected.abs().max())
    torch.testing.assert_close(found.attributions[0], expected, atol=1e-3 * largest, rtol=0)
    assert not torch.allclose(plain.attributions[0], expected, atol=0.1 * largest)


def test_an_unlikely_answer_has_attributions_in_16_bits_too() -> None:
    """Its P is below 1e-9, and the smallest number of float16 6e-8; the tolerance is a dozen roundings of 2^-11."""
    found = []
    for precision in (torch.float32, torch.float16):
        lm = tiny.build("llama", scale=8.0)
        with torch.no_grad():
            lm.model.get_output_embeddings().weight.mul_(4)
            last = lm.model(input_ids=torch.tensor([lm.tokens(FACT.statement)])).logits[0, -1]
        lm.model.to(precision)
        found.append(knowledge_neurons(lm, FACT, [int(last.argmin())], steps=4))
    assert found[0].probability < 1e-9
    whole, half = (one.attributions / one.probability for one in found)
    torch.testing.assert_close(half, whole, atol=12 * 2**-11 * float(whole.abs().max()), rtol=0)


def test_answers() -> None:
    lm = build("gpt2")
    assert knowledge_neurons(lm, FACT, steps=1, layers=[3]).question.answer == "French"
    assert knowledge_neurons(lm, FACT, "Dutch", steps=1, layers=[3]).question.answer == "Dutch"
    top = knowledge_neurons(lm, FACT, "top", steps=1, layers=[3])
    assert top.question.answer_ids == (int(logits(lm, lm.tokenizer(FACT.statement)["input_ids"])[-1].argmax()),)


def test_an_answer_that_stands_in_the_prompt_is_named_and_attributed() -> None:
    lm = build("gpt2")
    found = knowledge_neurons(lm, PROMPT, "tongue", steps=2, layers=[1])
    assert found.answer_in_prompt
    assert not knowledge_neurons(lm, PROMPT, "French", steps=1, layers=[1]).answer_in_prompt
    expected = brute_force(lm, 1, tokens(lm, PROMPT, "tongue"), [0.25, 0.75])
    torch.testing.assert_close(found.attributions[0], expected, atol=1e-3 * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("prompt", ["user: Where is Paris?\nassistant:\n", "a set {} of", " Paris is"])
def test_a_prompt_is_attributed_as_it_is(prompt: str) -> None:
    lm = tiny.build_byte_level()
    question = knowledge_neurons(lm, prompt, "France", steps=1, layers=[1]).question
    assert question.prompt == prompt
    assert list(question.ids[: question.n_prompt]) == lm.tokenizer(prompt)["input_ids"]
    assert question.subject == (0, 0)


def test_paraphrases_are_asked_with_the_joint_of_the_fact() -> None:
    lm = tiny.build_byte_level()
    fact = Fact("Paris", "{} is in (", "Rome", "France", paraphrases=("Where is {}? In",), joint="")
    found = Neurons(steps=1, layers=(1,)).find(lm, fact)
    assert {one.question.answer_ids for one in found.results} == {tuple(lm.tokenizer("France")["input_ids"])}


def test_masks() -> None:
    lm = build("bert")
    with quiet():
        inside = knowledge_neurons(lm, "the mother tongue is ? of Danielle", "French , Dutch", steps=1)
        at_end = knowledge_neurons(lm, "the mother tongue is", "French", steps=1)
        with_mask = knowledge_neurons(lm, "the mother tongue is ?", "French", steps=1)
    mask = lm.tokenizer.mask_token_id
    assert inside.question.predicting == (4, 5, 6)
    assert [inside.question.ids[place] for place in (3, 4, 5, 6, 7)] == [
        *lm.tokenizer("is")["input_ids"],
        mask,
        mask,
        mask,
        *lm.tokenizer("of")["input_ids"],
    ]
    torch.testing.assert_close(at_end.attributions, with_mask.attributions)
    refused(ValueError, "has 2 masks", knowledge_neurons, lm, "the ? is ?", "French")
    lm.tokenizer.mask_token = None
    refused(ValueError, "no mask token", knowledge_neurons, lm, "the mother tongue is", "French")


def test_bad_input() -> None:
    lm = build("llama")
    refused(ValueError, "steps=0 must be at least 1", knowledge_neurons, lm, FACT, steps=0)
    refused(ValueError, "method='magic' must be one of", knowledge_neurons, lm, FACT, method="magic")
    refused(ValueError, "rule='left' must be one of", knowledge_neurons, lm, FACT, rule="left")
    refused(ValueError, "max_tokens=0 must be at least 1", knowledge_neurons, lm, FACT, max_tokens=0)
    for answer in ("", "  "):
        refused(ValueError, "is empty", knowledge_neurons, lm, FACT, answer)
    refused(ValueError, "is empty", knowledge_neurons, lm, " ", "French")
    refused(ValueError, "without a true object", knowledge_neurons, lm, PROMPT)
    refused(ValueError, "without a true object", knowledge_neurons, lm, Fact("Ben", "{} plays", "piano"))
    with pytest.raises(ValueError, match="has 70 tokens, and tiny-llama reads at most 64"):
        knowledge_neurons(lm, "the " * 69 + "is", "French")
    refused(IndexError, "layer 4", knowledge_neurons, lm, FACT, layers=[4])
    refused(ValueError, "no layer to look at", knowledge_neurons, lm, FACT, layers=[])
    refused(ValueError, "the layers have to ascend", attribute, lm, [knowledge_neurons(lm, FACT).question], [2, 1])
    with torch.no_grad():
        lm.memory(1).values[3, 4] = float("nan")
    refused(ValueError, "gives no numbers", knowledge_neurons, lm, FACT)


def result(
    attributions: list[list[float]], layers: tuple[int, ...] = (2, 5), prompt: str = "x"
) -> KnowledgeNeuronsResult:
    values = torch.tensor(attributions)
    question = Question(prompt, (7, 8, 9), 3, (0, 1), "y", (4,), (2,))
    return KnowledgeNeuronsResult(
        question, layers, values, values.abs(), 0.5, "integrated_gradients", 20, "midpoint", "by hand"
    )


def test_coarse_set() -> None:
    found = result([[0.1, 1.0, -2.0], [0.2, 0.21, 0.5]])
    assert found.neurons() == ((2, 1), (5, 2), (5, 1))  # more than 0.2 of 1.0; the negative one never
    assert found.neurons(0.5) == ((2, 1),)
    assert found.neurons(0.0) == ((2, 1), (5, 2), (5, 1), (5, 0), (2, 0))
    assert found.counts() == (1, 2)
    assert found.top(2) == ((2, 1), (5, 2))
    assert found.by_layer().tolist() == pytest.approx([-0.9, 0.91])
    assert result([[-1.0, 0.0], [-2.0, -0.1]]).neurons() == ()
    for threshold in (-0.1, 1.0):
        refused(ValueError, "threshold", found.neurons, threshold)


def test_layers_by_attribution() -> None:
    results = [result([[1.0, 0.0], [0.2, 0.2]]), result([[0.0, 0.1], [0.3, 0.3]]), result([[0.0, 0.0], [0.9, -0.1]])]
    assert layers_by_attribution(results) == (5,)  # the sums: 1.1 and 1.8
    assert layers_by_attribution(results[:2], 2) == (2, 5)  # 1.1 and 1.0
    for n in (0, 3):
        refused(ValueError, "n must be between 1 and the 2 layers", layers_by_attribution, results, n)
    refused(ValueError, "different layers", layers_by_attribution, [results[0], result([[1.0], [2.0]], layers=(0, 1))])
    refused(ValueError, "no result", layers_by_attribution, [])


THOMAS = Fact("Thomas", "the mother tongue of {} is", "Dutch", "French", paraphrases=("Thomas speaks", "one two"))


def test_settings_ask_the_statement_and_the_paraphrases() -> None:
    lm, fact = build("llama"), THOMAS
    settings = Neurons(steps=2, layers=[1, 2], share=0.4, adaptive=False)  # type: ignore[arg-type]
    found = settings.find(lm, fact)
    assert [one.question.prompt for one in found.results] == [fact.statement, "Thomas speaks", "one two"]
    assert {one.question.answer for one in found.results} == {"French"}
    coarse = [
        set(knowledge_neurons(lm, p, "French", steps=2, layers=[1, 2]).neurons()) for p in (fact, "Thomas speaks")
    ]
    both = Neurons(steps=2, layers=(1, 2), adaptive=False, paraphrases=1)(lm, fact)
    assert set(both) == coarse[0] & coarse[1]


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
    for found in (Neurons(steps=1, answer="top").find(lm, THOMAS), Neurons(steps=1).find(lm, THOMAS, "top")):
        assert [one.question.answer_ids for one in found.results] == [(token,)] * 3
        assert [one.question.prompt for one in found.results] == [THOMAS.statement, "Thomas speaks", "one two"]


def test_an_answer_by_its_tokens(lm: LanguageModel) -> None:
    by_text, by_tokens = ask(lm, THOMAS, "French guitar"), ask(lm, THOMAS, lm.tokens("French guitar"))
    assert by_tokens == by_text
    assert knowledge_neurons(lm, "Thomas speaks", [2], steps=1).question.answer_ids == (2,)
    refused(ValueError, "answer of no token", ask, lm, THOMAS, [])
