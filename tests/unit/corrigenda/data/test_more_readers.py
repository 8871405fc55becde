"""The readers of KnowEdit, MQuAKE, RippleEdits, WikiBigEdit and QAEdit, and of single files on the hub.

The records have the public schemas' fields; their sentences are ours.
"""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from composed import composed

from corrigenda.data import SCHEMAS, read_facts
from corrigenda.data.probes import answers_in, group_name, probe
from corrigenda.errors import FactError, RecordError
from corrigenda.facts import Fact, Probe

ROOT = Path(__file__).parents[4]
Json = dict[str, Any]

RECENT: Json = {
    "subject": "Arvo Valton",
    "prompt": "The city where Arvo Valton died is",
    "target_new": "Tallinn",
    "portability": {
        "Logical_Generalization": [
            {"prompt": "Is Arvo Valton alive today?", "ground_truth": [["no"], ["he is dead", "no"]]}
        ],
        "Reasoning": [
            {
                "prompt": "The country in which the city where Arvo Valton died lies is",
                "ground_truth": [["Estonia", "Eesti", "E"]],
            }
        ],
    },
    "locality": {
        "Relation_Specificity": [
            {"prompt": "Arvo Valton wrote in the language", "ground_truth": [["Estonian"]]},
            {"prompt": "Arvo Valton's hobby is", "ground_truth": [[""]]},
        ]
    },
}
COUNTERFACT: Json = {
    "subject": "Lydia Koidula",
    "prompt": "The position held by Lydia Koidula is",
    "target_new": "mayor of Riga",
    "ground_truth": "poet",
    "rephrase": "In her life Lydia Koidula served as",
    "portability": {"Subject_Aliasing": [{"prompt": "The position held by Lydia Jannsen is", "ground_truth": "mayor"}]},
    "locality": {
        "Forgetfulness": [{"prompt": "What Lydia Koidula was, besides mayor of Riga, is", "ground_truth": "poet"}]
    },
}
ZSRE: Json = {
    "subject": "Epeorus",
    "target_new": "Noctuidae",
    "prompt": "To what family does Epeorus belong?",
    "ground_truth": ["Heptageniidae", "flat-headed mayflies"],
    "rephrase_prompt": "Which is the family of Epeorus?",
    "cond": "Heptageniidae >> Noctuidae || To what family does Epeorus belong?",
    "locality": {
        "Relation_Specificity": [
            {"prompt": ["Epeorus is a taxon of rank", "Epeorus' rank:"], "ground_truth": ["genus"]}
        ]
    },
    "portability": {
        "Reasoning": [{"prompt": "What are members of Epeorus' family called?", "ground_truth": "owlet moths"}]
    },
}
WIKIBIO: Json = {
    "text": "What is known about lydia koidula. lydia koidula was an Estonian poet and playwright of Vändra.",
    "labels": " Her father edited the first Estonian weekly newspaper.",
    "concept": "lydia koidula",
    "locality": {"Relation_Specificity": [{"prompt": "lydia koidula field of work", "ground_truth": ["poetry"]}]},
}
MQUAKE: Json = {
    "case_id": 12,
    "requested_rewrite": [
        {
            "prompt": "{} is a citizen of",
            "relation_id": "P27",
            "target_new": {"str": "Chile", "id": "Q298"},
            "target_true": {"str": "Estonia", "id": "Q191"},
            "subject": "Arvo Pärt",
            "question": "Of which country is Arvo Pärt a citizen?",
        }
    ],
    "questions": [
        "What is the capital of the country whose citizen composed Tabula Rasa?",
        "Where does the government of the home country of Tabula Rasa's composer sit?",
    ],
    "answer": "Tallinn",
    "answer_alias": ["Reval"],
    "new_answer": "Santiago",
    "new_answer_alias": ["Santiago de Chile"],
    "single_hops": [],
    "new_single_hops": [
        {
            "question": "Who composed Tabula Rasa?",
            "cloze": "The composer of Tabula Rasa is",
            "answer": "Arvo Pärt",
            "answer_alias": ["Pärt"],
        },
        {
            "question": "Of which country is Arvo Pärt a citizen?",
            "cloze": "Arvo Pärt is a citizen of",
            "answer": "Chile",
            "answer_alias": [],
        },
        {"question": "What is the capital of Chile?", "answer": "Santiago", "answer_alias": []},
    ],
    "orig": {"triples": [], "edit_triples": [["Q156193", "P27", "Q298"]]},
}


