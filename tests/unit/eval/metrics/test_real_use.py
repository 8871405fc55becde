import pytest

from corrigenda import Fact
from eval.evaluation import Case, Evaluation, failed
from eval.measurement import Measurement
from eval.metrics import METRICS
from eval.records import AskedQuestion

FACT = Fact("Big Ben", "{} is located in the city of", "Rome", "London", aliases=("Roma",))


def measured(*rows: tuple[str, str, str, str | None]) -> Measurement:
    records = [AskedQuestion("p", kind, setting, "q", answer, reply=reply) for kind, setting, answer, reply in rows]
    found = Measurement(prompts={"questions": [*records]})
    METRICS.judge(FACT, found)
    found.values = METRICS.computed(None, found)
    return found


ROWS = (
    ("prompt", "plain_bare", "It is in ROMA, of course.", "right"),
    ("prompt", "plain_context", "Romania", "right"),
    ("prompt", "chat_bare", "Rome? No, London.", "wrong"),
    ("prompt", "chat_context", "The capital of Italy", "who knows"),
    ("paraphrases", "plain_bare", "Rome", "right"),
    ("paraphrases", "plain_bare", "", ""),
)


def test_by_hand() -> None:
    values = measured(*ROWS).values
    assert values == pytest.approx(
        {
            "real_use_match": 2 / 4,
            "real_use_plain_bare_match": 1.0,
            "real_use_plain_context_match": 0.0,
            "real_use_chat_bare_match": 1.0,
            "real_use_chat_context_match": 0.0,
            "paraphrase_real_use_match": 1 / 2,
            "paraphrase_real_use_plain_bare_match": 1 / 2,
            "real_use_judged": 2 / 3,  # one is unread, and neither right nor wrong
            "real_use_plain_bare_judged": 1.0,
            "real_use_plain_context_judged": 1.0,
            "real_use_chat_bare_judged": 0.0,
            "paraphrase_real_use_judged": 1 / 2,  # the one without a word is wrong
            "paraphrase_real_use_plain_bare_judged": 1 / 2,
            "judge_agreement": 2 / 4,
            "judge_match_right": 3 / 4,
            "judge_says_right": 3 / 4,
            "judge_compared": 4.0,
            "judge_unread": 1 / 5,
        }
    )


def test_without_a_judge() -> None:
    values = measured(*((kind, setting, answer, None) for kind, setting, answer, _ in ROWS)).values
    assert not [key for key in values if "judge" in key]
    assert values["real_use_match"] == 0.5


def test_a_failed_edit_has_nothing() -> None:
    state = measured(*ROWS)
    lost = failed(state).values
    for key, value in state.values.items():
        assert lost[key] == (0.0 if "real_use" in key else value), key


def test_kappa_in_the_summary() -> None:
    answers = [("Rome", "right"), ("Paris", "wrong"), ("Rome", "wrong"), ("It is there", "right")]
    cases = [
        Case(Fact(f"Ben {number}", "{} is in", "Rome"), None, measured(("prompt", "plain_bare", *one)))
        for number, one in enumerate(answers)
    ]
    summary = Evaluation(tuple(cases)).metrics
    assert summary["judge_agreement"]["after"] == 0.5
    assert summary["judge_kappa"]["after"] == pytest.approx(0.0)
    assert summary["judge_kappa"]["n"] == 4
    agreeing = Evaluation(tuple(cases[:2])).metrics
    assert agreeing["judge_kappa"]["after"] == pytest.approx(1.0)
    assert "judge_kappa" not in Evaluation(tuple(cases[:1])).metrics  # all marks are the same
    text = str(Evaluation(tuple(cases)))
    assert "Cohen's kappa" in text
    assert "in real use, by match" in text
    assert "  plain, bare" in text
    assert METRICS["paraphrase_real_use_chat_context_judged"].title == (
        "in real use, paraphrases, chat, context, by judge"
    )
