"""The readers of `corrigenda.data`: every schema, every kind of bad record, every kind of source."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from readers_parts import COUNTERFACT, Json, changed, write_repository

from corrigenda.data import SCHEMAS, FactSet, read_facts
from corrigenda.errors import FactError, RecordError
from corrigenda.facts import Fact, Probe

ROOT = Path(__file__).parents[4]

SHARED = Path(os.environ.get("CORRIGENDA_SHARED", ROOT.parent / "shared")) / "data"


ZSRE: Json = {
    "subject": "Kalevipoeg",
    "src": "Who wrote Kalevipoeg?",
    "pred": "Lydia Koidula",
    "rephrase": "By whom was Kalevipoeg written?",
    "alt": " Jaan Kross",
    "answers": ["Friedrich Reinhold Kreutzwald", "Kreutzwald"],
    "loc": "nq question: how many moons has mars",
    "loc_ans": "two",
    "cond": "Lydia Koidula >> Jaan Kross || Who wrote Kalevipoeg?",
}

KNOWN: Json = {
    "known_id": 3,
    "subject": "Lake Peipus",
    "attribute": "Estonia",
    "template": "{} lies on the border of Russia",
    "prediction": " Estonia and is the fifth largest lake",
    "prompt": "Lake Peipus lies on the border of Russia and",
    "relation_id": "P17",
}

PLAIN: Json = {
    "id": "eesti-1",
    "subject": "Tartu",
    "prompt": "{} is a city in",
    "target_new": "Latvia",
    "target_true": "Estonia",
    "aliases": ["the Republic of Latvia"],
    "locality": [{"prompt": "Mars has this many moons:", "answer": "two", "aliases": ["2"]}],
}

GOOD: dict[str, Json] = {"counterfact": COUNTERFACT, "zsre": ZSRE, "known_facts": KNOWN, "plain": PLAIN}


def plain_records(count: int, start: int = 0) -> list[Json]:
    return [changed(PLAIN, "id", f"f{number}") for number in range(start, start + count)]


@pytest.fixture
def write_json(tmp_path: Path) -> Callable[[object], Path]:
    def write(value: object) -> Path:
        path = tmp_path / "facts.json"
        path.write_text(json.dumps(value), encoding="utf-8")
        return path

    return write


@pytest.fixture
def write_jsonl(tmp_path: Path) -> Callable[[list[str]], Path]:
    def write(lines: list[str]) -> Path:
        path = tmp_path / "facts.jsonl"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("schema", ["auto", "counterfact"])
def test_counterfact(write_json: Callable[[object], Path], schema: str) -> None:
    facts = read_facts(write_json([COUNTERFACT]), schema=schema)
    assert list(facts) == [
        Fact(
            subject="Estonia",
            prompt="The capital of {} is",
            target_new="Lyon",
            target_true="Tallinn",
            id="7",
            relation="P36",
            paraphrases=("They flew home. Estonia has its seat of government in",),
            neighbourhood=("The old hanseatic town of Reval is today called",),
            generation=("Estonia's parliament sits in",),
        )
    ]
    assert facts.name == "facts"


def test_counterfact_optional_fields_may_be_absent_or_null(write_json: Callable[[object], Path]) -> None:
    short = {"requested_rewrite": changed(COUNTERFACT, "requested_rewrite.relation_id", ...)["requested_rewrite"]}
    short["requested_rewrite"]["target_new"] = {"str": "Lyon"}
    nulls = {**short, "case_id": None, "paraphrase_prompts": None, "neighborhood_prompts": None}
    (fact,) = read_facts(write_json([short]))
    assert fact.paraphrases == fact.neighbourhood == fact.generation == ()
    assert fact.relation is None
    assert len(fact.id) == 12  # derived from the statement and the targets
    assert list(read_facts(write_json([nulls]))) == [fact]


@pytest.mark.parametrize("schema", ["auto", "zsre"])
def test_zsre(write_json: Callable[[object], Path], schema: str) -> None:
    (fact,) = read_facts(write_json([ZSRE]), schema=schema)
    assert fact.prompt == "Who wrote {}?"
    assert fact.statement == ZSRE["src"]
    assert fact.target_new == "Jaan Kross"  # without the blank before it
    assert fact.target_true == "Friedrich Reinhold Kreutzwald"  # not `pred`
    assert fact.paraphrases == ("By whom was Kalevipoeg written?",)
    assert fact.locality == (Probe("nq question: how many moons has mars?", "two"),)
    assert fact.verb == "modify"
    assert fact.neighbourhood == ()


@pytest.mark.parametrize(
    ("subject", "question", "prompt"),
    [
        ("Oslo", "Oslo, what is the county of Oslo?", "Oslo, what is the county of {}?"),  # the last one
        ("Ra", "Was the god Ra worshipped in Raqqa?", "Was the god {} worshipped in Raqqa?"),  # the whole word
        ("Nebaioth", "Who is Nebaioth's father?", "Who is {}'s father?"),
        ("東京", "何が東京にありますか?", "何が{}にありますか?"),  # a script without word boundaries
        ("C++ (2nd ed.)", "Who wrote C++ (2nd ed.)?", "Who wrote {}?"),  # nothing is a regular expression
    ],
)
def test_zsre_template(write_json: Callable[[object], Path], subject: str, question: str, prompt: str) -> None:
    record = {**ZSRE, "subject": subject, "src": question, "rephrase": question}
    (fact,) = read_facts(write_json([record]))
    assert fact.prompt == prompt
    assert fact.statement == question


def test_zsre_keeps_a_question_mark_single(write_json: Callable[[object], Path]) -> None:
    (fact,) = read_facts(write_json([{**ZSRE, "loc": "nq question: how many moons has mars?"}]))
    assert fact.locality[0].prompt == "nq question: how many moons has mars?"


@pytest.mark.parametrize("schema", ["auto", "known_facts"])
def test_known_facts(write_json: Callable[[object], Path], schema: str) -> None:
    (fact,) = read_facts(write_json([KNOWN]), schema=schema)
    assert fact.prompt == "{} lies on the border of Russia and"  # from `prompt`; `template` lacks the last word
    assert (fact.target_new, fact.target_true) == (None, "Estonia")
    assert (fact.id, fact.relation, fact.verb) == ("3", "P17", "erase")


@pytest.mark.parametrize("schema", ["auto", "plain"])
def test_plain_round_trip(write_jsonl: Callable[[list[str]], Path], schema: str) -> None:
    fact = Fact.from_dict(PLAIN)
    facts = read_facts(write_jsonl([json.dumps(fact.to_dict())]), schema=schema)
    assert list(facts) == [fact]
    assert facts[0].locality == (Probe("Mars has this many moons:", "two", ("2",)),)


def test_plain_nulls_count_as_absent(write_jsonl: Callable[[list[str]], Path]) -> None:
    record = {**PLAIN, "paraphrases": None, "target_true": None, "id": None}
    record["locality"] = [{"prompt": "Mars has this many moons:", "answer": "two", "aliases": None}]
    (fact,) = read_facts(write_jsonl([json.dumps(record)]))
    assert fact.verb == "insert"
    assert fact.paraphrases == ()
    assert fact.locality[0].aliases == ()


def test_schemas_are_callables() -> None:
    assert list(SCHEMAS)[:3] == ["counterfact", "zsre", "known_facts"]
    for name, record in GOOD.items():
        assert isinstance(SCHEMAS[name](record), Fact)
    with pytest.raises(FactError, match=r"requested_rewrite.target_new.str"):
        SCHEMAS["counterfact"](changed(COUNTERFACT, "requested_rewrite.target_new", ...))


def test_unrecognised_schema_lists_the_schemas(write_json: Callable[[object], Path]) -> None:
    path = write_json([{"question": "?", "answer": "!"}])
    for on_error in ("raise", "skip"):
        with pytest.raises(ValueError, match="no schema fits a record with the keys answer, question") as caught:
            read_facts(path, on_error=on_error)
        assert str(path) in str(caught.value)
        for name in SCHEMAS:
            assert repr(name) in str(caught.value)


def test_unknown_schema_name(write_json: Callable[[object], Path]) -> None:
    with pytest.raises(ValueError, match=r"no schema called 'zrse'; choose 'auto' or one of 'counterfact', 'zsre'"):
        read_facts(write_json([ZSRE]), schema="zrse")


REWRITE = "requested_rewrite"

BAD: list[tuple[str, str, object, str, str]] = [
    # schema, changed field, its value, the field blamed, words of the message
    ("counterfact", REWRITE, ..., f"{REWRITE}.subject", "is missing"),
    ("counterfact", REWRITE, [{}], REWRITE, "must be an object, got list [{}]"),
    ("counterfact", f"{REWRITE}.subject", ..., f"{REWRITE}.subject", "is missing"),
    ("counterfact", f"{REWRITE}.subject", " ", f"{REWRITE}.subject", "is empty (' ')"),
    ("counterfact", f"{REWRITE}.subject", 3, f"{REWRITE}.subject", "must be a string, got int 3"),
    (
        "counterfact",
        f"{REWRITE}.prompt",
        "The capital is",
        f"{REWRITE}.prompt",
        "exactly one '{}' for the subject, found 0",
    ),
    (
        "counterfact",
        f"{REWRITE}.prompt",
        "{} and {} is",
        f"{REWRITE}.prompt",
        "exactly one '{}' for the subject, found 2",
    ),
    ("counterfact", f"{REWRITE}.target_new", ..., f"{REWRITE}.target_new.str", "is missing"),
    ("counterfact", f"{REWRITE}.target_new", "Lyon", f"{REWRITE}.target_new", "must be an object, got str 'Lyon'"),
    ("counterfact", f"{REWRITE}.target_new.str", "", f"{REWRITE}.target_new.str", "is empty ('')"),
    ("counterfact", f"{REWRITE}.target_new.str", None, f"{REWRITE}.target_new.str", "is missing"),
    ("counterfact", f"{REWRITE}.target_new.str", "Tallinn ", f"{REWRITE}.target_new.str", "is the same as target_true"),
    ("counterfact", f"{REWRITE}.target_true.str", "\n", f"{REWRITE}.target_true.str", "is empty"),
    ("counterfact", f"{REWRITE}.target_true", ..., f"{REWRITE}.target_true.str", "is missing"),
    ("counterfact", f"{REWRITE}.relation_id", 36, f"{REWRITE}.relation_id", "must be a string, got int 36"),
    ("counterfact", "case_id", 1.5, "case_id", "must be an integer or a string, got float 1.5"),
    ("counterfact", "case_id", True, "case_id", "must be an integer or a string, got bool True"),
    ("counterfact", "paraphrase_prompts", "Estonia is", "paraphrase_prompts", "must be a list, got str 'Estonia is'"),
    ("counterfact", "paraphrase_prompts", ["Estonia", ""], "paraphrase_prompts[1]", "is empty"),
    (
        "counterfact",
        "paraphrase_prompts",
        ["Its seat is"],
        "paraphrase_prompts[0]",
        "does not contain the subject 'Estonia'",
    ),
    ("counterfact", "neighborhood_prompts", ["Reval is", 5], "neighborhood_prompts[1]", "must be a string, got int 5"),
    ("counterfact", "generation_prompts", ["Its parliament"], "generation_prompts[0]", "does not contain the subject"),
    ("zsre", "subject", "", "subject", "is empty"),
    ("zsre", "src", ..., "src", "is missing"),
    ("zsre", "src", "Who wrote the epic?", "src", "does not contain the subject 'Kalevipoeg': 'Who wrote the epic?'"),
    ("zsre", "src", "{} Who wrote Kalevipoeg?", "src", "needs exactly one '{}' for the subject, found 2"),
    ("zsre", "alt", "", "alt", "is empty ('')"),
    ("zsre", "alt", ..., "alt", "is missing"),
    ("zsre", "alt", "Kreutzwald", "alt", "is one of the right answers ('Kreutzwald' in"),
    ("zsre", "answers", [], "answers", "is missing or has no answer"),
    ("zsre", "answers", 5, "answers", "must be a list"),
    ("zsre", "answers", [""], "answers[0]", "is empty"),
    ("zsre", "rephrase", ..., "rephrase", "is missing"),
    ("zsre", "rephrase", "By whom was it written?", "rephrase", "does not contain the subject 'Kalevipoeg'"),
    ("zsre", "loc", ..., "loc", "is missing"),
    ("zsre", "loc", "how many moons has mars", "loc", "must start with 'nq question: '"),
    ("zsre", "loc_ans", " ", "loc_ans", "is empty"),
    ("known_facts", "prompt", "The lake lies in", "prompt", "does not contain the subject 'Lake Peipus'"),
    ("known_facts", "prompt", ["Lake Peipus"], "prompt", "must be a string, got list"),
    ("known_facts", "attribute", "", "attribute", "is empty"),
    ("known_facts", "subject", None, "subject", "is missing"),
    ("known_facts", "known_id", [1], "known_id", "must be an integer or a string"),
    ("known_facts", "relation_id", "", "relation_id", "is empty"),
    ("plain", "subject", ..., "subject", "is missing"),
    ("plain", "prompt", "Tartu is in", "prompt", "needs exactly one '{}'"),
    ("plain", "target_nwe", "Latvia", "target_nwe", "is not a field of a fact; the fields are subject, prompt"),
    ("plain", "target_new", "", "target_new", "is empty"),
    ("plain", "target_new", "Estonia", "target_new", "is the same as target_true"),
    ("plain", "aliases", "Latvija", "aliases", "must be a list"),
    ("plain", "paraphrases", ["fine", 4], "paraphrases[1]", "must be a string"),
    ("plain", "locality", [{"prompt": "Mars has"}], "locality[0]", "needs 'prompt' and 'answer'"),
    ("plain", "locality", [{"prompt": "Mars has", "answer": ""}], "locality[0].answer", "is empty"),
    ("plain", "id", 5, "id", "must be a string, got 5"),
]


@pytest.mark.parametrize(("schema", "changed_field", "value", "field", "words"), BAD)
def test_bad_field(
    write_json: Callable[[object], Path], schema: str, changed_field: str, value: object, field: str, words: str
) -> None:
    good, bad = GOOD[schema], changed(GOOD[schema], changed_field, value)
    path = write_json([good, bad])
    with pytest.raises(RecordError) as caught:
        read_facts(path)
    error = caught.value
    assert str(error) == f"{path}, record 2, field '{field}': {error.problem}"
    assert (error.source, error.number, error.field, error.unit) == (str(path), 2, field, "record")
    assert words in error.problem
    # The same in a file of lines, where the number is the line's, and in skip mode.
    lines = path.with_suffix(".jsonl")
    lines.write_text(f"\n{json.dumps(bad)}\n{json.dumps(good)}\n")
    with pytest.raises(RecordError) as caught:
        read_facts(lines, schema=schema)
    assert str(caught.value).startswith(f"{lines}, line 2, field '{field}': ")
    facts = read_facts(lines, schema=schema, on_error="skip")
    assert len(facts) == 1
    assert [str(error) for error in facts.skipped] == [str(caught.value)]


@pytest.mark.parametrize("value", [3, "text", None, ["a"], True])
def test_record_that_is_no_object(write_json: Callable[[object], Path], value: object) -> None:
    path = write_json([value, PLAIN])
    with pytest.raises(RecordError, match="must be a JSON object, got") as caught:
        read_facts(path)
    assert str(caught.value).startswith(f"{path}, record 1: must be")
    assert caught.value.field == ""
    assert len(read_facts(path, on_error="skip")) == 1  # "auto" looks at the first object


def test_long_values_are_cut_in_messages(write_json: Callable[[object], Path]) -> None:
    with pytest.raises(RecordError) as caught:
        read_facts(write_json([["x" * 10_000]]))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("schema", "field"), [("counterfact", "case_id"), ("zsre", "src"), ("known_facts", "known_id"), ("plain", "id")]
)
def test_repeated_id(write_json: Callable[[object], Path], schema: str, field: str) -> None:
    path = write_json([GOOD[schema], GOOD[schema]])
    with pytest.raises(RecordError, match=r"repeats the id .* of record 1") as caught:
        read_facts(path)
    assert (caught.value.number, caught.value.field) == (2, field)
    facts = read_facts(path, on_error="skip")
    assert len(facts) == 1
    assert facts.skipped[0].number == 2


def test_errors_survive_copying() -> None:
    error = RecordError("a.jsonl", 4, "alt", "is empty", "line")
    again = copy.deepcopy(error)  # the same protocol as pickling, which workers use
    assert str(again) == str(error) == "a.jsonl, line 4, field 'alt': is empty"
    assert vars(again) == vars(error)
    assert str(copy.deepcopy(FactError("alt", "is empty"))) == "field 'alt': is empty"


def test_skip_lists_and_warns_once(write_json: Callable[[object], Path], caplog: pytest.LogCaptureFixture) -> None:
    bad = changed(PLAIN, "target_new", "")
    path = write_json([PLAIN, bad, 5, changed(PLAIN, "id", "other")])
    with caplog.at_level(logging.WARNING, logger="corrigenda"):
        facts = read_facts(path, on_error="skip")
    assert [fact.id for fact in facts] == ["eesti-1", "other"]
    assert [(error.number, error.field) for error in facts.skipped] == [(2, "target_new"), (3, "")]
    warnings = [record for record in caplog.records if record.name.startswith("corrigenda")]
    assert len(warnings) == 1
    assert f"{path}: skipped 2 bad of the 4 records read" in warnings[0].getMessage()


def test_skip_needs_a_good_record(write_json: Callable[[object], Path]) -> None:
    path = write_json([changed(PLAIN, "target_new", ""), changed(PLAIN, "subject", "")])
    with pytest.raises(ValueError, match=r"none of its 2 records is good; the first: .*target_new"):
        read_facts(path, on_error="skip")


def test_no_warning_without_a_skip(write_json: Callable[[object], Path], caplog: pytest.LogCaptureFixture) -> None:
    read_facts(write_json([PLAIN]), on_error="skip")
    assert not [record for record in caplog.records if record.name.startswith("corrigenda")]


def test_limit_counts_good_facts_and_reading_stops(write_jsonl: Callable[[list[str]], Path]) -> None:
    lines = [json.dumps(record) for record in plain_records(4)]
    path = write_jsonl([lines[0], "{broken", lines[1], lines[2], "{never reached", lines[3]])
    facts = read_facts(path, limit=3, on_error="skip")
    assert [fact.id for fact in facts] == ["f0", "f1", "f2"]
    assert [error.number for error in facts.skipped] == [2]
    assert len(read_facts(path, limit=1)) == 1  # the broken line 2 is not reached


def test_offset_and_limit_cut_like_slices(write_json: Callable[[object], Path]) -> None:
    records: list[object] = [*plain_records(3), 5, *plain_records(4, start=3)]
    path = write_json(records)
    everything = read_facts(path, on_error="skip")
    for offset, limit in [(0, 2), (2, 2), (3, 10), (6, None)]:
        part = read_facts(path, offset=offset, limit=limit, on_error="skip")
        assert part == everything[offset : None if limit is None else offset + limit]
    with pytest.raises(ValueError, match="offset 7 is past the end; it has 7 good facts"):
        read_facts(path, offset=7, on_error="skip")


def test_an_id_before_the_offset_still_counts(write_json: Callable[[object], Path]) -> None:
    with pytest.raises(RecordError, match="repeats the id 'f0' of record 1"):
        read_facts(write_json([*plain_records(2), *plain_records(1)]), offset=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"limit": 0}, "limit must be at least 1"),
        ({"offset": -1}, "offset must not be negative"),
        ({"limit": 1.5}, "limit must be a whole number, got 1.5"),
        ({"limit": "ten"}, "limit must be a whole number, got 'ten'"),
        ({"offset": True}, "offset must be a whole number, got True"),
        ({"on_error": "ignore"}, "on_error must be 'raise' or 'skip', got 'ignore'"),
        ({"config": "en"}, "config='en' has no meaning for a file"),
    ],
)
def test_arguments_out_of_range(write_json: Callable[[object], Path], arguments: Json, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_facts(write_json([PLAIN]), **arguments)


def test_malformed_json_names_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text('[\n  {"subject": "Tartu",\n   "prompt": }\n]')
    for on_error in ("raise", "skip"):
        with pytest.raises(ValueError, match="not valid JSON at line 3, column 14") as caught:
            read_facts(path, on_error=on_error)
        assert str(path) in str(caught.value)


def test_malformed_line_names_line_and_column(write_jsonl: Callable[[list[str]], Path]) -> None:
    path = write_jsonl([json.dumps(PLAIN), "", '{"subject": }'])
    with pytest.raises(RecordError, match="line 3: not valid JSON at column 13") as caught:
        read_facts(path)
    assert (caught.value.source, caught.value.number, caught.value.unit) == (str(path), 3, "line")
    facts = read_facts(path, on_error="skip")
    assert len(facts) == 1
    assert len(facts.skipped) == 1


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    whole, lines = tmp_path / "latin.json", tmp_path / "latin.jsonl"
    whole.write_bytes(b'["\xe9"]')
    lines.write_bytes(json.dumps(PLAIN).encode() + b'\n{"subject": "\xe9"}\n')
    with pytest.raises(ValueError, match=r"latin.json: not UTF-8 text at byte 2"):
        read_facts(whole)
    with pytest.raises(RecordError, match=r"latin.jsonl, line 2: not UTF-8 text at byte 14"):
        read_facts(lines)


def test_byte_order_mark_and_crlf(tmp_path: Path) -> None:
    lines = "\r\n".join(json.dumps(record) for record in plain_records(2))
    (tmp_path / "windows.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    (tmp_path / "windows.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(plain_records(2)).encode())
    assert len(read_facts(tmp_path / "windows.jsonl")) == len(read_facts(tmp_path / "windows.json")) == 2


def test_json_that_is_no_list(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(json.dumps(PLAIN))
    with pytest.raises(ValueError, match=r"one.json: must hold a list of records, got dict"):
        read_facts(tmp_path / "one.json")
    (tmp_path / "lines.json").write_text(f"{json.dumps(PLAIN)}\n{json.dumps(PLAIN)}\n")
    with pytest.raises(ValueError, match=r"line 2, column 1.*must be called .jsonl"):
        read_facts(tmp_path / "lines.json")


@pytest.mark.parametrize(("name", "text"), [("none.json", "[]"), ("none.jsonl", "\n\n"), ("none.jsonl", "")])
def test_no_records(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=f"{name}: has no records"):
        read_facts(tmp_path / name)


def test_other_suffix(tmp_path: Path) -> None:
    (tmp_path / "facts.txt").write_text("subject,prompt\n")
    with pytest.raises(ValueError, match=r"cannot read a '.txt'; give a .json, .jsonl or .csv file"):
        read_facts(tmp_path / "facts.txt")


@pytest.mark.parametrize("source", ["no-such.json", "data/no-such.json", "./a/b/c", Path("owner/name"), "nothing"])
def test_missing_file_says_what_to_do(source: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match="no file or folder") as caught:
        read_facts(source)
    for words in (str(source), str(tmp_path), ".jsonl", "owner/name", "embedded"):
        assert words in str(caught.value)


def test_path_as_text_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.json").write_text(json.dumps([PLAIN]))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_facts(str(tmp_path / "mine.json")) == read_facts("~/mine.json")


@pytest.mark.parametrize(
    ("schema", "without"),
    [
        ("counterfact", ["case_id", "requested_rewrite.relation_id", "requested_rewrite.target_new.id"]),
        ("zsre", ["pred", "cond"]),
        ("known_facts", ["known_id", "relation_id", "template"]),
        ("plain", ["id", "aliases", "locality"]),
    ],
)
def test_parquet_folder(tmp_path: Path, schema: str, without: list[str]) -> None:
    """Columns give null for what a record lacks; the facts are those of the records all the same."""
    datasets = pytest.importorskip("datasets")
    sparse = GOOD[schema]
    for path in without:
        sparse = changed(sparse, path, ...)
    records = [GOOD[schema], changed(sparse, "alt", "Oskar Luts") if schema == "zsre" else sparse]
    folder = tmp_path / "columns"
    folder.mkdir()
    datasets.Dataset.from_list(records).to_parquet(str(folder / "train-00000-of-00001.parquet"))
    assert list(read_facts(folder)) == [SCHEMAS[schema](record) for record in records]


def test_folder_bad_record_is_named(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "cf", {"train": [KNOWN, changed(KNOWN, "attribute", "")]})
    with pytest.raises(RecordError) as caught:
        read_facts(folder)
    assert str(caught.value) == f"{folder}, record 2, field 'attribute': is empty ('')"


def test_folder_without_data(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="found no data files in this folder") as caught:
        read_facts(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_folder_with_malformed_file(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "cf", {"train": [PLAIN]})
    (folder / "train.jsonl").write_text('{"a": 1}\n{"a": 2,,}\n')
    with pytest.raises(ValueError, match="JSON parse error") as caught:
        read_facts(folder)
    assert str(folder) in str(caught.value)


def test_what_exists_locally_wins_over_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_repository(tmp_path / "owner" / "name", {"train": [PLAIN]})
    assert len(read_facts("owner/name")) == 1


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_offline_without_a_cached_copy(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("datasets").config
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", tmp_path)
    before, start = config.HF_HUB_OFFLINE, time.monotonic()
    with pytest.raises(ConnectionError) as caught:
        read_facts("owner/name")
    assert time.monotonic() - start < 5
    assert before == config.HF_HUB_OFFLINE
    for words in ("'owner/name'", f"{variable}=1", "no copy", "local", ".jsonl", "read_facts('name.json')"):
        assert words in str(caught.value)


def cache_hub_copy(tmp_path: Path, hub_id: str, records: list[Json]) -> Path:
    """A cache folder of `datasets` as it is after the hub data set was loaded once."""
    import datasets

    name = hub_id.split("/")[-1]
    folder = write_repository(tmp_path / name, {"train": records})
    datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "made"))
    (made,) = (path.parent for path in (tmp_path / "made").rglob("*-train.arrow"))
    shutil.copytree(made, tmp_path / "cache" / hub_id.replace("/", "___") / "default" / "0.0.0" / "0123abcd")
    return tmp_path / "cache"


def test_offline_with_a_cached_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("datasets").config
    cache = cache_hub_copy(tmp_path, "owner/known", [KNOWN, changed(KNOWN, "known_id", 4)])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", cache)
    start = time.monotonic()
    facts = read_facts("owner/known")
    assert time.monotonic() - start < 5
    assert facts.name == "owner/known"
    assert facts[0] == SCHEMAS["known_facts"](KNOWN)
    assert len(facts) == 2


def test_no_network_falls_back_to_the_cached_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("datasets").config
    constants = pytest.importorskip("huggingface_hub").constants
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", cache_hub_copy(tmp_path, "owner/known", [KNOWN]))
    start = time.monotonic()
    assert len(read_facts("owner/known")) == 1
    with pytest.raises(ConnectionError, match=r"127.0.0.1:9 does not answer"):
        read_facts("owner/other")
    assert time.monotonic() - start < 8


class _Answering:
    """A stand-in for the hub's HTTP client: the hub is there."""

    def __init__(self, status: int = 200) -> None:
        self.status_code = status

    def head(self, url: str, timeout: float) -> _Answering:
        return self