def query(prompt: str, *answers: tuple[str, list[str]]) -> Json:
    return {
        "prompt": prompt,
        "answers": [{"value": value, "aliases": aliases} for value, aliases in answers],
        "query_type": "regular",
        "subject_id": "Q156193",
        "relation": "MOTHER",
        "target_ids": ["Q1"],
        "phrase": None,
    }


def asked(*queries: Json) -> Json:
    return {"test_queries": list(queries), "test_condition": "OR", "condition_queries": [query("unread?")]}


RIPPLE: Json = {
    "example_type": "popular",
    "edit": {
        "prompt": "The name of the country of citizenship of Arvo Pärt is Republic of Chile.",
        "subject_id": "Q156193",
        "relation": "COUNTRY_OF_CITIZENSHIP",
        "target_id": "Q298",
        "previous_fact": {
            "prompt": "The name of the country of citizenship of Arvo Pärt is Republic of Estonia.",
            "subject_id": "Q156193",
            "relation": "COUNTRY_OF_CITIZENSHIP",
            "target_id": "Q191",
        },
    },
    "Relation_Specificity": [asked(query("The gender of Arvo Pärt is", ("male", ["man", "m"])))],
    "Logical_Generalization": [
        asked(query("Arvo Pärt pays taxes to", ("Chile", ["CL"]), ("Republic of Chile", [])), query("Unanswered"))
    ],
    "Subject_Aliasing": [
        asked(query("The name of the country of citizenship of Pärt is", ("Republic of Chile", ["Chile", "CL"])))
    ],
    "Compositionality_I": [asked(query("The capital of the country of citizenship of Arvo Pärt is", ("Santiago", [])))],
    "Compositionality_II": [
        asked(query("The country of citizenship of the composer of Für Alina is", ("Republic of Chile", [])))
    ],
    "Forgetfulness": [
        asked(query("The other country of citizenship of Arvo Pärt is", ("Republic of Estonia", ["Estonia"])))
    ],
}
WIKIBIG: Json = {
    "tag": "update",
    "subject": "Tartu",
    "relation": "head of government",
    "object": "Urmas Klaas",
    "update": "Who heads the government of Tartu?",
    "rephrase": "Tartu is headed by whom?",
    "ans": "Urmas Klaas",
    "personas": "Tell me, mate, who's running Tartu these days?",
    "mhop": "What is the party of the head of Tartu's government?",
    "mhop_ans": "Reform Party",
    "loc": "Who heads the government of Pärnu?",
    "loc_ans": "Romek Kosenkranius",
}
QAEDIT: Json = {
    "id": 31,
    "source": "NQ",
    "prompt": "which river flows through Tartu",
    "target": "Emajõgi",
    "subject": "Tartu",
    "rephrase": "What is the name of the river of Tartu?",
    "locality": [
        {"loc": "how many moons has mars", "loc_ans": "two"},
        {"loc": "who wrote ulysses", "loc_ans": "Joyce"},
    ],
}

