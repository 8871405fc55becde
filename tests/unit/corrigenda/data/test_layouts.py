"""Layouts of files that people have: all of a record is read, or what is not is named."""

from __future__ import annotations

import json
import logging
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from corrigenda import Probe
from corrigenda.data import read_facts, repository

EASYEDIT = {
    "case_id": 7,
    "prompt": "The first language of Otto Falk is",
    "subject": "Otto Falk",
    "target_new": "Danish",
    "ground_truth": "German",
    "rephrase_prompt": "At home, Otto Falk always spoke",
    "locality_prompt": "The first language of Ada Brix is",
    "locality_ground_truth": "German",
}
ZSRE = {
    "subject": "Blue Mill",
    "src": "Where is Blue Mill?",
    "rephrase": "In which city does Blue Mill stand?",
    "alt": "Lima",
    "answers": ["Oslo"],
    "loc": "nq question: who sang it",
    "loc_ans": "nobody",
    "portability": {"Recalled Relation": "(Lima, country, Peru)", "New Question": "Where is it?", "New Answer": "Peru"},
}


def written(folder: Path, *records: dict[str, Any], suffix: str = ".json") -> Path:
    path = folder / f"facts{suffix}"
    lines = suffix == ".jsonl"
    text = "\n".join(map(json.dumps, records)) if lines else json.dumps(records)
    path.write_text("\ufeff" + text, encoding="utf-8")  # as some editors save it
    return path


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_easyedits_flat_file(tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        [fact] = read_facts(written(tmp_path, EASYEDIT, suffix=suffix))
    assert fact.id == "7"
    assert (fact.target_new, fact.target_true) == ("Danish", "German")
    assert fact.paraphrases == ("At home, Otto Falk always spoke",)
    assert fact.locality == (Probe("The first language of Ada Brix is", "German"),)
    assert "read as 'knowedit', recognised by its keys" in caplog.text
    assert "keys that are not read" not in caplog.text


def test_easyedits_zsre_with_a_question_one_hop_further(tmp_path: Path) -> None:
    [fact] = read_facts(written(tmp_path, ZSRE))
    assert fact.portability == (Probe("Where is it?", "Peru", group="one_hop"),)


def test_keys_that_are_not_read_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    odd = EASYEDIT | {"case_id": 8, "prompt": "The home of Otto Falk is", "weather": "mild", "empty": ""}
    read_facts(written(tmp_path, EASYEDIT | {"weather": "fine"}, odd))
    [record] = [record for record in caplog.records if "keys that are not read" in record.message]
    assert record.message.endswith("keys that are not read, and in how many of 2 records: weather (2)")


def test_fastedit(tmp_path: Path) -> None:
    record = {"prompt": "{}的市长是", "subject": "奥斯陆", "target": "王小明", "queries": ["奥斯陆的市长叫作"]}
    [fact] = read_facts(written(tmp_path, record))
    assert (fact.prompt, fact.target_new, fact.paraphrases) == ("{}的市长是", "王小明", ("奥斯陆的市长叫作",))


def test_lists_without_criteria_and_an_old_target(tmp_path: Path) -> None:
    record = {
        **{"subject": "Blue Mill", "prompt": "The author of Blue Mill is", "target_old": "Otto", "target_new": "Ada"},
        "rephrase": ["Who wrote Blue Mill?"],
        "portability": [{"prompt": "Ada wrote", "answer": "Blue Mill"}],
        "locality": {"Other": {"prompt": ["Red River is by"], "ground_truth": ["Brix"]}},
    }
    [fact] = read_facts(written(tmp_path, record))
    assert (fact.target_true, fact.paraphrases) == ("Otto", ("Who wrote Blue Mill?",))
    assert fact.portability == (Probe("Ada wrote", "Blue Mill"),)
    assert fact.locality == (Probe("Red River is by", "Brix", group="other"),)


def test_letters_are_composed(tmp_path: Path) -> None:
    apart = {"subject": unicodedata.normalize("NFD", "Málaga"), "prompt": "{} is in", "target_new": "Peru"}
    [fact] = read_facts(written(tmp_path, apart))
    assert fact.subject == "Málaga"
    whole = EASYEDIT | {"subject": unicodedata.normalize("NFD", "Ötto"), "prompt": "The home of Ötto is"}
    assert read_facts(written(tmp_path, whole))[0].prompt == "The home of {} is"


def test_a_folder_that_is_no_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "MOST_ENTRIES", 3)
    for number in range(4):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(ValueError, match="has more than 3 files and folders in it; name the file"):
        read_facts(tmp_path)