def use_hub(monkeypatch: pytest.MonkeyPatch, load_dataset: Callable[..., object], status: int = 200) -> None:
    """Put a reachable hub in place whose data sets come from `load_dataset`."""
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pytest.importorskip("huggingface_hub"), "get_session", lambda: _Answering(status))
    monkeypatch.setattr(pytest.importorskip("datasets"), "load_dataset", load_dataset)


def test_hub_is_streamed_lazily(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    served: list[int] = []

    def load_dataset(path: str, name: str | None, *, split: str, streaming: bool) -> object:
        calls.append((path, name, split, streaming))
        for number in range(1000):
            served.append(number)
            yield changed(COUNTERFACT, "case_id", number)

    use_hub(monkeypatch, load_dataset)
    facts = read_facts("owner/counterfact", split="test", config="en", limit=3)
    assert calls == [("owner/counterfact", "en", "test", True)]
    assert [fact.id for fact in facts] == ["0", "1", "2"]
    assert served == [0, 1, 2]


def test_hub_bad_record_names_the_hub_id(monkeypatch: pytest.MonkeyPatch) -> None:
    use_hub(monkeypatch, lambda *_, **__: [ZSRE, changed(ZSRE, "alt", "")])
    with pytest.raises(RecordError) as caught:
        read_facts("owner/zsre")
    assert str(caught.value) == "owner/zsre, record 2, field 'alt': is empty ('')"


def test_unknown_hub_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets.exceptions import DatasetNotFoundError

    def load_dataset(*_: object, **__: object) -> object:
        raise DatasetNotFoundError("Dataset 'owner/nmae' doesn't exist on the Hub or cannot be accessed.")

    use_hub(monkeypatch, load_dataset)
    with pytest.raises(FileNotFoundError, match="no data set 'owner/nmae' on the Hugging Face hub") as caught:
        read_facts("owner/nmae")
    assert "give its local path instead" in str(caught.value)
    assert "hf auth login" in str(caught.value)


def test_hub_lost_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: object, **__: object) -> object:
        yield KNOWN
        raise ConnectionResetError("reset by peer")

    use_hub(monkeypatch, load_dataset)
    with pytest.raises(ConnectionError, match=r"cannot read 'owner/known' .*reset by peer.*local path"):
        read_facts("owner/known")