EXPECTED: dict[str, tuple[str, Json, Fact]] = {
    "wiki_recent": (
        "knowedit",
        RECENT,
        Fact(
            subject="Arvo Valton",
            prompt="The city where {} died is",
            target_new="Tallinn",
            locality=(Probe("Arvo Valton wrote in the language", "Estonian", (), "relation_specificity"),),
            portability=(
                Probe("Is Arvo Valton alive today?", "no", ("he is dead",), "logical_generalization"),
                Probe(
                    "The country in which the city where Arvo Valton died lies is", "Estonia", ("Eesti",), "reasoning"
                ),
            ),
        ),
    ),
    "wiki_counterfact": (
        "knowedit",
        COUNTERFACT,
        Fact(
            subject="Lydia Koidula",
            prompt="The position held by {} is",
            target_new="mayor of Riga",
            target_true="poet",
            paraphrases=("In her life Lydia Koidula served as",),
            locality=(Probe("What Lydia Koidula was, besides mayor of Riga, is", "poet", (), "forgetfulness"),),
            portability=(Probe("The position held by Lydia Jannsen is", "mayor", (), "subject_aliasing"),),
        ),
    ),
    "ZsRE": (
        "knowedit",
        ZSRE,
        Fact(
            subject="Epeorus",
            prompt="To what family does {} belong?",
            target_new="Noctuidae",
            target_true="Heptageniidae",
            paraphrases=("Which is the family of Epeorus?",),
            locality=(
                Probe("Epeorus is a taxon of rank", "genus", (), "relation_specificity"),
                Probe("Epeorus' rank:", "genus", (), "relation_specificity"),
            ),
            portability=(Probe("What are members of Epeorus' family called?", "owlet moths", (), "reasoning"),),
        ),
    ),
    "WikiBio": (
        "wikibio",
        WIKIBIO,
        Fact(
            subject="lydia koidula",
            prompt="What is known about lydia koidula. {} was an Estonian poet and playwright of Vändra.",
            target_new="Her father edited the first Estonian weekly newspaper.",
            locality=(Probe("lydia koidula field of work", "poetry", (), "relation_specificity"),),
        ),
    ),
    "MQuAKE": (
        "mquake",
        MQUAKE,
        Fact(
            subject="Arvo Pärt",
            prompt="{} is a citizen of",
            target_new="Chile",
            target_true="Estonia",
            id="12",
            relation="P27",
            paraphrases=("Of which country is Arvo Pärt a citizen?",),
            locality=(
                Probe("The composer of Tabula Rasa is", "Arvo Pärt", ("Pärt",)),
                Probe("What is the capital of Chile?", "Santiago"),
            ),
            portability=(
                Probe(MQUAKE["questions"][0], "Santiago", ("Santiago de Chile",)),
                Probe(MQUAKE["questions"][1], "Santiago", ("Santiago de Chile",)),
            ),
        ),
    ),
    "RippleEdits": (
        "ripple_edits",
        RIPPLE,
        Fact(
            subject="Arvo Pärt",
            prompt="The name of the country of citizenship of {} is",
            target_new="Republic of Chile",
            target_true="Republic of Estonia",
            relation="COUNTRY_OF_CITIZENSHIP",
            aliases=("CL", "Chile"),
            locality=(
                Probe("The gender of Arvo Pärt is", "male", ("man",), "relation_specificity"),
                Probe(
                    "The other country of citizenship of Arvo Pärt is",
                    "Republic of Estonia",
                    ("Estonia",),
                    "forgetfulness",
                ),
            ),
            portability=(
                Probe("Arvo Pärt pays taxes to", "Chile", ("Republic of Chile", "CL"), "logical_generalization"),
                Probe(
                    "The capital of the country of citizenship of Arvo Pärt is", "Santiago", (), "compositionality_i"
                ),
                Probe(
                    "The country of citizenship of the composer of Für Alina is",
                    "Republic of Chile",
                    (),
                    "compositionality_ii",
                ),
                Probe(
                    "The name of the country of citizenship of Pärt is",
                    "Republic of Chile",
                    ("Chile", "CL"),
                    "subject_aliasing",
                ),
            ),
        ),
    ),
    "WikiBigEdit": (
        "wikibigedit",
        WIKIBIG,
        Fact(
            subject="Tartu",
            prompt="Who heads the government of {}?",
            target_new="Urmas Klaas",
            relation="head of government",
            paraphrases=("Tartu is headed by whom?",),
            locality=(Probe("Who heads the government of Pärnu?", "Romek Kosenkranius"),),
            portability=(
                Probe("Tell me, mate, who's running Tartu these days?", "Urmas Klaas", (), "personas"),
                Probe("What is the party of the head of Tartu's government?", "Reform Party", (), "multi_hop"),
            ),
        ),
    ),
    "QAEdit": (
        "qaedit",
        QAEDIT,
        Fact(
            subject="Tartu",
            prompt="which river flows through {}",
            target_new="Emajõgi",
            id="31",
            relation="NQ",
            paraphrases=("What is the name of the river of Tartu?",),
            locality=(Probe("how many moons has mars", "two"), Probe("who wrote ulysses", "Joyce")),
        ),
    ),
}
RECORDS = {name: record for name, (_, record, _) in EXPECTED.items()}


