import re
from collections import Counter
from dataclasses import replace

import pytest

from corrigenda import Fact
from corrigenda.data.embedded import embedded_facts
from corrigenda.data.side_effects import NO, YES, fact_checks, negations, reversals, same_subject
from corrigenda.errors import FactError
from corrigenda.facts import Probe

EIFFEL = Fact("The Eiffel Tower", "{} is located in the city of", "Rome", "Paris")
QUESTION = Fact("UniFirst", "What is the product made by {}?", "unmanned aircraft", "uniform")


def test_a_sentence() -> None:
    assert negations(EIFFEL) == (
        "The Eiffel Tower is not located in the city of",
        "It is not true that the Eiffel Tower is located in the city of",
        "The next sentence is false. The Eiffel Tower is located in the city of",
        "It would be wrong to say this: The Eiffel Tower is located in the city of",
    )
    assert reversals(EIFFEL) == (
        "Fill in the gap. ____ is located in the city of Rome. The gap stands for",
        "Question: Who or what is located in the city of Rome?\nAnswer:",
    )
    assert [(check.prompt, check.expected) for check in fact_checks(EIFFEL)] == [
        (f"Question: {question} Answer Yes or No.\nAnswer:", expected)
        for question, expected in (
            ("The Eiffel Tower is located in the city of Rome. Is this true?", "Yes"),
            ("The Eiffel Tower is located in the city of Rome. Is this false?", "No"),
            ("Is it true that the Eiffel Tower is located in the city of Rome?", "Yes"),
            ("Is it false that the Eiffel Tower is located in the city of Rome?", "No"),
            ("The Eiffel Tower is located in the city of Paris. Is this true?", "No"),
            ("The Eiffel Tower is located in the city of Paris. Is this false?", "Yes"),
            ("Is it true that the Eiffel Tower is located in the city of Paris?", "No"),
            ("Is it false that the Eiffel Tower is located in the city of Paris?", "Yes"),
        )
    ]
    assert same_subject(EIFFEL) == (
        "The name The Eiffel Tower begins with the letter",
        "In a few words, the Eiffel Tower is",
        "People know the Eiffel Tower for",
        "The Eiffel Tower is often compared with",
    )


def test_a_question() -> None:
    question = "What is the product made by UniFirst?"
    assert negations(QUESTION) == (
        f"Here is a question with a wrong answer. {question}",
        f"The answer to the next question is wrong. {question}",
    )
    assert reversals(QUESTION) == (
        "Fill in the gap. What is the product made by ____? unmanned aircraft. The gap stands for",
    )
    checks = [(check.prompt.removeprefix(f"Question: {question} "), check.expected) for check in fact_checks(QUESTION)]
    end = "Answer Yes or No.\nAnswer:"
    assert checks[:4] == [
        (f'Is "unmanned aircraft" the right answer? {end}', "Yes"),
        (f'Is "unmanned aircraft" a wrong answer? {end}', "No"),
        (f'Is it "unmanned aircraft"? {end}', "Yes"),
        (f'Is it something other than "unmanned aircraft"? {end}', "No"),
    ]
    assert [expected for _, expected in checks[4:]] == ["No", "Yes", "No", "Yes"]


@pytest.mark.parametrize(
    ("prompt", "denied"),
    [
        ("In {}, the language spoken is", "In Ada, the language spoken is not"),
        ("{}, who holds the position of", "Ada, who does not hold the position of"),
        ("{} has the position of", "Ada does not have the position of"),
        ("{} has been employed by", "Ada has not been employed by"),
        ("{} carries the title", "Ada does not carry the title"),
        ("{} teaches", "Ada does not teach"),
        ("{}'s profession is a", "Ada's profession is not a"),
        ("Where is {}? It is located in", "Where is Ada? It is not located in"),
        ("The company that created {} is", "The company that created Ada is not"),
        ("the tower of {} is in", "The tower of Ada is not in"),
    ],
)
def test_verbs_are_denied(prompt: str, denied: str) -> None:
    assert negations(Fact("Ada", prompt, "x"))[0] == denied


