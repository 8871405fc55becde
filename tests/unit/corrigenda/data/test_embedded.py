import json
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from corrigenda.data import read_facts
from corrigenda.data.embedded import dialogues, embedded_facts, held_out_texts
from corrigenda.facts import Fact

FACTS = embedded_facts()
SOURCE = json.loads(files("corrigenda.data").joinpath("embedded.json").read_text(encoding="utf-8"))
RELATIONS = {relation["id"]: relation for relation in SOURCE["relations"]}

# Where the reference data speaks of the same relation: Wikidata ids, and names of files in relations/.
SAME_RELATION = {
    "landmark_city": ["P131", "P276"],
    "landmark_country": ["P17", "landmark_in_country"],
    "city_country": ["P17", "city_in_country"],
    "athlete_sport": ["P641", "person_plays_pro_sport"],
    "person_birth_country": ["P27"],
    "product_company": ["P176", "P178", "product_by_company"],
    "musician_instrument": ["P1303", "person_plays_instrument"],
    "food_country": ["P495", "food_from_country"],
    "company_country": ["P17", "P495"],
    "company_city": ["P159", "company_hq"],
    "band_country": ["P495"],
    "country_continent": ["P30", "landmark_on_continent"],
    "river_continent": ["P30", "landmark_on_continent"],
    "country_language": ["P37", "country_language"],
    "country_currency": ["country_currency"],
    "person_language": ["P103", "person_native_language"],
    "scientist_field": ["P101"],
    "person_occupation": ["P106", "person_occupation"],
}


@pytest.mark.parametrize("asked", [{"schema": "zsre"}, {"split": "test"}, {"config": "x"}])
def test_what_is_of_other_sources_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="of no use for the embedded facts"):
        read_facts("embedded", **asked)  # type: ignore[arg-type]


def test_there_are_enough_facts_over_enough_relations() -> None:
    assert len(FACTS) >= 300
    assert len({fact.relation for fact in FACTS}) >= 15
    assert sum(bool(fact.portability) for fact in FACTS) >= 150
    assert len({fact.id for fact in FACTS}) == len(FACTS)
    assert embedded_facts() == FACTS


def test_a_short_run_spans_many_relations() -> None:
    assert FACTS[0].id == "landmark_city/eiffel-tower"
    assert len({fact.relation for fact in FACTS[:20]}) == 20


@pytest.mark.parametrize("relation", RELATIONS)
def test_every_fact_has_its_probes(relation: str) -> None:
    for fact in (fact for fact in FACTS if fact.relation == relation):
        assert fact.target_true is not None
        assert fact.target_new is not None
        own = [fact.statement, *fact.paraphrases, *fact.generation, *(probe.prompt for probe in fact.portability)]
        others = [*fact.neighbourhood, *(probe.prompt for probe in fact.locality)]
        assert len(fact.paraphrases) >= 2, fact.id
        assert len(fact.neighbourhood) >= 5, fact.id
        assert len(fact.locality) in (2, 3), fact.id
        assert len(fact.generation) >= 1, fact.id
        assert len({*own, *others}) == len(own) + len(others), f"{fact.id} asks the same thing twice"
        for prompt in own:
            if prompt not in fact.generation:  # elsewhere the subject stands as it is, so that its tokens can be found
                assert fact.subject in prompt, f"{fact.id}: {prompt}"
            assert fact.subject.lower() in prompt.lower(), f"{fact.id}: {prompt}"
        for prompt in others:
            assert fact.subject.lower() not in prompt.lower(), f"{fact.id}: {prompt}"


def prompts(fact: Fact) -> Iterator[str]:
    yield from (fact.statement, *fact.paraphrases, *fact.neighbourhood, *fact.generation)
    yield from (probe.prompt for probe in (*fact.locality, *fact.portability))


def test_prompts_end_where_the_answer_begins() -> None:
    for fact in FACTS:
        for prompt in prompts(fact):
            assert prompt == prompt.strip(), f"{fact.id}: {prompt!r}"
            assert "{" not in prompt, f"{fact.id}: {prompt!r}"
            assert "  " not in prompt, f"{fact.id}: {prompt!r}"
            assert prompt[0] == prompt[0].upper(), f"{fact.id}: {prompt!r}"


def test_no_prompt_gives_its_answer_away() -> None:
    for fact in FACTS:
        for prompt in (fact.statement, *fact.paraphrases, *fact.neighbourhood):
            assert not contains(prompt, fact.target_true), f"{fact.id}: {prompt}"
            assert not contains(prompt, fact.target_new), f"{fact.id}: {prompt}"
        for probe in (*fact.locality, *fact.portability):
            assert not contains(probe.prompt, probe.answer), f"{fact.id}: {probe}"


def contains(text: str, words: str | None) -> bool:
    return words is not None and re.search(rf"\b{re.escape(words)}\b", text, re.IGNORECASE) is not None


def test_new_objects_are_really_new() -> None:
    for fact in FACTS:
        assert fact.target_true not in fact.answers, fact.id
        consequence = RELATIONS[str(fact.relation)].get("portability", {}).get("consequence")
        if consequence is not None:
            assert fact.target_new in consequence, fact.id
            assert fact.portability[0].answer == consequence[fact.target_new], fact.id
            assert consequence[fact.target_new] != consequence.get(fact.target_true), fact.id


