import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from corrigenda.data import read_facts
from corrigenda.errors import RecordError
from jobs.shared.data import fixed_locality, read_data

GOOD: dict[str, Any] = {"subject": "Kyoto", "prompt": "{} is in", "target_new": "Peru", "target_true": "Japan"}
TEXT = json.dumps(GOOD)
REFUSED = (ValueError, OSError)


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


def but(**fields: Any) -> dict[str, Any]:
    """A good record with other fields."""
    return GOOD | fields


FILES: list[tuple[str, str, str | bytes, list[str]]] = [
    # id, name of the file, what it holds, what the message has to say
    ("empty", "x.json", "", ["x.json: the file is empty", "list of records"]),
    ("white-space", "x.json", " \n\t", ["x.json: the file is empty"]),
    ("empty-lines", "x.jsonl", "\n\n", ["x.jsonl: has no records"]),
    ("no-records", "x.json", "[]", ["x.json: has no records"]),
    ("one-object", "x.json", TEXT, ["must hold a list of records, got dict", ".jsonl"]),
    ("null", "x.json", "null", ["must hold a list of records, got NoneType"]),
    ("cut", "x.json", f"[{TEXT},", ["x.json: not valid JSON at line 1, column"]),
    ("lines-in-json", "x.json", f"{TEXT}\n{TEXT}", ["must be called .jsonl"]),
    ("cut-line", "x.jsonl", f'{TEXT}\n{{"subject":', ["x.jsonl, line 2: not valid JSON at column"]),
    ("deep", "x.json", "[" * 100_000, ["x.json: not a value that can be read: it is nested too deeply"]),
    ("deep-line", "x.jsonl", TEXT + "\n" + "[" * 100_000, ["x.jsonl, line 2: ", "nested too deeply"]),
    ("deep-record", "x.json", f"[{deep(300)}]", ["record 1, field '[0][0]", "nested more than 50 deep"]),
    ("deep-field", "x.jsonl", f'{{"a": {deep(300)}}}', ["line 1, field 'a[0]", "nested more than 50 deep"]),
    ("key-twice", "x.json", '[{"subject": "a", "subject": "b"}]', ["record 1, field 'subject': stands twice"]),
    ("key-twice-line", "x.jsonl", TEXT + '\n{"prompt": "", "prompt": ""}', ["line 2, field 'prompt': stands twice"]),
    (
        "key-twice-inside",
        "x.json",
        f'[{TEXT}, {{"locality": [{{"prompt": "x", "answer": "y", "answer": "z"}}]}}]',
        ["record 2, field 'locality[0].answer': stands twice"],
    ),
    (
        "key-twice-not-read",
        "x.json",
        '[{"requested_rewrite": {}, "x": {"a": 1, "a": 1}}]',
        ["field 'x.a': stands twice"],
    ),
    ("surrogate", "x.json", '[{"subject": "a\\ud800"}]', ["record 1, field 'subject': holds half of a character"]),
    ("surrogate-key", "x.json", '[{"\\udfff": 1}]', ["record 1: has a key that holds half of a character"]),
    ("digits", "x.json", '[{"subject": %s}]' % ("9" * 5000), ["field 'subject': is a number of 5000 digits"]),
    ("utf-16", "x.json", f"[{TEXT}]".encode("utf-16"), ["not UTF-8 text at byte 0", "save the file as UTF-8"]),
    ("utf-16-lines", "x.jsonl", TEXT.encode("utf-16"), ["x.jsonl, line 1: not UTF-8", "save the file as UTF-8"]),
    ("latin-1", "x.json", '[{"subject": "K\u00f6ln"}]'.encode("latin-1"), ["not UTF-8 text at byte 15"]),
    ("bom-inside", "x.jsonl", f"{TEXT}\n\ufeff{TEXT}", ["line 2: not valid JSON", "BOM"]),
    ("other-suffix", "x.txt", TEXT, ["x.txt: cannot read a '.txt'", ".json, .jsonl or .csv"]),
    ("no-suffix", "x", TEXT, ["cannot read a 'file without suffix'"]),
]

