import dataclasses
from typing import Any

import pytest

from corrigenda import Fact, FactError
from corrigenda.facts import Probe

GOOD: dict[str, Any] = {"subject": "Kyoto", "prompt": "{} is a city in", "target_new": "Brazil", "target_true": "Japan"}


def test_a_slot_is_filled_where_the_prompt_is_about_the_subject() -> None:
    fact = Fact(**GOOD, paraphrases=["Where is {}? In", "Kyoto lies in"], generation=["{} is"])
    assert fact.paraphrases == ("Where is Kyoto? In", "Kyoto lies in")
    assert fact.generation == ("Kyoto is",)
    assert Fact.from_dict(fact.to_dict()) == fact


def test_a_prompt_may_end_with_a_line_break() -> None:
    assert Fact(**{**GOOD, "prompt": "{}?\n", "neighbourhood": ["Osaka?\n"]}).statement == "Kyoto?\n"


@pytest.mark.parametrize(
    ("change", "field", "problem"),
    [
        ({"generation": ["{} "]}, "generation[0]", "ends with a space"),
        ({"prompt": "The city of {} "}, "prompt", "ends with a space"),
        ({"portability": [{"prompt": "People speak ", "answer": "x"}]}, "portability[0].prompt", "ends with a space"),
        ({"subject": "Ky\ud800to"}, "subject", "lone surrogate"),
        ({"target_new": "\udc00"}, "target_new", "lone surrogate"),
    ],
)
def test_refused(change: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(FactError, match=problem.replace("{", r"\{").replace("}", r"\}")) as caught:
        Fact(**{**GOOD, **change})
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("prompt", "target", "kept"),
    [
        ("{} is in", " Rome", "Rome"),
        ("{} is in", "  Rome", "  Rome"),
        ("def {}():", "\n    return 42", "\n    return 42"),
        ("def {}():\n    ", "return 42", "return 42"),
        ("{}的首都是", "利马", "利马"),
        ("{}的首都是", " Lima", " Lima"),  # said so
        ("user: where is {}?\nassistant:\n", " Rome", " Rome"),
    ],
)
def test_white_space_before_a_target(prompt: str, target: str, kept: str) -> None:
    fact = Fact("x", prompt, target)
    assert fact.target_new == kept
    assert Fact.from_dict(fact.to_dict()) == fact


def test_one_space_makes_no_other_fact() -> None:
    assert Fact("x", "{} is in", " Rome").id == Fact("x", "{} is in", "Rome").id
    with pytest.raises(FactError, match="is the same as target_true"):
        Fact("x", "{} is in", " Rome", "Rome")


def test_the_old_object_is_no_spelling_of_the_new_one() -> None:
    with pytest.raises(FactError, match=r"'aliases': have target_true \('Paris'\) among them; leave it out there"):
        Fact("x", "{} is in", "Rome", " Paris", aliases=("Roma", "Paris"))


def test_white_space_after_a_target_is_left_out_with_a_word() -> None:
    with pytest.warns(UserWarning, match=r"target_new='Rome ': white space at the end of a target is left out"):
        assert Fact("x", "{} is in", "Rome ").target_new == "Rome"


def test_white_space_around_a_subject_is_left_out_with_a_word() -> None:
    with pytest.warns(UserWarning, match="subject='x ': white space around a subject is left out"):
        fact = Fact("x ", "{} is in", "Rome")
    assert (fact.claim, fact.id) == ("x is in Rome", Fact("x", "{} is in", "Rome").id)


def test_a_fact_may_say_its_joint() -> None:
    plain, close = Fact("x", "{} is in", "Rome", "Paris"), Fact("x", "{} is in", "Rome", "Paris", joint="")
    assert (plain.claim, close.claim) == ("x is in Rome", "x is inRome")
    assert plain.id != close.id
    assert "joint" not in plain.to_dict()
    assert Fact.from_dict(close.to_dict()) == close
    assert Fact("x", "{}\n", "Rome", joint=" ").claim == "x\n Rome"
    with pytest.raises(FactError, match="field 'joint': must be white space or empty, got 'is'"):
        Fact("x", "{} is in", "Rome", joint="is")
    with pytest.raises(FactError, match="begins with white space, and joint='' is given"):
        Fact("x", "{} is in", "\nRome", joint="")


def test_what_is_kept_on_disk_goes_by_the_joint() -> None:
    assert Fact("x", "{} is in", "Rome").request == {"subject": "x", "prompt": "{} is in", "target_new": "Rome"}
    assert Fact("x", "{} is in", None, "Rome").request["target_new"] is None
    assert Fact("中国", "{}的首都是", "利马").request["claim"] == "中国的首都是利马"
    assert Fact("x", "{} is in", "Rome", joint="\n").request["claim"] == "x is in\nRome"
    framed = Fact("x", "{} is in", "Rome", frames=("{}\n",))  # behind this frame nothing stands, else a space
    assert framed.request != dataclasses.replace(framed, joint=" ").request


def test_probes_answers_as_targets() -> None:
    assert Probe("People speak", " French").answer == "French"
    assert Probe("def f():", "\n    pass").answer == "\n    pass"
    with pytest.warns(UserWarning, match=r"answer='French ': white space at the end"):
        assert Probe("People speak", "French ").answer == "French"
