import json
import logging
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from corrigenda.errors import RecordError
from jobs.shared.data import fixed_locality, read_data

SUBJECTS = ["red", "blue", "seven", "north", "river", "tower", "green", "nine"]


def write(path: Path, numbers: list[int]) -> str:
    lines = [
        {"id": f"fact-{n}", "subject": SUBJECTS[n], "prompt": "{} is", "target_true": "Paris", "target_new": "Rome"}
        for n in numbers
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def configuration(facts: str, tuned: str | None, limit: int | None = 2, **locality: Any) -> DictConfig:
    data = {"path": facts, "schema": "auto", "split": None, "config": None, "limit": limit, "offset": 0}
    data |= {"on_error": "raise", "part": None, "disjoint_from": tuned}
    asked = {"path": None, "schema": "auto", "offset": 0, "limit": 3, **locality}
    return OmegaConf.create({"data": data, "job": {"locality": asked}})


def test_facts_that_were_tuned_on_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    facts = write(tmp_path / "facts.jsonl", list(range(8)))
    config = configuration(facts, write(tmp_path / "tuned.jsonl", [2, 4]))
    assert [fact.id for fact in read_data(config.data)] == ["fact-0", "fact-1"]
    assert [fact.id for fact in fixed_locality(config)] == ["fact-3", "fact-5", "fact-6"]
    assert "2 facts are passed over for the fixed locality set, which has 3" in caplog.text
    caplog.clear()
    config = configuration(facts, str(tmp_path / "tuned.jsonl"), path=facts)
    config.job.locality.limit = 6
    assert [fact.id for fact in fixed_locality(config)] == [f"fact-{n}" for n in (0, 1, 3, 5, 6, 7)]
    assert "2 facts are passed over for the fixed locality set, which has 6" in caplog.text


def test_nothing_left_is_an_error(tmp_path: Path) -> None:
    facts = write(tmp_path / "facts.jsonl", [0, 1, 2, 3, 4])
    config = configuration(facts, write(tmp_path / "tuned.jsonl", [2, 3, 4]))
    with pytest.raises(ValueError, match=r"would be empty: data\.disjoint_from=.* forbids all 3 facts for it; name"):
        fixed_locality(config)
    config.job.locality.limit = 0
    assert fixed_locality(config) == []


def test_a_run_of_all_facts_says_that_it_has_no_such_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    facts = write(tmp_path / "facts.jsonl", [0, 1])
    with caplog.at_level(logging.WARNING):
        assert fixed_locality(configuration(facts, None, limit=None)) == []
        assert "there is no fixed locality set: the run edits all facts" in caplog.text
        assert fixed_locality(configuration(facts, None)) == []
        assert "the fixed locality set is empty" in caplog.text


def test_the_set_begins_further_on_and_a_bad_record_of_it_is_an_error(tmp_path: Path) -> None:
    facts = write(tmp_path / "facts.jsonl", list(range(8)))
    config = configuration(facts, None, offset=2)
    assert [fact.id for fact in fixed_locality(config)] == ["fact-4", "fact-5", "fact-6"]
    with Path(facts).open("a") as file:
        file.write('{"subject": "red"}\n')
    config.job.locality.offset = 4
    with pytest.raises(RecordError, match=r"facts\.jsonl, line 9"):
        fixed_locality(config)


def test_other_orders_are_of_the_same_facts(tmp_path: Path) -> None:
    facts = write(tmp_path / "facts.jsonl", list(range(8)))
    config = configuration(facts, None, limit=4)
    config.data.offset = 1
    plain = read_data(config.data)
    fixed = fixed_locality(config)
    orders = []
    for order in (0, 1, 2):
        config.data.order = order
        orders.append(read_data(config.data))
        assert fixed_locality(config) == fixed
    assert [found.order for found in (plain, *orders)] == [None, 0, 1, 2]
    assert {found.unordered_fingerprint for found in orders} == {plain.unordered_fingerprint}
    assert len({found.fingerprint for found in (plain, *orders)}) == 4


def test_prompts_about_other_subjects_come_from_the_whole_file(tmp_path: Path) -> None:
    facts = write(tmp_path / "facts.jsonl", list(range(8)))
    with Path(facts).open("a") as file:
        file.write('{"subject": "a bad record"}\n')
    config = configuration(facts, None, limit=6)
    plain = read_data(config.data)
    config.data.other_subjects = 5
    asked = read_data(config.data)
    assert [fact.id for fact in asked] == [fact.id for fact in plain]
    assert {probe.prompt for fact in asked for probe in fact.locality} == {"green is", "nine is"}
    assert all(len(fact.locality) == 2 for fact in asked)
