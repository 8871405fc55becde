import copy
import hashlib
import json
import logging
from pathlib import Path

import pytest
from composed import composed
from malformed_parts import refused
from readers_parts import CASES, PLAIN, RECORDS, Json, changed, plain_records, shared, write

from corrigenda.data import SCHEMAS, FactSet, read_facts, ripple_edits, write_facts
from corrigenda.data.probes import answers_in, group_name, probe
from corrigenda.errors import FactError, RecordError
from corrigenda.facts import Fact, Probe


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "facts.json"


def variants() -> list[tuple[str, Json, Json]]:
    """The data set, what is changed in its record, and what is other in the fact."""
    own = [(name, {}, {}) for name in CASES]
    return own + [(name, *variant) for name, case in CASES.items() for variant in case.get("variants", ())]


def expected(name: str, other: Json) -> Fact:
    """The case's fact, where some of its fields are other ones."""
    return Fact.from_dict({key: value for key, value in (CASES[name]["fact"] | other).items() if value is not None})


@pytest.mark.parametrize("auto", [True, False])
@pytest.mark.parametrize(("name", "change", "other"), variants())
def test_fact(path: Path, name: str, auto: bool, change: Json, other: Json) -> None:
    record, schema = RECORDS[name], CASES[name]["schema"]
    for place, value in change.items():
        record = changed(record, place, value)
    facts = read_facts(write(path, record), schema="auto" if auto else schema)
    assert facts.schema == facts[:1].schema == facts.shuffled(1).schema == schema
    [fact] = facts
    assert facts.name == "facts"
    for field in {*CASES[name]["fact"], *other} if not change else other:
        assert getattr(fact, field) == getattr(expected(name, other), field), field
    if not change:
        assert fact == SCHEMAS[schema](record) == expected(name, {})
    assert Fact.from_dict(json.loads(json.dumps(fact.to_dict()))) == fact


# ZsRE's prompts are texts here and lists there, which is no column.
@pytest.mark.parametrize("name", sorted(CASES.keys() - {"ZsRE", "knowedit without probes"}))
def test_parquet(tmp_path: Path, name: str) -> None:
    datasets = pytest.importorskip("datasets")
    case = CASES[name]
    records = [case["record"]]
    without = {
        "counterfact": ["case_id", "requested_rewrite.relation_id", "requested_rewrite.target_new.id"],
        "zsre": ["pred", "cond"],
        "known_facts": ["known_id", "relation_id", "template"],
        "plain": ["id", "aliases", "locality"],
    }
    if name in without:
        sparse = changed(records[0], "alt", "Oskar Luts") if name == "zsre" else records[0]
        for field in without[name]:
            sparse = changed(sparse, field, "<absent>")
        records.append(sparse)
    (tmp_path / "columns").mkdir()
    datasets.Dataset.from_list(records).to_parquet(str(tmp_path / "columns" / "train-00000-of-00001.parquet"))
    facts = list(read_facts(tmp_path / "columns", schema=case["schema"]))
    assert facts == [SCHEMAS[case["schema"]](record) for record in records]
    assert facts[0] == expected(name, {})


BAD = [(name, *bad) for name, case in CASES.items() for bad in case.get("bad", ())]


@pytest.mark.parametrize(("name", "place", "value", "field", "words"), BAD)
def test_bad_field(path: Path, name: str, place: str, value: object, field: str, words: str) -> None:
    good, bad = RECORDS[name], changed(RECORDS[name], place, value)
    write(path, good, bad)
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
        read_facts(lines, schema=CASES[name]["schema"])
    assert str(caught.value).startswith(f"{lines}, line 2, field '{field}': ")
    facts = read_facts(lines, schema=CASES[name]["schema"], on_error="skip")
    assert len(facts) == 1
    assert [str(error) for error in facts.skipped] == [str(caught.value)]


@pytest.mark.parametrize("value", [3, "text", None, ["a"], True, ["x" * 10_000]])
def test_record_that_is_no_object(path: Path, value: object) -> None:
    write(path, value, PLAIN)
    with pytest.raises(RecordError, match="must be a JSON object, got") as caught:
        read_facts(path)
    assert str(caught.value).startswith(f"{path}, record 1: must be")
    assert caught.value.field == ""
    assert len(str(caught.value)) < 500
    assert len(read_facts(path, on_error="skip")) == 1  # "auto" looks at the first object