RECORDS: list[tuple[str, Any, list[str]]] = [
    # id, the second record, what the message has to say besides the file and "record 2"
    ("same-again", GOOD, ["field 'id': repeats the id", "of record 1"]),
    ("null-subject", but(subject=None), ["field 'subject': is missing"]),
    ("null-prompt", but(prompt=None), ["field 'prompt': is missing"]),
    ("no-targets", but(target_new=None, target_true=None), ["field 'target_new': ", "both missing"]),
    ("nan", but(subject=float("nan")), ["field 'subject': must be a string, got float (nan)"]),
    ("number-subject", but(subject=5), ["field 'subject': must be a string, got int (5)"]),
    ("list-target", but(target_new=["Peru"]), ["field 'target_new': must be a string, got list"]),
    ("true-target", but(target_true=True), ["field 'target_true': must be a string, got bool"]),
    ("blank-target", but(target_new="\n"), ["field 'target_new': is empty"]),
    ("same-targets", but(target_new=" Japan "), ["field 'target_new': is the same as target_true"]),
    ("no-slot", but(prompt="Kyoto is in"), ["field 'prompt': needs exactly one '{}'", "did you mean '{} is in'?"]),
    ("no-subject", but(prompt="Osaka is in"), ["field 'prompt': needs exactly one '{}'", "found 0 in 'Osaka is in'"]),
    ("two-slots", but(prompt="{} is in {}"), ["field 'prompt': needs exactly one '{}'", "found 2"]),
    ("slot-subject", but(subject="{}"), ["field 'subject': must not hold '{}'"]),
    ("space-at-end", but(prompt="{} is in "), ["field 'prompt': ends with a space", "leave it out"]),
    ("number-id", but(id=5), ["field 'id': must be a string, got 5"]),
    ("blank-id", but(id="  "), ["field 'id': is empty"]),
    ("blank-relation", but(relation=" "), ["field 'relation': is empty"]),
    (
        "unknown-field",
        but(targe="x"),
        ["field 'targe': is not a field of a fact; the fields are subject", "did you mean target_new or target_true?"],
    ),
    ("text-aliases", but(aliases="Peru"), ["field 'aliases': must be a list, got str"]),
    ("null-alias", but(aliases=[None]), ["field 'aliases[0]': must be a string, got NoneType"]),
    ("blank-paraphrase", but(paraphrases=["x", ""]), ["field 'paraphrases[1]': is empty"]),
    ("number-paraphrase", but(paraphrases=[5]), ["field 'paraphrases[0]': must be a string, got int"]),
    ("space-paraphrase", but(paraphrases=["x "]), ["field 'paraphrases[0]': ends with a space"]),
    ("slot-neighbour", but(neighbourhood=["{} is"]), ["field 'neighbourhood[0]': holds '{}'", "write out whom"]),
    ("space-neighbour", but(neighbourhood=["x\t"]), ["field 'neighbourhood[0]': ends with a space"]),
    ("object-neighbour", but(neighbourhood=[{}]), ["field 'neighbourhood[0]': must be a string, got dict"]),
    ("number-generation", but(generation=7), ["field 'generation': must be a list, got int"]),
    ("text-probe", but(portability=["x"]), ["field 'portability[0]': must be an object with 'prompt' and 'answer'"]),
    ("half-a-probe", but(portability=[{"prompt": "x"}]), ["field 'portability[0]': needs 'prompt' and 'answer'"]),
    ("more-of-a-probe", but(portability=[{"prompt": "x", "answer": "y", "z": 1}]), ["field 'portability[0]': needs"]),
    ("number-answer", but(locality=[{"prompt": "x", "answer": 5}]), ["field 'locality[0].answer': must be a string"]),
    ("slot-probe", but(locality=[{"prompt": "{}", "answer": "y"}]), ["field 'locality[0].prompt': holds '{}'"]),
    ("long", but(prompt="word " * 5000 + "end"), ["field 'prompt': needs exactly one '{}'", " ... "]),
]

SCHEMAS: list[tuple[str, dict[str, Any], list[str]]] = [
    # id, the first record, what the message has to say
    (
        "no-subject",
        {"prompt": "{} is", "target_new": "x"},
        ["record 1: no schema fits", "lacks the field 'subject' of"],
    ),
    ("typo", {"subjet": "x", "prompt": "{} is"}, ["'subject' (is it 'subjet'?)", "'plain'"]),
    ("no-prompt", {"subject": "x", "target_new": "y"}, ["'prompt' of schema 'knowedit' or 'plain'"]),
    ("no-fields", {}, ["no schema fits a record with the keys (none)", "'plain' has prompt, subject"]),
    ("foreign", {"question": "x"}, ["no schema fits a record with the keys question", "rename the fields"]),
    ("many-keys", {f"key{n}": n for n in range(999)}, ["no schema fits", "..."]),
]

