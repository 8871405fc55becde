import hashlib
import json
import logging
from pathlib import Path

import pytest

from corrigenda import Fact
from corrigenda.data import FactSet
from corrigenda.data.other_subjects import with_other_subjects
from corrigenda.data.read import good_facts, read_facts
from corrigenda.facts import Probe


def fact(subject: str, prompt: str, true: str | None, **more: object) -> Fact:
    return Fact.from_dict({"subject": subject, "prompt": prompt, "target_true": true, "target_new": "new", **more})


STATE, IN_STATE = "What state is {} located?", "In which state is {} located?"
FACTS = (
    fact("Oslo", STATE, "Norway", locality=[{"prompt": "who sings?", "answer": "Ann"}]),
    fact("Bern", STATE, "Bernland", paraphrases=["In which state is Bern located?"]),
    fact("Rome", STATE, "Lazio"),
    fact("Lyon", IN_STATE, "Rhone"),  # the form is a paraphrase of Bern's
    fact("Kiel", STATE, None),  # no answer is known
    fact("Ann", "Who is the mother of {}?", "Eve"),
    fact("New Oslo", STATE, "Maine"),  # holds the name Oslo
    fact("rome", STATE, "Georgia"),  # the same subject again: the first answer counts
)


def prompts(found: Fact) -> set[tuple[str, str]]:
    return {(probe.prompt, probe.answer) for probe in found.locality if probe.group == "other_subject"}


def test_by_hand() -> None:
    oslo, bern = with_other_subjects(FactSet("set", FACTS[:2]), FACTS, 5)
    assert prompts(oslo) == {("What state is Rome located?", "Lazio")}
    assert prompts(bern) == {
        ("What state is Rome located?", "Lazio"),
        ("What state is New Oslo located?", "Maine"),
        ("What state is Lyon located?", "Rhone"),
    }
    assert oslo.locality[0] == Probe("who sings?", "Ann")  # stays, and stays first
    (lyon,) = with_other_subjects(FactSet("set", FACTS[3:4]), FACTS, 5)
    assert prompts(lyon) == {("In which state is Bern located?", "Bernland")}  # Bern alone asks in that form


def test_never_an_edited_subject() -> None:
    bern = with_other_subjects(FactSet("set", (FACTS[1], FACTS[3], FACTS[7])), FACTS[1:], 5)[0]
    assert prompts(bern) == {("What state is New Oslo located?", "Maine")}


def test_which_ones_and_how_many() -> None:
    others = [fact(f"town {n}", STATE, f"state {n}") for n in range(9)]
    mine = FactSet("set", FACTS[:1])
    (found,) = with_other_subjects(mine, others, 2)
    assert with_other_subjects(mine, others[::-1], 2)[0] == found
    digests = {n: hashlib.sha256(f"{FACTS[0].id}\0town {n}".encode()).digest() for n in range(9)}
    first = sorted(digests, key=digests.__getitem__)[:2]
    assert [probe.answer for probe in found.locality[1:]] == [f"state {n}" for n in first]


def test_relations_where_both_name_one() -> None:
    capital, river = {"relation": "P36"}, {"relation": "P206"}
    others = [fact("Rome", "{}'s capital", "x", **capital), fact("Po", STATE, "y", **river), fact("Turin", STATE, "z")]
    (found,) = with_other_subjects(FactSet("set", (fact("Oslo", STATE, "n", **capital),)), others, 5)
    assert {answer for _, answer in prompts(found)} == {"x", "z"}  # P36 by name, Turin by form, not the river


def test_a_relation_with_one_subject_has_none_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    own = fact("Po", STATE, "y", neighbourhood=["The state of Etsch is"])
    with caplog.at_level(logging.INFO):
        found = with_other_subjects(FactSet("set", (FACTS[5], own, FACTS[0])), FACTS, 5)
    assert found[:2].facts == (FACTS[5], own)  # and one with neighbourhood prompts needs none
    assert len(prompts(found[2])) == 2
    assert (
        "set: 1 of 2 facts without neighbourhood prompts have their own prompt about other subjects, 2" in caplog.text
    )
    assert "for the others the data has no subject of their relation or form that is not edited" in caplog.text


def test_good_facts_are_those_that_are_read(tmp_path: Path) -> None:
    path = tmp_path / "facts.jsonl"
    lines = [json.dumps(one.to_dict()) for one in FACTS[:3]]
    path.write_text("\n".join([lines[0], '{"subject": "no prompt"}', lines[1], "no JSON", lines[2]]))
    assert tuple(good_facts(path, "auto", "train", None)) == FACTS[:3]
    assert list(good_facts("embedded", "auto", "train", None)) == list(read_facts("embedded"))
