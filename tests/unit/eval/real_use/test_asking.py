import json
from collections.abc import Sequence

import pytest
import tiny

from corrigenda import Fact, LanguageModel
from eval import EvalSettings, Measurement, RealUse, evaluate, measure
from eval.judge import Judge, judge_prompt
from eval.metrics import METRICS

FACTS = [
    Fact("Big Ben", "{} is located in the city of", "Rome", "London", paraphrases=("the city of {} is",)),
    Fact("Danielle", "{} speaks", "Dutch", "French", aliases=("Spanish",)),
]


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    made = tiny.build("llama")
    made.model.config.max_position_embeddings = 512  # the context has more words than tiny models read
    return made


def settings(**more: object) -> EvalSettings:
    return EvalSettings(perplexity_windows=0, real_use=RealUse(max_new_tokens=6, **more))  # type: ignore[arg-type]


def test_answers_are_greedy_and_end_by_themselves(lm: LanguageModel) -> None:
    [first, second] = measure(lm, FACTS, settings())
    assert [(one.kind, one.setting) for one in first.questions()] == [
        (kind, setting)
        for kind in ("prompt", "paraphrases")
        for setting in ("plain_bare", "plain_context", "plain_told")
    ]
    assert len(second.questions()) == 3
    for one in (*first.questions(), *second.questions()):
        assert one.answer == lm.generate(one.prompt, max_new_tokens=6)
        assert one.reply is one.verdict is None
    assert set(second.values) >= {"real_use_match", "real_use_plain_bare_match", "real_use_plain_context_match"}
    assert not [key for key in first.values if "judge" in key]


def test_an_answer_ends_at_the_end_token_alone(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    [first, _] = measure(lm, FACTS, settings(contexts=("bare",)))
    answer = lm.tokenizer.encode(first.questions()[0].answer, add_special_tokens=False)
    end = answer[3]
    monkeypatch.setattr(lm, "ends_answer", lambda token: True)  # line breaks and whatever else ends a short answer
    assert measure(lm, FACTS, settings(contexts=("bare",)))[0].questions()[0].answer == first.questions()[0].answer
    monkeypatch.setattr(lm, "end_ids", frozenset({end}))
    cut = measure(lm, FACTS, settings(contexts=("bare",)))[0].questions()[0].answer
    assert cut == lm.text(answer[: answer.index(end)])


def test_only_where_it_is_asked_for(lm: LanguageModel) -> None:
    for other in (EvalSettings(perplexity_windows=0), EvalSettings(generate=False, perplexity_windows=0)):
        assert measure(lm, FACTS, other)[0].questions() == []
    quick = EvalSettings(generate=False, perplexity_windows=0, real_use=RealUse())
    assert measure(lm, FACTS, quick)[0].questions() == []


def test_the_judge(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def replies(_self: Judge, prompts: Sequence[str]) -> list[str]:
        asked.extend(prompts)
        return ["right" if "Danielle" in prompt else "hm" for prompt in prompts]

    monkeypatch.setattr(Judge, "replies", replies)
    judge = Judge(url="http://localhost:1/v1", model="m")
    found = measure(lm, FACTS, settings(contexts=("bare",), judge=judge))
    records = [one for measurement in found for one in measurement.questions()]
    answers = [FACTS[0].answers, FACTS[0].answers, FACTS[1].answers]
    assert asked == [judge_prompt(one.question, right, one.answer) for one, right in zip(records, answers, strict=True)]
    assert [one.reply for one in records] == ["hm", "hm", "right"]
    assert [one.verdict for one in records] == ["unread", "unread", "right"]
    assert "real_use_judged" not in found[0].values
    assert found[0].values["judge_unread"] == 1.0
    assert found[1].values["real_use_judged"] == 1.0

    # What a run keeps gives the same figures again.
    again = [Measurement.from_dict(json.loads(json.dumps(measurement.to_dict()))) for measurement in found]
    assert [one.questions() for one in again] == [one.questions() for one in found]
    for fact, measurement, first in zip(FACTS, again, found, strict=True):
        for record in measurement.questions():
            record.match = record.verdict = None
        METRICS.judge(fact, measurement)
        values = METRICS.computed(None, measurement)
        kept = {key: value for key, value in first.values.items() if "real_use" in key or "judge" in key}
        assert {key: values[key] for key in kept} == kept


def test_an_answer_without_a_word_is_wrong_and_no_judge_is_asked(
    lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm, "text", lambda tokens: " ")
    monkeypatch.setattr(Judge, "replies", lambda self, prompts: [] if not prompts else pytest.fail("it was asked"))
    judge = Judge(url="http://localhost:1/v1", model="m")
    values = measure(lm, FACTS[1:], settings(contexts=("bare",), judge=judge))[0].values
    assert values["real_use_match"] == values["real_use_judged"] == values["judge_compared"] == 0.0
    assert "judge_agreement" not in values
    assert "judge_unread" not in values


def test_a_fact_whose_questions_are_too_long(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm.model.config, "max_position_embeddings", 40)
    judge = Judge(url="http://localhost:1/v1", model="m")
    short = EvalSettings(perplexity_windows=0, max_new_tokens=5, fluency_tokens=5, real_use=RealUse(judge=judge))
    case = evaluate(lm, FACTS[1:], short).cases[0]
    assert case.error.startswith(f"too long: fact '{FACTS[1].id}', a question in real use (plain_bare): ")
    assert case.after.values["real_use_match"] == case.after.values["real_use_judged"] == 0.0
    assert case.after.values["real_use_plain_context_judged"] == 0.0