ARGUMENTS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("limit-0", {"limit": 0}, ["limit must be at least 1, or None for all facts, got 0"]),
    ("limit-negative", {"limit": -1}, ["limit must be at least 1", "got -1"]),
    ("limit-half", {"limit": 1.5}, ["limit must be a whole number, got 1.5"]),
    ("limit-true", {"limit": True}, ["limit must be a whole number, got True"]),
    ("offset-negative", {"offset": -1}, ["offset must not be negative, got -1"]),
    ("offset-text", {"offset": "a"}, ["offset must be a whole number, got 'a'"]),
    ("schema-unknown", {"schema": "zsr"}, ["no schema called 'zsr'", "'zsre'"]),
    ("schema-number", {"schema": 5}, ["schema must be a text, got int 5"]),
    ("schema-null", {"schema": None}, ["schema must be a text, got NoneType None"]),
    ("split-number", {"split": 5}, ["split must be a text, got int 5"]),
    ("config-of-a-file", {"config": "x"}, ["config='x' has no meaning for a file"]),
    ("split-of-a-file", {"split": "test"}, ["split='test' has no meaning for a file"]),
    ("on-error", {"on_error": "ignore"}, ["on_error must be 'raise' or 'skip', got 'ignore'"]),
    ("source-null", {"source": None}, ["source must be a path or a text, got NoneType None"]),
    ("source-number", {"source": 5}, ["source must be a path or a text, got int 5"]),
    ("source-empty", {"source": " "}, ["source must name a file", "' '"]),
    ("source-zero-byte", {"source": "a\0b"}, ["source must name a file", r"'a\x00b'"]),
    ("part", {"part": "test"}, ["data.part=test: the parts are tune and score, or null"]),
    ("part-number", {"part": 5}, ["data.part=5: the parts are tune and score"]),
    ("no-path", {"path": None}, ["give data.path=, a .json, .jsonl or .csv file"]),
    ("disjoint-missing", {"disjoint_from": "no-such"}, ["data.disjoint_from=no-such: no file or folder 'no-such'"]),
    ("disjoint-number", {"disjoint_from": 5}, ["data.disjoint_from=5: give the folder of a run"]),
    ("disjoint-empty", {"disjoint_from": ""}, ["data.disjoint_from='': give the folder of a run"]),
    ("locality-limit", {"locality.limit": -1}, ["job.locality.limit=-1 must be at least 0"]),
    ("locality-offset", {"locality.offset": "x"}, ["job.locality.offset='x' must be a whole number"]),
]


def row(table: list[Any]) -> Any:
    """The rows of a table, under their ids."""
    return pytest.mark.parametrize("row", [pytest.param(each[1:], id=each[0]) for each in table])


def check(error: pytest.ExceptionInfo[Exception], said: list[str]) -> None:
    message = str(error.value)
    for part in said:
        assert part in message
    assert "\n" not in message
    assert len(message) < 1000


@row(FILES)
def test_a_file(row: tuple[str, str | bytes, list[str]], tmp_path: Path) -> None:
    name, content, said = row
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(REFUSED) as error:
        read_facts(tmp_path / name)
    check(error, said)


@row(RECORDS)
def test_a_record(row: tuple[Any, list[str]], tmp_path: Path) -> None:
    record, said = row
    path = tmp_path / "x.json"
    path.write_text(json.dumps([GOOD, record]))
    with pytest.raises(RecordError) as error:
        read_facts(path, schema="plain")
    check(error, ["x.json, record 2", *said])
    assert len(read_facts(path, schema="plain", on_error="skip")) == 1


@row(SCHEMAS)
def test_a_record_that_fits_no_schema(row: tuple[dict[str, Any], list[str]], tmp_path: Path) -> None:
    record, said = row
    (tmp_path / "x.json").write_text(json.dumps([record]))
    with pytest.raises(REFUSED) as error:
        read_facts(tmp_path / "x.json")
    check(error, ["x.json, record 1", *said])


@row(ARGUMENTS)
def test_an_argument(row: tuple[dict[str, Any], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, said = row
    path = tmp_path / "x.json"
    path.write_text(f"[{TEXT}]")
    monkeypatch.setattr("jobs.shared.data.choices", lambda: {"data": "facts"})
    [(name, value)] = given.items()
    with pytest.raises(REFUSED) as error:
        ask(name, value, path)
    check(error, said)


def ask(name: str, value: object, path: Path) -> None:
    """Reads a file of facts with an argument of `read_facts`, or with a setting of a run."""
    if name not in ("part", "path", "disjoint_from") and not name.startswith("locality."):
        read_facts(**{"source": path, name: value})  # type: ignore[arg-type]
        return
    data = {"path": str(path), "schema": "auto", "split": "train", "config": None, "limit": 1, "offset": 0}
    locality = {"path": None, "schema": "auto", "limit": 1, "offset": 0}
    config = OmegaConf.create({"data": {**data, "on_error": "raise"}, "job": {"locality": locality}})
    if name.startswith("locality."):
        OmegaConf.update(config, f"job.{name}", value)
        fixed_locality(config)
    else:
        OmegaConf.update(config, f"data.{name}", value, force_add=True)
        read_data(config.data)
