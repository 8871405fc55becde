import math

import numpy as np
import pytest

from eval.judge import judge_prompt, kappa, verdict_of


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("right", "right"),
        ("Right.", "right"),
        ("**WRONG**", "wrong"),
        ("\n wrong\n", "wrong"),
        ("Incorrect", "wrong"),
        ("correct, for it says Rome", "right"),
        ("right right right", "right"),
        ("wrong: it should be Rome", "wrong"),
        ("<think>It may be wrong.</think>\nright", "right"),
        ("Is it wrong? No.\n</think>\n\nright", "right"),
        # What can be taken for both, or for neither.
        ("", "unread"),
        ("right or wrong", "unread"),
        ("right, although wrong in the end", "unread"),
        ("not right", "unread"),
        ("The answer is right", "unread"),
        ("yes", "unread"),
        ("rightly so", "unread"),
        ("<think>It is right, I", "unread"),
        ("???", "unread"),
    ],
)
def test_verdicts(reply: str, verdict: str) -> None:
    assert verdict_of(reply, "Rome") == verdict


def test_an_answer_without_a_word_is_wrong() -> None:
    assert verdict_of("right", " \n") == "wrong"
    assert verdict_of("", "") == "wrong"


def test_the_prompt_has_all_that_is_needed() -> None:
    prompt = judge_prompt("Where is it?", ("St. Petersburg", "Petrograd", "Leningrad"), " In {Petrograd}.\n")
    assert "Question: Where is it?\n" in prompt
    assert "Expected answer: St. Petersburg (or: Petrograd; Leningrad)\n" in prompt
    assert "---\nIn {Petrograd}.\n---" in prompt
    assert "(or:" not in judge_prompt("Where is it?", ("Rome",), "Paris")
    assert prompt.endswith("right or wrong.")


def test_kappa_by_the_table() -> None:
    both, first_only, second_only, neither = 20, 5, 10, 15
    n = both + first_only + second_only + neither
    # (35/50 - 0.5) / (1 - 0.5) with p_e = 25/50 * 30/50 + 25/50 * 20/50
    found = kappa((both + neither) / n, (both + first_only) / n, (both + second_only) / n)
    assert float(found) == pytest.approx(0.4, abs=1e-12)
    assert float(kappa(1.0, 0.3, 0.3)) == pytest.approx(1.0)
    assert float(kappa(0.0, 0.5, 0.5)) == pytest.approx(-1.0)


def test_kappa_where_all_marks_are_the_same() -> None:
    assert math.isnan(kappa(1.0, 1.0, 1.0))
    assert math.isnan(kappa(1.0, 0.0, 0.0))
    assert np.array_equal(kappa([1.0, 0.0], [1.0, 0.0], [1.0, 1.0]), [np.nan, 0.0], equal_nan=True)
