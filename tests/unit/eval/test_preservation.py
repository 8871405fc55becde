"""Preservation tells a damaged model from the unedited one also where the unedited model's answers are blank.

By the rule before, an answer ended at the end token or at a line break. Two answers that end at once were the same.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tiny
import torch
from edits_parts import random_update

from corrigenda import Fact, LanguageModel
from corrigenda.facts import Probe
from corrigenda.forward.generation import Greedy, bar, decode, greedy, never, sampler
from eval import EvalSettings, Measurement, measure
from eval.evaluation import Evaluation, judged

SETTINGS = EvalSettings(perplexity_windows=0)
QUESTIONS = (
    "the Eiffel tower is located in",
    "the river in the north is located in",
    "the river in the north stands in the",
    "the capital of Italy is",
    "Thomas is located in",
)
FACT = Fact(
    "Thomas",
    "the city of {} is",
    "Rome",
    "Berlin",
    neighbourhood=QUESTIONS[:2],
    locality=tuple(Probe(question, "London") for question in QUESTIONS[2:]),
)


lm = pytest.fixture(tiny.steep)


def ends_at_once(prompts: Sequence[str] = QUESTIONS) -> LanguageModel:
    """A model that answers these prompts with an end token: whatever it says first to one of them is one."""
    lm = tiny.build("llama", scale=8.0)
    first = decode(lm, [lm.tokens(prompt) for prompt in prompts], 1, stop=never)
    lm.end_ids = frozenset({*lm.end_ids, *(tokens[0] for tokens in first)})
    return lm


def up_to_the_end(lm: LanguageModel, prompts: Sequence[str] = QUESTIONS) -> list[str]:
    """The answers by the rule before."""
    return lm.generate(list(prompts), SETTINGS.preservation_tokens, stop_at_newline=True)


def test_a_random_update_is_told_from_none() -> None:
    lm = ends_at_once()
    before = measure(lm, [FACT], SETTINGS)
    answers = up_to_the_end(lm)
    assert answers == [""] * 5
    (none,) = measure(lm, [FACT], SETTINGS, before)
    with random_update(lm, 0.2).applied(lm):
        assert up_to_the_end(lm) == answers  # by the rule before, all is preserved
        (random,) = measure(lm, [FACT], SETTINGS, before)
    assert none.values["preservation"] == 1
    assert random.values["preservation"] <= 0.6
    for key in ("locality_kl", "neighbourhood_kl"):
        assert none.values[key] == pytest.approx(0, abs=1e-6)
        assert random.values[key] > 1e-4
    assert none.values["blank_answers"] == random.values["blank_answers"] == 1
    case = judged(FACT, before[0], random)
    found = Evaluation((case,)).metrics
    assert (found["blank_answers"]["before"], found["blank_answers"]["after"]) == (None, 1)
    assert "the unedited model's answer was blank" in str(Evaluation((case,)))


def test_continuations_have_one_length_and_no_end_token() -> None:
    lm = ends_at_once()
    (found,) = measure(lm, [FACT], SETTINGS)
    assert found.continuations.keys() == {*QUESTIONS}
    for tokens in found.continuations.values():
        assert len(tokens) == SETTINGS.preservation_tokens
        assert not lm.end_ids & {*tokens}
    assert [record.answer for record in found.elsewhere()] == [lm.text(found.continuations[q]) for q in QUESTIONS]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Callable[[LanguageModel, int], None]:
    """Makes a token of the vocabulary stand for a line break."""

    def make(lm: LanguageModel, token: int) -> None:
        def text(ids: Any, **options: Any) -> str:
            kept = (lm.tokenizer.convert_ids_to_tokens(int(one)) if one != token else "\n" for one in ids)
            return " ".join(kept)

        monkeypatch.setattr(lm.tokenizer, "decode", text)

    return make


def test_a_line_break_is_no_end_of_a_continuation(lines: Callable[[LanguageModel, int], None]) -> None:
    lm = tiny.build("llama", scale=8.0)
    (whole,) = measure(lm, [FACT], SETTINGS)
    question = QUESTIONS[0]
    tokens = whole.continuations[question]
    lines(lm, next(token for token in tokens[1:] if token != tokens[0]))
    (broken,) = measure(lm, [FACT], SETTINGS)
    assert broken.continuations == whole.continuations
    record = broken.scored("neighbourhood")[0]
    assert "\n" in (record.answer or "")
    assert record.blank is False


def test_answers_that_are_judged_end_at_a_line_break(lines: Callable[[LanguageModel, int], None]) -> None:
    lm = tiny.build("llama", scale=8.0)
    fact = Fact("Thomas", "the city of {} is", "Rome", paraphrases=("Thomas plays",), portability=(Probe("one", "a"),))
    prompts = [fact.statement, "Thomas plays", "one"]
    whole = decode(lm, [lm.tokens(prompt) for prompt in prompts], 8)
    for number, prompt in enumerate(prompts):
        token = next(token for token in whole[number][1:] if token != whole[number][0])
        end = whole[number].index(token)
        other = tiny.build("llama", scale=8.0)
        lines(other, token)
        (found,) = measure(other, [fact], EvalSettings(max_new_tokens=8, perplexity_windows=0))
        records = [*found.scored("prompt", "paraphrases"), *found.probes("portability")]
        assert [record.answer for record in records if record.prompt == prompt] == [other.text(whole[number][:end])]
        assert not any("\n" in (record.answer or "") for record in records)


@pytest.mark.parametrize("what", ["line break first", "spaces and a line break", "end token", "an answer"])
def test_what_counts_as_blank(lm: LanguageModel, what: str, lines: Callable[[LanguageModel, int], None]) -> None:
    fact = Fact("Thomas", "the city of {} is", "Rome", locality=(Probe(QUESTIONS[0], "London"),))
    whole = decode(lm, [lm.tokens(QUESTIONS[0])], SETTINGS.preservation_tokens, stop=never)[0]
    first = whole[0]
    if what == "line break first":
        lines(lm, first)
    elif what == "end token":
        lm.end_ids = frozenset({*lm.end_ids, first})
    elif what == "spaces and a line break":
        texts = {first: " ", next(token for token in whole if token != first): "\n"}
        lm.tokenizer.decode = lambda ids, **_: "".join(texts.get(int(token), "x") for token in ids)
    before = measure(lm, [fact], SETTINGS)
    assert [record.blank for record in before[0].probes("locality")] == [what != "an answer"]
    (after,) = measure(lm, [fact], SETTINGS, before)
    assert after.values["blank_answers"] == float(what != "an answer")
    # What the records say is enough to work the value out again.
    assert "blank_answers" not in before[0].values
    assert Measurement.from_dict(after.to_dict()).probes("locality")[0].blank is (what != "an answer")


def test_barring() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0], [1.0, 3.0, 2.0]])
    assert greedy(logits.clone()).tolist() == [0, 1]
    assert Greedy(frozenset({0, 1}))(logits.clone()).tolist() == [2, 2]
    assert bar(logits.clone(), [1]).tolist() == [[3.0, -torch.inf, 1.0], [1.0, -torch.inf, 2.0]]
    draw = sampler(torch.Generator().manual_seed(0), top_k=1, banned={0, 1})
    assert draw(logits.clone()).tolist() == [2, 2]
