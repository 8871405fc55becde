from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import tiny
from malformed_parts import Case, one_line

from corrigenda import ContextLengthError, EditRefusedError, Fact, LanguageModel
from corrigenda.forward.generation import decode
from corrigenda.prompts import MOST_TARGET_TOKENS, encode_target
from editing import FineTune, Grace
from editing.editor import MOST_EDIT_TOKENS
from editing.locate_then_edit.prompts import build_prompts
from eval import evaluate
from eval.scoring.fitting import prepare
from eval.scoring.held_out import read_held_out
from eval.scoring.probabilities import continues_as, score
from eval.settings import EvalSettings
from locate import causal_trace

LONG = "tower " * 4999 + "tower"
FACT = Fact(subject="tower", prompt="the {} is in", target_new="Rome", target_true="Paris")
FAST = EvalSettings(generate=False, perplexity_windows=0)


lm = pytest.fixture(tiny.llama, scope="module")


# -- too long


def fact(**changes: Any) -> Fact:
    return replace(FACT, id="f", **changes)


def test_five_thousand_words(lm: LanguageModel) -> None:
    for long in (fact(subject=LONG), fact(target_new=LONG), fact(prompt=f"{LONG} of {{}}")):
        for ask in (
            FineTune(layer=1).edit,
            Grace(layer=1).edit,
            lambda lm, facts: build_prompts(lm, [FACT, *facts], [""], "{} is a", "subject"),
        ):
            with pytest.raises(EditRefusedError, match=r"fact 'f': .*has 50\d\d tokens.*at most (64|256)") as caught:
                ask(lm, [long])
            assert len(one_line(caught)) < 300


LENGTHS: dict[str, tuple[Callable[[LanguageModel], object], str]] = {
    "score-prompt": (lambda lm: score(lm, [("the city", ["Rome"]), (LONG, ["Rome"])]), "5000 tokens.*at most 64"),
    "score-target": (lambda lm: score(lm, [("the city", [LONG])]), "5000 tokens, and a target has at most 256"),
    "score-both": (
        lambda lm: score(lm, [("tower " * 50, ["tower " * 16])]),
        "with the target .* has 65 tokens, and tiny-llama reads at most 64",
    ),
    "target": (lambda lm: encode_target(lm.tokenizer, "the", "tower " * (MOST_TARGET_TOKENS + 1)), "257 tokens"),
    "generate": (lambda lm: lm.generate(LONG), "5000 tokens. with up to 50 new tokens has 5049"),
    "generate-one-too-many": (lambda lm: lm.generate("tower " * 60, 6), "has 65 tokens"),
    "generate-one-of-two": (lambda lm: lm.generate(["the tower", LONG], 5), "5004 tokens"),
    "decode": (lambda lm: decode(lm, [[5] * 65], 0), "65 tokens"),
    "batch": (lambda lm: lm.batch([[5, 6], [5] * 65]), "65 tokens, and tiny-llama reads at most 64; shorten it"),
    "continues": (lambda lm: continues_as(lm, [([5] * 60, [5] * 6)]), "65 tokens"),
    "trace": (lambda lm: causal_trace(lm, fact(subject=LONG)), "5003 tokens"),
    "trace-answer": (lambda lm: causal_trace(lm, FACT, LONG), "5000 tokens"),
}


def test_what_just_fits(lm: LanguageModel) -> None:
    assert len(lm.generate("tower " * 60, 5)) > 0
    assert score(lm, [("tower " * 50, ["tower " * 15])])[0].targets[0].log_probs
    assert len(lm.batch([[5] * 64])) == 1
    # in windows that the model reads
    assert read_held_out(lm, EvalSettings(perplexity_windows=3, perplexity_window=300)).log_perplexity > 0


