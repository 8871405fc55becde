import math

import pytest
import tiny
from edits_parts import random_update
from scoring_parts import TINY_QUERIES, TOLERANCE, check, context_edit, plain

from corrigenda import Fact
from corrigenda.forward.generation import Greedy, decode, never
from eval import EvalSettings, evaluate
from eval.scoring.probabilities import TargetScore, continues_as, probabilities, score

# Prompts of different lengths, one of them twice; targets of one to four words, some that begin alike.


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "bloom"])
def test_log_probs_with_edits_applied(family: str) -> None:
    lm = tiny.build(family)
    before = score(lm, TINY_QUERIES)
    text = "London is the capital of England . "
    with random_update(lm, 0.5, 1).applied(lm), context_edit(lm, text).applied(lm):
        check(lm, TINY_QUERIES, text)
        assert abs(score(lm, TINY_QUERIES)[0].targets[0].log_probs[0] - before[0].targets[0].log_probs[0]) > 1e-3
    assert score(lm, TINY_QUERIES) == before


def test_distributions_only_where_wanted() -> None:
    assert all(found.next_token is None for found in score(tiny.build("gpt2"), TINY_QUERIES))


def test_masked_models_are_refused() -> None:
    with pytest.raises(ValueError, match="causal"):
        score(tiny.build("bert"), TINY_QUERIES)


@pytest.mark.parametrize(
    ("prompt", "target"),
    [
        ("user: capital?\nassistant:\n", "Paris"),
        ("中国的首都是", "北京"),
        ("def f():", "\n    return 42"),
        ("def f():\n    ", "return 42"),
        ("the city (", "Rome"),
    ],
)
def test_what_is_scored_is_what_a_model_says(prompt: str, target: str) -> None:
    lm = tiny.build_byte_level()
    head, ids = lm.tokenizer(prompt)["input_ids"], lm.tokenizer(target)["input_ids"]
    logs = plain(lm, head + ids)
    by_hand = [float(logs[len(head) - 1 + place, token]) for place, token in enumerate(ids)]
    assert score(lm, [(prompt, [target])])[0].targets[0].log_probs == pytest.approx(by_hand, abs=TOLERANCE)


def test_a_joint_that_a_fact_says_is_scored() -> None:
    lm = tiny.build_byte_level()
    fact = Fact("France", "The capital of {} is", "Rome", "Paris", paraphrases=["Of {} it is"], joint="\n")
    case = evaluate(lm, [fact], EvalSettings(perplexity_windows=0, generate=False)).cases[0].after
    for kind, prompt in (("prompt", fact.statement), ("paraphrases", fact.paraphrases[0])):
        wanted = score(lm, [(prompt, ["\nRome", "\nParis"])])[0].targets
        record = case.scored(kind)[0]
        for found, target in zip((record.log_probs_new, record.log_probs_true), wanted, strict=True):
            assert found == pytest.approx(target.log_probs, abs=TOLERANCE)
    usual, said = score(lm, [(fact.statement, ["Rome", "\nRome"])])[0].targets
    assert usual.log_probs != said.log_probs


def test_token_accuracy() -> None:
    assert TargetScore((-1.0, -2.0, -3.0, -4.0), (True, False, True, True)).token_accuracy == 0.75


def of(*tokens: float) -> TargetScore:
    """A target whose tokens have these probabilities."""
    return TargetScore(tuple(map(math.log, tokens)), (True,) * len(tokens))


def test_probabilities_by_hand() -> None:
    """exp(1/n sum ln p), whatever the lengths: sqrt(0.8 * 0.2) = 0.4, sqrt(0.9 * 0.1) = 0.3, cbrt(0.2 * 0.4 * 0.1)."""
    assert probabilities(of(0.8, 0.2), of(0.9, 0.1)) == pytest.approx((0.4, 0.3))
    assert probabilities(of(0.25), of(0.9, 0.1)) == pytest.approx((0.25, 0.3))
    assert probabilities(of(0.2, 0.4, 0.1), of(0.25)) == pytest.approx((0.2, 0.25))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_probabilities_are_the_published_quantity(family: str) -> None:
    """ROME's evaluation: -1/n sum_i log softmax(logits)[o_i], from whole forwards, of targets of unequal lengths.

    The paper's score decides by the smaller one, and its magnitudes are differences of exp(-that).
    """
    lm = tiny.build(family, scale=8.0)
    prompt, targets = "the Eiffel tower is located in", ("Rome", "the city of Paris", "London , England")
    nll = []
    for target in targets:
        head, whole = lm.tokenizer(prompt)["input_ids"], lm.tokenizer(f"{prompt} {target}")["input_ids"]
        logs = plain(lm, whole).double()
        nll.append(-sum(float(logs[at, whole[at + 1]]) for at in range(len(head) - 1, len(whole) - 1)))
        nll[-1] /= len(whole) - len(head)
    [found] = score(lm, [(prompt, targets)])
    assert [len(target.log_probs) for target in found.targets] == [1, 4, 3]
    for first, second in ((0, 1), (1, 2), (2, 0)):
        new, true = probabilities(found.targets[first], found.targets[second])
        assert (new, true) == pytest.approx((math.exp(-nll[first]), math.exp(-nll[second])), rel=TOLERANCE)
        assert (new > true) == (nll[first] < nll[second])


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("max_tokens", [4096, 20])
def test_continues_as_bars_tokens_like_the_decoding(family: str, max_tokens: int) -> None:
    lm = tiny.build(family, scale=8.0)
    prompts = [lm.tokens(prompt) for prompt, _ in TINY_QUERIES]
    free = decode(lm, prompts, 6, stop=never)
    banned = frozenset(tokens[1] for tokens in free)
    barred = decode(lm, prompts, 6, Greedy(banned), never)
    assert all(len(tokens) == 6 and not banned & {*tokens} for tokens in barred)
    items = list(zip(prompts, barred, strict=True))
    assert continues_as(lm, items, max_tokens, banned) == [True] * len(items)
    assert continues_as(lm, items, max_tokens) == [False] * len(items)
    assert continues_as(lm, list(zip(prompts, free, strict=True)), max_tokens) == [True] * len(items)
    wrong = [(prompt, [*tokens[:-1], tokens[-1] - 1]) for prompt, tokens in items]
    assert continues_as(lm, wrong, max_tokens, banned) == [False] * len(items)