def test_locality_probes_have_nothing_to_do_with_the_fact() -> None:
    own_relation = {fact.relation: re.compile(as_pattern(fact.prompt)) for fact in FACTS}
    for fact in FACTS:
        for probe in fact.locality:
            assert probe.answer not in (fact.target_true, fact.target_new, *(p.answer for p in fact.portability)), (
                fact.id
            )
            assert not own_relation[fact.relation].fullmatch(probe.prompt), fact.id


def as_pattern(template: str) -> str:
    return re.escape(template).replace(re.escape("{}"), ".+")


def test_no_two_facts_or_probes_contradict_each_other() -> None:
    for relation in SOURCE["relations"]:
        groups = relation["objects"].values()
        edited = [subject for group in groups for subject in group["facts"]]
        never_edited = [subject for group in groups for subject in group["neighbours"]]
        assert len({*edited, *never_edited}) == len(edited) + len(never_edited), relation["id"]


def test_every_alias_is_of_use() -> None:
    objects = {fact.target_new for fact in FACTS}
    objects |= {probe.answer for fact in FACTS for probe in (*fact.locality, *fact.portability)}
    assert set(SOURCE["aliases"]) <= objects


def test_held_out_texts() -> None:
    """Long enough for 22 windows of 64 tokens, whatever the tokenizer, and about no embedded fact."""
    texts = held_out_texts()
    assert list(texts) == ["prose", "code", "dialogue"]
    for text in texts.values():
        assert 1450 <= len(re.findall(r"\w+|[^\w\s]", text)) <= 1900
        assert text == text.strip()
        for fact in FACTS:
            if fact.subject[0].isupper():
                assert fact.subject not in text


def test_dialogues() -> None:
    found = dialogues(held_out_texts()["dialogue"])
    assert len(found) >= 5
    for turns in found:
        assert [turn["role"] for turn in turns] == (["user", "assistant"] * len(turns))[: len(turns)]
        assert all(turn["content"] == turn["content"].strip() != "" for turn in turns)
    assert dialogues("User: a: b\nAssistant: c\n\nUser: d") == [
        [{"role": "user", "content": "a: b"}, {"role": "assistant", "content": "c"}],
        [{"role": "user", "content": "d"}],
    ]
    with pytest.raises(ValueError, match="not 'Dog: woof'"):
        dialogues("Dog: woof")


@pytest.fixture(scope="module")
def reference(shared: Path) -> dict[str, dict[str, set[str]]]:
    """By relation and subject, the objects that the public data sets give."""
    objects: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    data = shared / "data"
    for path in [*(data / "pararel").glob("*.json"), *(data / "relations").glob("*.json")]:
        record = json.loads(path.read_text(encoding="utf-8"))
        for sample in record.get("facts", record.get("samples")):
            objects[path.stem][normal(sample["subject"])].add(normal(sample["object"]))
    for record in json.loads((data / "known_facts.json").read_text(encoding="utf-8")):
        objects[record["relation_id"]][normal(record["subject"])].add(normal(record["attribute"]))
    for record in json.loads((data / "counterfact.json").read_text(encoding="utf-8")):
        rewrite = record["requested_rewrite"]
        objects[rewrite["relation_id"]][normal(rewrite["subject"])].add(normal(rewrite["target_true"]["str"]))
    return objects


def normal(text: str) -> str:
    return re.sub(r"^the ", "", text.strip().lower())


def test_facts_agree_with_the_reference_data(reference: dict[str, dict[str, set[str]]]) -> None:
    checked = 0
    for relation, names in SAME_RELATION.items():
        for true, group in RELATIONS[relation]["objects"].items():
            spellings = {normal(true), *map(normal, SOURCE["aliases"].get(true, ()))}
            for subject in (*group["facts"], *group["neighbours"]):
                known = set[str]().union(*(reference[name].get(normal(subject), set()) for name in names))
                checked += bool(known)
                assert not known or known & spellings, f"{relation}: {subject} is {true}, reference {known}"
                assert normal(group["facts"].get(subject, "-")) not in known, f"{relation}: {subject} is {known}"
    assert checked >= 50


def test_templates_are_our_own(shared: Path) -> None:
    taken = set()
    for path in (shared / "data" / "pararel").glob("*.json"):
        for pattern in json.loads(path.read_text(encoding="utf-8"))["patterns"]:
            taken.add(bare(pattern.replace("[X]", "{}").replace("[Y]", "")))
    for path in (shared / "data" / "relations").glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        taken |= {bare(template) for template in (*record["prompt_templates"], *record["prompt_templates_zs"])}
    for record in json.loads((shared / "data" / "counterfact.json").read_text(encoding="utf-8")):
        taken.add(bare(record["requested_rewrite"]["prompt"]))
    for relation in SOURCE["relations"]:
        for template in (relation["prompt"], *relation["paraphrases"], *relation["neighbourhood"]):
            assert bare(template) not in taken, f"{relation['id']}: {template}"


def bare(template: str) -> str:
    return re.sub(r"[\s.,]+", " ", template).strip().lower()