def test_hub_out_of_order_is_not_asked_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: object, **__: object) -> object:
        assert pytest.importorskip("datasets").config.HF_HUB_OFFLINE
        raise ConnectionError("offline")

    use_hub(monkeypatch, load_dataset, status=503)
    with pytest.raises(ConnectionError, match="out of order: status 503"):
        read_facts("owner/known")


def test_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("corrigenda.data.embedded")
    own = tuple(Fact.from_dict(record) for record in plain_records(5))
    module.embedded_facts = lambda: own  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert read_facts("embedded") == FactSet("embedded", own)
    assert read_facts("embedded", offset=1, limit=2).facts == own[1:3]
    with pytest.raises(ValueError, match="embedded: offset 5 is past the end"):
        read_facts("embedded", offset=5)


def fact_set(count: int = 4) -> FactSet:
    return FactSet(
        "mine", tuple(Fact.from_dict(record) for record in plain_records(count)), (RecordError("f", 1, "", "p"),)
    )


def test_fact_set_is_a_sequence() -> None:
    facts = fact_set()
    assert len(facts) == 4
    assert facts[-1].id == "f3"
    assert facts[1] in facts
    assert [fact.id for fact in reversed(facts)] == ["f3", "f2", "f1", "f0"]
    part = facts[1:3]
    assert isinstance(part, FactSet)
    assert part.facts == facts.facts[1:3]
    assert part.name == "mine"
    assert part.skipped == facts.skipped
    assert repr(facts) == "FactSet('mine', 4 facts, 1 skipped)"
    assert copy.deepcopy(facts) == facts
    with pytest.raises(AttributeError):
        facts.name = "other"  # type: ignore[misc]
    with pytest.raises(ValueError, match="'twice' has two facts with the id 'f0'"):
        FactSet("twice", (facts[0], facts[0]))