def test_a_prompt_longer_than_an_edit_is_computed_on(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that reads much is no reason to run an edit for an hour."""
    monkeypatch.setattr(lm.model.config, "max_position_embeddings", 10**6)
    with pytest.raises(EditRefusedError, match=f"5005 tokens, and an edit is computed on at most {MOST_EDIT_TOKENS}"):
        Grace(layer=1).edit(lm, [fact(subject=LONG)])
    monkeypatch.setattr("editing.locate_then_edit.prompts.MOST_LOGITS", 300)
    with pytest.raises(EditRefusedError, match=r"2 facts .* 4 tokens in all contexts.*smaller batch_size"):
        build_prompts(lm, [FACT, fact()], [""], "{} is a", "subject")


def test_long_targets_are_scored_in_pieces(lm: LanguageModel) -> None:
    """So that no forward holds more logits than it may; with the figures of one piece."""
    queries = [("the tower is in", ["Rome", "the city of Rome", "tower " * 30]), ("Ben plays", ["the piano . " * 7])]
    whole, pieces = score(lm, queries), score(lm, queries, max_tokens=31)
    for one, other in zip(whole, pieces, strict=True):
        for left, right in zip(one.targets, other.targets, strict=True):
            assert left.log_probs == pytest.approx(right.log_probs, abs=1e-5)
            assert len(left.log_probs) == len(right.log_probs)


FACTS_TOO_LONG = {
    "paraphrase": ("paraphrases", {"paraphrases": ("the tower", LONG)}),
    "neighbour": ("neighbourhood", {"neighbourhood": (LONG,)}),
    "subject": ("prompt", {"subject": LONG}),
    "target": ("prompt", {"target_true": LONG}),
    "statement-before-neighbour": ("neighbourhood_plus", {"neighbourhood": ("the " + "tower " * 57 + "is",)}),
}


@pytest.mark.parametrize("name", FACTS_TOO_LONG)
def test_a_fact_that_is_too_long_fails_alone(name: str, lm: LanguageModel) -> None:
    """huggingface/evaluate#532, huggingface/transformers#530: an index error, or a text that was cut without a word."""
    kind, changes = FACTS_TOO_LONG[name]
    long = fact(**changes)
    reason = prepare(lm, long, FAST).error
    assert reason.startswith(f"too long: fact 'f', {kind}: ")
    assert "\n" not in reason
    found = evaluate(lm, [long, FACT], FAST)
    assert [case.error for case in found.cases] == [reason, ""]
    assert found.cases[0].after.values["efficacy_success"] == 0.0
    assert found.cases[1].after.values == evaluate(lm, [FACT], FAST).cases[0].after.values
    assert found.metrics["efficacy_success"]["n"] == 2


def test_generated_tokens_count(lm: LanguageModel) -> None:
    long = fact(paraphrases=("tower " * 39 + "is",))
    assert prepare(lm, long, FAST).error == ""
    assert "paraphrases: a prompt with up to 50 new tokens has 89 tokens" in prepare(lm, long, EvalSettings()).error


# -- prompts


PROMPTS: dict[str, Case[LanguageModel]] = {
    "number": (lambda lm: lm.generate(3), TypeError, "prompts must be a text or a list of texts, not int 3"),  # type: ignore[call-overload]
    "dict": (lambda lm: lm.generate({"a": 1}), TypeError, "not dict"),  # type: ignore[call-overload]
    "bytes": (lambda lm: lm.generate(b"the"), TypeError, "not bytes"),  # type: ignore[call-overload]
    "list-of-none": (lambda lm: lm.generate(["the", None]), TypeError, "a prompt must be a text"),  # type: ignore[list-item]
    "empty-list": (lambda lm: lm.generate([]), ValueError, "at least one prompt"),
    "empty": (lambda lm: lm.generate(""), ValueError, "has no token"),
    "target-empty": (lambda lm: score(lm, [("the", [" "])]), ValueError, "empty target for the prompt 'the'"),
    "target-number": (lambda lm: score(lm, [("the", [3])]), TypeError, "a target must be a text, not int"),  # type: ignore[list-item]
    "empty-batch": (lambda lm: lm.batch([]), ValueError, "at least one sequence"),
    "empty-row": (lambda lm: lm.batch([[5], []]), ValueError, "every sequence at least one token"),
    "no-embedding": (lambda lm: lm.batch([[5, 99]]), ValueError, "token 99 .* has no embedding in tiny-llama"),
    "window-zero": (lambda lm: causal_trace(lm, FACT, "top", site="ffn", window=0), ValueError, "window"),
}


TOO_LONG = {f"too-long-{name}": (ask, ContextLengthError, message) for name, (ask, message) in LENGTHS.items()}
CALLS: dict[str, Case[LanguageModel]] = {**TOO_LONG, **PROMPTS}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_cannot_be(name: str, lm: LanguageModel) -> None:
    call, error, message = CALLS[name]
    with pytest.raises(error, match=message) as caught:
        call(lm)
    assert len(one_line(caught)) < 400
    if isinstance(caught.value, ContextLengthError):
        assert caught.value.n_tokens > caught.value.limit > 0