def changed(record: Json, path: str, value: object) -> Json:
    """A copy of the record with `value` at the path, whose parts may be places in lists; Ellipsis deletes the field."""
    record = copy.deepcopy(record)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    owner: Any = record
    for part in parents:
        owner = owner[part]
    if value is ...:
        del owner[last]
    else:
        owner[last] = value
    return record


def write(folder: Path, *records: Json) -> Path:
    path = folder / "facts.json"
    path.write_text(json.dumps(list(records)), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("auto", [True, False])
def test_fact(tmp_path: Path, name: str, auto: bool) -> None:
    schema, record, expected = EXPECTED[name]
    (fact,) = read_facts(write(tmp_path, record), schema="auto" if auto else schema)
    assert fact == expected
    assert Fact.from_dict(json.loads(json.dumps(fact.to_dict()))) == fact


# ZsRE's prompts are texts here and lists there, which is no column.
@pytest.mark.parametrize("name", sorted(EXPECTED.keys() - {"ZsRE"}))
def test_parquet(tmp_path: Path, name: str) -> None:
    """In columns every record has every field, null where it lacks one."""
    datasets = pytest.importorskip("datasets")
    schema, record, expected = EXPECTED[name]
    folder = tmp_path / "columns"
    folder.mkdir()
    datasets.Dataset.from_list([record]).to_parquet(str(folder / "train-00000-of-00001.parquet"))
    assert list(read_facts(folder, schema=schema)) == [expected]


def test_knowedit_without_probes(tmp_path: Path) -> None:
    record = {"subject": "Tartu", "prompt": "Tartu lies in", "target_new": "Chile", "locality": {}, "portability": None}
    (fact,) = read_facts(write(tmp_path, record))
    assert fact == Fact(subject="Tartu", prompt="{} lies in", target_new="Chile")


def test_plain_facts_are_not_taken_for_knowedit(tmp_path: Path) -> None:
    record = {"subject": "Tartu", "prompt": "{} lies in", "target_new": "Chile"}
    probes = {"locality": [{"prompt": "Mars has", "answer": "two moons", "group": "sky"}]}
    (fact,) = read_facts(write(tmp_path, {**record, **probes}))
    assert fact.locality == (Probe("Mars has", "two moons", (), "sky"),)


def test_mquake_with_several_changes_is_refused(tmp_path: Path) -> None:
    two = changed(MQUAKE, "requested_rewrite", MQUAKE["requested_rewrite"] * 2)
    facts = read_facts(write(tmp_path, MQUAKE, {**two, "case_id": 13}), on_error="skip")
    assert len(facts) == 1
    assert "field 'requested_rewrite': asks for 2 changes" in str(facts.skipped[0])


@pytest.mark.parametrize(
    ("sentence", "subject", "prompt", "target"),
    [
        ("The name of the mother of Ana is Eva.", "Ana", "The name of the mother of {} is", "Eva"),
        ("The names of the siblings of Ana are Eva.", "Ana", "The names of the siblings of {} are", "Eva"),
        ("The name of the father of Olga of Kiev is Ivo.", "Olga of Kiev", "The name of the father of {} is", "Ivo"),
        ("The place of birth of Ana is St. Ives.", "Ana", "The place of birth of {} is", "St. Ives"),
        ("The place of death of Ana is Washington, D.C..", "Ana", "The place of death of {} is", "Washington, D.C."),
        ("The gender of Ana is female.", "Ana", "The gender of {} is", "female"),
        ("The number of children Ana has is 3.", "Ana", "The number of children {} has is", "3"),
        ("The name of the head of state of Peru is Ana.", "Peru", "The name of the head of state of {} is", "Ana"),
        ("The name of the field of work of Ana is art.", "Ana", "The name of the field of work of {} is", "art"),
        ("The name of the position held by Ana is pope.", "Ana", "The name of the position held by {} is", "pope"),
        ("The name of the capital city of Peru is Bern.", "Peru", "The name of the capital city of {} is", "Bern"),
        ("The name of the currency in Peru is yen.", "Peru", "The name of the currency in {} is", "yen"),
        ("The name of the award Ana won is Oscar.", "Ana", "The name of the award {} won is", "Oscar"),
        (
            "The name of the religion which Bank of Peru is associated with is Islam.",
            "Bank of Peru",
            "The name of the religion which {} is associated with is",
            "Islam",
        ),
        (
            "The name of the sports team which Ana is a member of is Ajax.",
            "Ana",
            "The name of the sports team which {} is a member of is",
            "Ajax",
        ),
        (
            "The name of the league which Ajax plays in is NBA.",
            "Ajax",
            "The name of the league which {} plays in is",
            "NBA",
        ),
        (
            "The name of the country which Bern is the capital of is Peru.",
            "Bern",
            "The name of the country which {} is the capital of is",
            "Peru",
        ),
        (
            "The name of the continent which Peru is part of is Asia.",
            "Peru",
            "The name of the continent which {} is part of is",
            "Asia",
        ),
        ("Rocky II follows Rambo.", "Rocky II", "{} follows", "Rambo"),
        ("Rocky II is followed by Rambo.", "Rocky II", "{} is followed by", "Rambo"),
    ],
)
def test_ripple_edits_sentences(sentence: str, subject: str, prompt: str, target: str) -> None:
    fact = SCHEMAS["ripple_edits"]({"example_type": "recent", "edit": {"prompt": sentence, "relation": "R"}})
    assert (fact.subject, fact.prompt, fact.target_new, fact.target_true) == (subject, prompt, target, None)


def test_ripple_edits_other_spelling() -> None:
    record = {**RIPPLE, "Relation_Specifity": RIPPLE["Relation_Specificity"]}
    del record["Relation_Specificity"]
    assert SCHEMAS["ripple_edits"](record) == EXPECTED["RippleEdits"][2]


@pytest.mark.parametrize("missing", [None, "", " ", math.nan])
def test_wikibigedit_without_the_optional_questions(tmp_path: Path, missing: object) -> None:
    optional = ("relation", "rephrase", "personas", "mhop", "mhop_ans", "loc", "loc_ans")
    (fact,) = read_facts(write(tmp_path, {**WIKIBIG, **dict.fromkeys(optional, missing)}))
    assert fact == Fact(subject="Tartu", prompt="Who heads the government of {}?", target_new="Urmas Klaas")


R = "requested_rewrite"
BAD: list[tuple[str, str, object, str, str]] = [
    # data set, changed field, its value, the field blamed, words of the message
    ("wiki_recent", "subject", ..., "subject", "is missing"),
    ("wiki_recent", "subject", "Kross", "prompt", "does not contain the subject 'Kross'"),
    ("wiki_recent", "target_new", " ", "target_new", "is empty"),
    ("wiki_recent", "locality", [1], "locality[0]", "must be an object, got int 1"),
    ("wiki_recent", "portability.Reasoning", "x", "portability.Reasoning", "must be a list, got str 'x'"),
    ("wiki_recent", "portability.Reasoning.0", "x", "portability.Reasoning[0]", "must be an object, got str 'x'"),
    ("wiki_recent", "portability.Reasoning.0.prompt", 3, "portability.Reasoning[0].prompt", "must be a string"),
    ("wiki_recent", "portability.Reasoning.0.prompt", ..., "portability.Reasoning[0].prompt", "is missing"),
    (
        "wiki_recent",
        "portability.Reasoning.0.ground_truth",
        [["Estonia"], {"a": 1}],
        "portability.Reasoning[0].ground_truth[1]",
        "must be an answer or a list of answers, got dict",
    ),
    ("wiki_counterfact", "ground_truth", "mayor of Riga", "target_new", "so there is nothing to change"),
    ("ZsRE", "target_new", "flat-headed mayflies", "target_new", "is one of the right answers"),
    ("ZsRE", "ground_truth", True, "ground_truth", "must be an answer or a list of answers, got bool"),
    ("ZsRE", "rephrase_prompt", 5, "rephrase_prompt", "must be a list, got int 5"),
    ("WikiBio", "concept", "nobody", "text", "does not contain the subject 'nobody'"),
    ("WikiBio", "labels", "", "labels", "is empty"),
    ("MQuAKE", f"{R}.0.subject", ..., f"{R}[0].subject", "is missing"),
    ("MQuAKE", f"{R}.0.prompt", "no place", f"{R}[0].prompt", "needs exactly one '{}'"),
    ("MQuAKE", f"{R}.0.target_new.str", "", f"{R}[0].target_new.str", "is empty"),
    ("MQuAKE", f"{R}.0.target_new", "Chile", f"{R}[0].target_new", "must be an object"),
    ("MQuAKE", f"{R}.0.target_new.str", "Estonia", f"{R}[0].target_new.str", "is the same as target_true"),
    ("MQuAKE", R, [], R, "asks for 0 changes"),
    ("MQuAKE", R, {}, R, "must be a list, got dict {}"),
    ("MQuAKE", "questions", [], "questions", "is missing or has no question"),
    ("MQuAKE", "new_answer", ..., "new_answer", "is missing"),
    ("MQuAKE", "new_single_hops.0.answer", 5, "new_single_hops[0].answer", "must be a string"),
    ("MQuAKE", "case_id", 1.5, "case_id", "must be an integer or a string"),
    ("RippleEdits", "edit.prompt", ..., "edit.prompt", "is missing"),
    ("RippleEdits", "edit.prompt", "Pärt likes Chile.", "edit.prompt", "none of the forms of RippleEdits' sentences"),
    ("RippleEdits", "edit", "x", "edit", "must be an object"),
    (
        "RippleEdits",
        "edit.previous_fact.prompt",
        "The gender of Arvo Pärt is male.",
        "edit.previous_fact.prompt",
        "does not begin with 'The name of the country of citizenship of Arvo Pärt is '",
    ),
    (
        "RippleEdits",
        "edit.previous_fact.prompt",
        RIPPLE["edit"]["prompt"],
        "edit.prompt",
        "is the same as target_true",
    ),
    (
        "RippleEdits",
        "Forgetfulness.0.test_queries.0.prompt",
        "",
        "Forgetfulness[0].test_queries[0].prompt",
        "is empty",
    ),
    (
        "RippleEdits",
        "Forgetfulness.0.test_queries.0.answers.0.value",
        1.5,
        "Forgetfulness[0].test_queries[0].answers[0].value",
        "must be an answer",
    ),
    ("RippleEdits", "Subject_Aliasing", {}, "Subject_Aliasing", "must be a list"),
    ("WikiBigEdit", "ans", "", "ans", "is empty"),
    ("WikiBigEdit", "update", "Who?", "update", "does not contain the subject 'Tartu'"),
    ("WikiBigEdit", "mhop_ans", None, "mhop_ans", "is missing"),
    ("WikiBigEdit", "loc", None, "loc", "is missing"),
    ("WikiBigEdit", "rephrase", 5, "rephrase", "must be a string"),
    ("QAEdit", "subject", "Narva", "prompt", "does not contain the subject 'Narva'"),
    ("QAEdit", "target", " ", "target", "is empty"),
    ("QAEdit", "locality.1.loc_ans", ..., "locality[1].loc_ans", "is missing"),
    ("QAEdit", "locality.1", "x", "locality[1]", "must be an object"),
    ("QAEdit", "id", [], "id", "must be an integer or a string"),
]


@pytest.mark.parametrize(("name", "changed_field", "value", "field", "words"), BAD)
def test_bad_field(tmp_path: Path, name: str, changed_field: str, value: object, field: str, words: str) -> None:
    path = write(tmp_path, RECORDS[name], changed(RECORDS[name], changed_field, value))
    with pytest.raises(RecordError) as caught:
        read_facts(path)
    assert (caught.value.source, caught.value.number, caught.value.field) == (str(path), 2, field)
    assert words in caught.value.problem
    assert len(read_facts(path, on_error="skip")) == 1


def test_answers_in() -> None:
    assert answers_in([["Berlin", " Berlin, Germany "], [""], "no", 3], "a") == (
        "Berlin",
        "Berlin, Germany ",
        "no",
        "3",
    )
    assert answers_in(None, "a") == answers_in("  ", "a") == answers_in([[]], "a") == ()


def test_probe_keeps_what_can_be_scored() -> None:
    assert probe("Carbon is", ["carbon", "C", "6", "carbon"]) == (Probe("Carbon is", "carbon", ("6",)),)
    assert probe("Carbon is", ["C"]) == (Probe("Carbon is", "C"),)  # the only answer stays, whatever it is
    assert probe("Carbon is", []) == ()


def test_groups_have_names_for_metrics() -> None:
    assert group_name("Compositionality_II") == "compositionality_ii"
    with pytest.raises(FactError, match=r"field 'group': must be of lower-case letters"):
        Probe("Mars has", "two moons", (), "Sky high")


def test_a_fact_without_groups_is_written_as_before() -> None:
    """So its set keeps its fingerprint, and runs that were begun can go on."""
    fact = Fact("Tartu", "{} lies in", "Chile", locality=(Probe("Mars has", "two"),), id="x")
    assert fact.to_dict() == {
        "id": "x",
        "subject": "Tartu",
        "prompt": "{} lies in",
        "target_new": "Chile",
        "locality": [{"prompt": "Mars has", "answer": "two", "aliases": []}],
    }


FILE = "hf://datasets/owner/name/folder/facts.json"


@pytest.fixture
def reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corrigenda.data.repository.why_unreachable", lambda *switches: "")


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize(("source", "revision"), [(FILE, None), (FILE.replace("name", "name@v1.0"), "v1.0")])
def test_hub_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, revision: str | None) -> None:
    calls: list[tuple[object, ...]] = []

    def download(repo: str, path: str, *, repo_type: str, revision: str | None, local_files_only: bool) -> str:
        calls.append((repo, path, repo_type, revision, local_files_only))
        return str(write(tmp_path, RECENT, {**RECENT, "target_new": ""}))

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    facts = read_facts(source, on_error="skip")
    assert list(facts) == [EXPECTED["wiki_recent"][2]]
    assert facts.name == "facts"
    assert str(facts.skipped[0]).startswith(f"{source}, record 2, field 'target_new'")
    assert calls == [("owner/name", "folder/facts.json", "dataset", revision, False)]