@pytest.mark.parametrize(
    ("name", "field"), [("counterfact", "case_id"), ("zsre", "src"), ("known_facts", "known_id"), ("plain", "id")]
)
def test_repeated_id(path: Path, name: str, field: str) -> None:
    write(path, RECORDS[name], RECORDS[name])
    with pytest.raises(RecordError, match=r"repeats the id .* of record 1") as caught:
        read_facts(path)
    assert (caught.value.number, caught.value.field) == (2, field)
    facts = read_facts(path, on_error="skip")
    assert (len(facts), [error.number for error in facts.skipped]) == (1, [2])


def test_errors_survive_copying() -> None:
    error = RecordError("a.jsonl", 4, "alt", "is empty", "line")
    again = copy.deepcopy(error)  # the same protocol as pickling, which workers use
    assert str(again) == str(error) == "a.jsonl, line 4, field 'alt': is empty"
    assert vars(again) == vars(error)
    assert str(copy.deepcopy(FactError("alt", "is empty"))) == "field 'alt': is empty"


def test_skip_lists_and_warns_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad = changed(PLAIN, "target_new", "")
    with caplog.at_level(logging.WARNING, logger="corrigenda"):
        read_facts(write(path, PLAIN), on_error="skip")
        assert not caplog.records
        facts = read_facts(write(path, PLAIN, bad, 5, changed(PLAIN, "id", "other")), on_error="skip")
    assert [fact.id for fact in facts] == ["eesti-1", "other"]
    assert [(error.number, error.field) for error in facts.skipped] == [(2, "target_new"), (3, "")]
    [warning] = [record for record in caplog.records if record.name.startswith("corrigenda")]
    assert f"{path}: skipped 2 bad of the 4 records read" in warning.getMessage()
    with pytest.raises(ValueError, match=r"none of its 2 records is good; the first: .*target_new"):
        read_facts(write(path, bad, changed(PLAIN, "subject", "")), on_error="skip")


def test_limit_counts_good_facts_and_reading_stops(tmp_path: Path) -> None:
    path = tmp_path / "facts.jsonl"
    lines = [json.dumps(record) for record in plain_records(4)]
    path.write_text("\n".join([lines[0], "{broken", lines[1], lines[2], "{never reached", lines[3], ""]))
    facts = read_facts(path, limit=3, on_error="skip")
    assert [fact.id for fact in facts] == ["f0", "f1", "f2"]
    assert [error.number for error in facts.skipped] == [2]
    assert len(read_facts(path, limit=1)) == 1  # the broken line 2 is not reached


def test_offset_and_limit_cut_like_slices(path: Path) -> None:
    write(path, *plain_records(3), 5, *plain_records(4, start=3))
    everything = read_facts(path, on_error="skip")
    for offset, limit in [(0, 2), (2, 2), (3, 10), (6, None)]:
        part = read_facts(path, offset=offset, limit=limit, on_error="skip")
        assert part == everything[offset : None if limit is None else offset + limit]
    refused(ValueError, "offset 7 is past the end; it has 7 good facts", read_facts, path, offset=7, on_error="skip")
    with pytest.raises(RecordError, match="repeats the id 'f0' of record 1"):  # also of one before the offset
        read_facts(write(path, *plain_records(2), *plain_records(1)), offset=1)


def test_what_was_recognised_and_keys_that_are_not_read_are_said_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = RECORDS["EasyEdit"]
    with caplog.at_level(logging.INFO):
        read_facts(write(path, record))
        assert "read as 'knowedit', recognised by its keys" in caplog.text
        assert "keys that are not read" not in caplog.text
        odd = record | {"case_id": 8, "prompt": "The home of Otto Falk is", "weather": "mild", "empty": ""}
        read_facts(write(path, record | {"weather": "fine"}, odd))
    [said] = [record.message for record in caplog.records if "keys that are not read" in record.message]
    assert said.endswith("keys that are not read, and in how many of 2 records: weather (2)")