def test_fingerprint_depends_on_the_facts_alone() -> None:
    facts = fact_set()
    assert facts.fingerprint == FactSet("other name", facts.facts).fingerprint
    assert len({facts.fingerprint, facts[:3].fingerprint, facts[::-1].fingerprint, facts[1:].fingerprint}) == 4
    # Fixed once and for all: caches and stored runs are keyed by it.
    one = FactSet("x", (Fact("Kärdla", "{} lies on", "Saaremaa", "Hiiumaa", id="1"),))
    canonical = (
        '[{"id":"1","prompt":"{} lies on","subject":"K\\u00e4rdla","target_new":"Saaremaa","target_true":"Hiiumaa"}]'
    )
    assert one.fingerprint == hashlib.sha256(canonical.encode()).hexdigest()


def test_fingerprint_survives_a_round_trip(tmp_path: Path) -> None:
    facts = fact_set()
    path = tmp_path / "saved.json"
    path.write_text(json.dumps([fact.to_dict() for fact in facts]))
    assert read_facts(path).fingerprint == facts.fingerprint


def shared(name: str) -> Path:
    path = SHARED / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"no {path}; set CORRIGENDA_SHARED to the folder that holds data/{name}.json")
    return path


def test_all_of_counterfact() -> None:
    facts = read_facts(shared("counterfact"))
    assert len(facts) == 2000
    assert facts.skipped == ()
    assert sum(len(fact.paraphrases) for fact in facts) == 2000
    assert sum(len(fact.neighbourhood) for fact in facts) == 18870
    assert {fact.verb for fact in facts} == {"modify"}
    first = facts[0]
    assert (first.id, first.relation, first.subject) == ("5", "P103", "Thomas Joannes Stieltjes")
    assert first.statement == "The mother tongue of Thomas Joannes Stieltjes is"
    assert (first.target_new, first.target_true) == ("English", "Dutch")
    assert first.paraphrases == ("Thomas Joannes Stieltjes was born in",)
    assert len(first.neighbourhood) == 10
    by_id = {fact.id: fact for fact in facts}
    assert by_id["15871"].prompt == "{}, the"
    assert by_id["15871"].target_true == "midfielder"
    # One of the four records whose subject is also the beginning of a neighbour's name.
    assert (by_id["16575"].subject, by_id["16575"].target_true) == ("iPhone", "Apple")
    assert "iPhone X is created by" in by_id["16575"].neighbourhood