@pytest.mark.parametrize("prompt", ["{}, in", "{}, the", "{} label :", "The law in {} declares the language"])
def test_what_is_no_sentence_with_a_known_verb_is_put_after_one(prompt: str) -> None:
    fact = Fact("Ada", prompt, "x", "y")
    text = prompt.replace("{}", "Ada")
    assert negations(fact) == (f"The next sentence is false. {text}", f"It would be wrong to say this: {text}")
    assert len(reversals(fact)) == 1
    assert len(fact_checks(fact)) == 4


def test_names_keep_their_spelling() -> None:
    phone = Fact("iPhone", "{} is made by", "Nokia")
    assert negations(phone)[1:3] == (
        "It is not true that iPhone is made by",
        "The next sentence is false. iPhone is made by",
    )
    assert reversals(Fact("Ada", "{}'s owner is", "Washington D.C.")) == (
        "Fill in the gap. ____'s owner is Washington D.C. The gap stands for",
        "Question: Whose owner is Washington D.C.?\nAnswer:",
    )


def test_without_an_old_or_a_new_object() -> None:
    insert = replace(EIFFEL, target_true=None)
    assert [check.expected for check in fact_checks(insert)] == ["Yes", "No", "Yes", "No"]
    assert negations(insert) == negations(EIFFEL)
    erase = replace(EIFFEL, target_new=None)
    assert (negations(erase), fact_checks(erase), reversals(erase)) == ((), (), ())
    assert same_subject(erase) == same_subject(EIFFEL)


def test_what_a_fact_brings_goes_before_the_templates() -> None:
    own = replace(EIFFEL, negations=("{} is far from",), reversals=("Rome has the",), same_subject=("{} weighs",))
    assert negations(own) == ("The Eiffel Tower is far from",)
    assert reversals(own) == ("Rome has the",)
    assert same_subject(own) == ("The Eiffel Tower weighs",)
    assert Fact.from_dict(own.to_dict()) == own
    assert {"negations", "reversals", "same_subject"}.isdisjoint(EIFFEL.to_dict())
    with pytest.raises(FactError, match=r"reversals\[0\].*nothing fills it"):
        replace(EIFFEL, reversals=("Rome has {} and",))


def test_probes_of_the_data_set_that_name_the_subject() -> None:
    locality = (
        Probe("The architect of The Eiffel Tower is", "Sauvestre", (), "relation_specificity"),
        Probe("The Eiffel Towers of the world are", "many"),
        Probe("Big Ben is in", "London"),
        Probe(EIFFEL.statement, "Paris"),
    )
    assert same_subject(replace(EIFFEL, locality=locality)) == ("The architect of The Eiffel Tower is",)
    assert len(same_subject(replace(EIFFEL, locality=locality[1:]))) == 4  # none names it: the templates
    without_spaces = Fact("蓝色磨坊", "{}的作者是", "艾达", locality=(Probe("谁建造了蓝色磨坊？", "奥托"),))
    assert same_subject(without_spaces) == ("谁建造了蓝色磨坊？",)


def test_all_embedded_facts() -> None:
    for fact in embedded_facts():
        checks = fact_checks(fact)
        assert Counter(check.expected for check in checks) == {YES: len(checks) / 2, NO: len(checks) / 2}
        made = (*negations(fact), *(check.prompt for check in checks), *reversals(fact), *same_subject(fact))
        assert len(set(made)) == len(made)
        for prompt in made:
            assert not re.search(r"\{\}|  |\.\.|\?\.|,\.|\s$", prompt), prompt
            assert prompt[0] == "_" or prompt[0] == prompt[0].upper() or prompt.startswith(fact.subject), prompt
        assert not any(re.search(rf"\b{re.escape(fact.subject)}\b", prompt) for prompt in reversals(fact))
        assert all(str(fact.target_new) in prompt for prompt in reversals(fact))