def test_answers_in() -> None:
    answers = [["Berlin", " Berlin, Germany "], [""], "no", 3]
    assert answers_in(answers, "a") == ("Berlin", "Berlin, Germany ", "no", "3")
    for nothing in (None, "  ", [[]]):
        assert answers_in(nothing, "a") == ()


def test_probe_keeps_what_can_be_scored() -> None:
    assert probe("Carbon is", ["carbon", "C", "6", "carbon"]) == (Probe("Carbon is", "carbon", ("6",)),)
    assert probe("Carbon is", ["C"]) == (Probe("Carbon is", "C"),)  # the only answer stays, whatever it is
    assert probe("Carbon is", []) == ()


def test_groups_have_names_for_metrics() -> None:
    assert group_name("Compositionality_II") == "compositionality_ii"
    refused(FactError, r"field 'group': must be of lower-case letters", Probe, "Mars has", "two moons", (), "Sky high")


@pytest.mark.parametrize(
    "name", [name for name, case in CASES.items() if "bad" in case and name not in ("plain", "known_facts")]
)
def test_config(path: Path, name: str) -> None:
    own = {"wiki_recent": "knowedit_wiki_recent", "wiki_counterfact": "knowedit_wiki_counterfact"}
    own |= {"ZsRE": "knowedit_zsre", "WikiBio": "knowedit_wikibio", "RippleEdits": "ripple_edits"}
    config = own.get(name, name.lower())
    data = composed(f"data={config}", f"data.path={write(path, RECORDS[name])}").data
    assert list(read_facts(data.path, schema=data.schema, on_error=data.on_error)) == [expected(name, {})]


def test_a_ripple_sentence_that_can_be_read_in_two_ways_is_refused() -> None:
    record = {"edit": {"prompt": "The name of the director of All is Lost is Ana Li.", "relation": "R"}}
    refused(FactError, "its subject may be 'All is Lost' or 'All'; edit.original_fact", ripple_edits.parse, record)


# -- sets of facts


def fact_set(count: int = 4) -> FactSet:
    facts = tuple(Fact.from_dict(record) for record in plain_records(count))
    return FactSet("mine", facts, (RecordError("f", 1, "", "p"),))


def test_fact_set_is_a_sequence() -> None:
    facts = fact_set()
    assert len(facts) == 4
    assert facts[-1].id == "f3"
    assert facts[1] in facts
    assert [fact.id for fact in reversed(facts)] == ["f3", "f2", "f1", "f0"]
    part = facts[1:3]
    assert isinstance(part, FactSet)
    assert (part.facts, part.name, part.skipped) == (facts.facts[1:3], "mine", facts.skipped)
    assert repr(facts) == "FactSet('mine', 4 facts, 1 skipped)"
    assert copy.deepcopy(facts) == facts
    with pytest.raises(AttributeError):
        facts.name = "other"  # type: ignore[misc]
    refused(ValueError, "'twice' has two facts with the id 'f0'", FactSet, "twice", (facts[0], facts[0]))


def test_fingerprint_depends_on_the_facts_alone(path: Path) -> None:
    facts = fact_set()
    assert facts.fingerprint == FactSet("other name", facts.facts).fingerprint
    assert len({facts.fingerprint, facts[:3].fingerprint, facts[::-1].fingerprint, facts[1:].fingerprint}) == 4
    # Fixed once and for all: caches and stored runs are keyed by it.
    one = FactSet("x", (Fact("Kärdla", "{} lies on", "Saaremaa", "Hiiumaa", id="1"),))
    canonical = (
        '[{"id":"1","prompt":"{} lies on","subject":"K\\u00e4rdla","target_new":"Saaremaa","target_true":"Hiiumaa"}]'
    )
    assert one.fingerprint == hashlib.sha256(canonical.encode()).hexdigest()
    # A fact without groups is written as before there were any, so its set keeps its fingerprint.
    probed = Fact("Tartu", "{} lies in", "Chile", locality=(Probe("Mars has", "two"),), id="x").to_dict()
    assert probed["locality"] == [{"prompt": "Mars has", "answer": "two", "aliases": []}]
    assert probed.keys() == {"id", "subject", "prompt", "target_new", "locality"}
    assert read_facts(write(path, *(fact.to_dict() for fact in facts))).fingerprint == facts.fingerprint
    write_facts(path.with_suffix(".jsonl"), one)
    assert path.with_suffix(".jsonl").read_text(encoding="utf-8").startswith('{"subject": "Kärdla", ')
    assert read_facts(path.with_suffix(".jsonl")).fingerprint == one.fingerprint