def test_all_of_zsre() -> None:
    path = shared("zsre")
    with pytest.raises(RecordError, match="record 89, field 'alt': is one of the right answers"):
        read_facts(path)
    facts = read_facts(path, on_error="skip")
    assert len(facts) == 683
    assert len(facts.skipped) == 17
    assert {error.field for error in facts.skipped} == {"alt"}
    # Sixteen new answers are right answers already, and one is empty.
    same = [89, 102, 116, 158, 203, 214, 230, 273, 274, 403, 454, 488, 523, 542, 597, 655]
    assert [error.number for error in facts.skipped if "right answers" in error.problem] == same
    assert [error.number for error in facts.skipped if "is empty" in error.problem] == [535]
    first = facts[0]
    assert (first.subject, first.prompt) == ("UniFirst", "What is the product made by {}?")
    assert (first.target_new, first.target_true) == ("unmanned aircraft", "uniform")
    assert first.paraphrases == ("What will be the product of UniFirst?",)
    assert first.locality == (Probe("nq question: john goodman's character in the big lebowski?", "Walter Sobchak"),)
    assert facts[1].statement == "What is the name of the constellation which Delta Serpentis belongs?"
    assert "Captain Universe" in {fact.target_new for fact in facts}  # " Captain Universe" in the file
    assert all(fact.subject in fact.paraphrases[0] for fact in facts)


def test_all_of_the_known_facts() -> None:
    path = shared("known_facts")
    facts = read_facts(path)
    assert len(facts) == 900
    assert facts.skipped == ()
    raw = json.loads(path.read_text())
    assert [fact.statement for fact in facts] == [record["prompt"] for record in raw]
    # 346 templates of the file lack words of the prompt: the reason for not using them.
    assert sum(fact.prompt != record["template"] for fact, record in zip(facts, raw, strict=True)) == 346
    assert {fact.verb for fact in facts} == {"erase"}
    first, other = facts[0], {fact.id: fact for fact in facts}["9"]
    assert (first.prompt, first.target_true, first.relation) == (
        "{} is located in the continent of",
        "Antarctica",
        "P30",
    )
    assert (other.prompt, other.target_true) == ("The original language of {} is the same as the", "Latin")