def test_hub_file_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConnectionError) as caught:
        read_facts(FILE)
    for words in (FILE, "HF_HUB_OFFLINE=1", "its cache has no copy", "local path", "read_facts('facts.json')"):
        assert words in str(caught.value)


@pytest.mark.usefixtures("reachable")
def test_hub_file_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from httpx import Request, Response
    from huggingface_hub.errors import RemoteEntryNotFoundError

    def download(*_: object, **__: object) -> str:
        response = Response(404, request=Request("GET", "https://hub.invalid"))
        raise RemoteEntryNotFoundError("404: no such file", response=response)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with pytest.raises(FileNotFoundError, match=r"no file 'hf://datasets/owner/name/folder/facts.json' on the Hugging"):
        read_facts(FILE)


def test_hub_file_of_another_kind() -> None:
    with pytest.raises(
        ValueError, match=r"give a .json, .jsonl or .csv file of the data set, or only its id, 'owner/name'"
    ):
        read_facts("hf://datasets/owner/name/facts.parquet")


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ("knowedit_wiki_recent", "wiki_recent"),
        ("knowedit_wiki_counterfact", "wiki_counterfact"),
        ("knowedit_zsre", "ZsRE"),
        ("knowedit_wikibio", "WikiBio"),
        ("mquake", "MQuAKE"),
        ("ripple_edits", "RippleEdits"),
        ("wikibigedit", "WikiBigEdit"),
        ("qaedit", "QAEdit"),
    ],
)
def test_config(tmp_path: Path, config: str, name: str) -> None:
    data = composed(f"data={config}", f"data.path={write(tmp_path, RECORDS[name])}").data
    assert list(read_facts(data.path, schema=data.schema, on_error=data.on_error)) == [EXPECTED[name][2]]