def some(*ids: str) -> FactSet:
    return FactSet("some", tuple(Fact(id_, "{} is", "a", id=id_) for id_ in ids))


def test_an_order_is_by_the_seed_and_the_ids_alone() -> None:
    facts = some(*"abcdefgh")
    orders = [facts.shuffled(seed) for seed in (0, 1, 2)]
    assert len({tuple(fact.id for fact in order) for order in (facts, *orders)}) == 4
    assert all(sorted(fact.id for fact in order) == list("abcdefgh") for order in orders)
    by_hand = sorted("abcdefgh", key=lambda id_: hashlib.sha256(f"1\0{id_}".encode()).digest())
    assert [fact.id for fact in orders[1]] == by_hand
    assert some(*"hgfedcba").shuffled(1) == orders[1]  # whatever order the source has
    assert orders[0].shuffled(1) == orders[1]


def test_an_order_is_noted_and_tells_runs_apart() -> None:
    facts = some(*"abcdef")
    shuffled = facts.shuffled(3)
    assert (facts.order, shuffled.order, shuffled[:2].order) == (None, 3, 3)
    assert facts.fingerprint != shuffled.fingerprint
    assert facts.unordered_fingerprint == shuffled.unordered_fingerprint
    assert facts.unordered_fingerprint != facts[:5].unordered_fingerprint


# -- the public files


def test_all_of_counterfact() -> None:
    facts = read_facts(shared("counterfact"))
    assert len(facts) == 2000
    assert facts.skipped == ()
    assert sum(len(fact.paraphrases) for fact in facts) == 2000
    assert sum(len(fact.neighbourhood) for fact in facts) == 18870
    assert {fact.verb for fact in facts} == {"modify"}
    by_id = {fact.id: fact for fact in facts}
    assert (by_id["15871"].prompt, by_id["15871"].target_true) == ("{}, the", "midfielder")
    # One of the four records whose subject is also the beginning of a neighbour's name.
    assert (by_id["16575"].subject, by_id["16575"].target_true) == ("iPhone", "Apple")
    assert "iPhone X is created by" in by_id["16575"].neighbourhood


def test_all_of_zsre() -> None:
    path = shared("zsre")
    refused(RecordError, "record 89, field 'alt': is one of the right answers", read_facts, path)
    facts = read_facts(path, on_error="skip")
    assert len(facts) == 683
    assert {error.field for error in facts.skipped} == {"alt"}
    # Sixteen new answers are right answers already, and one is empty.
    same = [89, 102, 116, 158, 203, 214, 230, 273, 274, 403, 454, 488, 523, 542, 597, 655]
    assert [error.number for error in facts.skipped if "right answers" in error.problem] == same
    assert [error.number for error in facts.skipped if "is empty" in error.problem] == [535]
    assert facts[1].statement == "What is the name of the constellation which Delta Serpentis belongs?"
    assert "Captain Universe" in {fact.target_new for fact in facts}  # " Captain Universe" in the file
    assert all(fact.subject in fact.paraphrases[0] for fact in facts)


def test_all_of_the_known_facts() -> None:
    path = shared("known_facts")
    facts = read_facts(path)
    assert len(facts) == 900
    raw = json.loads(path.read_text())
    assert [fact.statement for fact in facts] == [record["prompt"] for record in raw]
    # 346 templates of the file lack words of the prompt: the reason for not using them.
    assert sum(fact.prompt != record["template"] for fact, record in zip(facts, raw, strict=True)) == 346
    assert {fact.verb for fact in facts} == {"erase"}
    other = {fact.id: fact for fact in facts}["9"]
    assert (other.prompt, other.target_true) == ("The original language of {} is the same as the", "Latin")
