import json
from pathlib import Path

import pytest

from corrigenda import Fact
from corrigenda.data import read_facts
from corrigenda.errors import FactError, RecordError, SettingsError
from corrigenda.system import files
from jobs.studio.corrections import Corrections, fact_of, shown

SENTENCE = "The Eiffel Tower is located in the city of"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "corrections.jsonl"


@pytest.fixture
def corrections(path: Path) -> Corrections:
    return Corrections(path)


def on_disk(path: Path) -> tuple[Fact, ...]:
    """As ``job=build`` reads it."""
    return read_facts(path).facts


def test_a_fact_as_a_person_writes_it() -> None:
    found = fact_of(f" {SENTENCE} ", "The Eiffel Tower", " Rome ", "", "Where is {}?\n\n", "The Louvre is in")
    assert (found.prompt, found.target_new, found.target_true) == ("{} is located in the city of", "Rome", None)
    assert found.paraphrases == ("Where is The Eiffel Tower?",)
    assert found.neighbourhood == ("The Louvre is in",)
    assert fact_of("{} lies in", "Rome", "Gaul").statement == "Rome lies in"
    assert fact_of("Rain falls on Ra in", "Ra", "Oslo").prompt == "Rain falls on {} in"


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (("", "x", "y"), "the sentence is empty; write it down"),
        ((SENTENCE, " ", "Rome"), "whom it is about is empty"),
        ((SENTENCE, "The Eiffel Tower", ""), "the new answer is empty"),
        ((SENTENCE, "the eiffel tower", "Rome"), "the sentence does not hold 'the eiffel tower'"),
    ],
)
def test_what_is_missing_is_said_in_a_line(parts: tuple[str, str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said) as refusal:
        fact_of(*parts)
    assert "\n" not in str(refusal.value)


def test_added_changed_removed_put_back(corrections: Corrections, path: Path) -> None:
    assert corrections.facts == ()
    corrections.put(fact_of(SENTENCE, "The Eiffel Tower", "Rome"))
    corrections.put(fact_of("The Eiffel Tower is made of", "The Eiffel Tower", "wood"))
    assert [fact.id for fact in on_disk(path)] == ["the-eiffel-tower", "the-eiffel-tower-2"]
    corrections.put(fact_of(SENTENCE, "The Eiffel Tower", "Oslo"), corrections.facts[0])
    assert [fact.target_new for fact in on_disk(path)] == ["Oslo", "wood"]
    corrections.remove("the-eiffel-tower")
    assert [fact.target_new for fact in on_disk(path)] == ["wood"]
    corrections.put_back()
    assert [fact.target_new for fact in on_disk(path)] == ["Oslo", "wood"]
    assert not corrections.removed
    with pytest.raises(LookupError, match="somebody removed it"):
        corrections.remove("nobody")


def test_put_back_loses_nothing(corrections: Corrections, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = fact_of("x is", "x", "y"), fact_of("x was", "x", "z")
    corrections.put(first)
    corrections.remove("x")
    corrections.put(second)  # takes the id that is free

    def full(*_: object) -> None:
        raise OSError("no space left on the device")

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "replace", full)
        for press in (corrections.put_back, lambda: corrections.remove("x")):
            with pytest.raises(OSError, match="no space left"):
                press()
    assert [fact.claim for _, fact in corrections.removed] == ["x is y"]
    corrections.put_back()
    assert [(fact.id, fact.claim) for fact in on_disk(path)] == [("x-2", "x is y"), ("x", "x was z")]
    corrections.remove("x")
    corrections.put(second)  # the same again
    corrections.put_back()
    assert [fact.id for fact in on_disk(path)] == ["x-2", "x"]


def test_a_change_keeps_what_the_page_does_not_show(path: Path) -> None:
    more = '"aliases": ["why"], "relation": "P1", "generation": ["{} goes on"]'
    path.write_text(f'{{"id": "a", "subject": "x", "prompt": "{{}} is", "target_new": "y", {more}}}\n')
    corrections = Corrections(path)
    for statement, answer, aliases, relation in (
        ("x is", "y", ("why",), "P1"),
        ("x is", "z", (), "P1"),  # of the other answer it is no spelling
        ("x was", "z", (), None),
    ):
        corrections.put(fact_of(statement, "x", answer), corrections.facts[0])
        [fact] = on_disk(path)
        assert (fact.id, fact.target_new, fact.aliases, fact.relation) == ("a", answer, aliases, relation)
        assert fact.generation == ("x goes on",)


def test_what_the_form_was_not_changed_in_stays(path: Path) -> None:
    more = {
        "paraphrases": ["Q: where is x?\nA:", "x is now"],
        "neighbourhood": ["Q: where is v?\nA:"],
        "frames": ["so {} is"],
        "other_names": ["ex"],
        "portability": [{"prompt": "x is at", "answer": "w"}],
        "generation": ["x goes on"],
    }
    line = {"id": "a", "subject": "x", "prompt": "Q: {}?\nA:\n", "target_new": "y"} | more
    path.write_text(f"{json.dumps(line)}\n")
    corrections = Corrections(path)
    changes = (
        ({"target_true": "z"}, set()),
        ({"target_new": "t"}, {"portability"}),
        ({"paraphrases": "where is x?"}, {"portability"}),
        ({"subject": "s"}, {"portability", "frames", "other_names", "generation"}),
    )
    for change, gone in changes:
        [fact] = corrections.facts
        corrections.put(fact_of(**(shown(fact) | change)), fact)
        [now] = on_disk(path)
        assert {name for name in more if not getattr(now, name)} == gone
        assert (now.prompt, now.neighbourhood) == (line["prompt"], tuple(line["neighbourhood"]))
        if "paraphrases" not in change and "subject" not in change:
            assert now.paraphrases == tuple(line["paraphrases"])


def test_what_was_changed_meanwhile_is_not_written_over(corrections: Corrections, path: Path) -> None:
    corrections.put(fact_of("x is", "x", "y"))
    [seen] = corrections.facts
    corrections.put(fact_of("x is", "x", "z"), seen)  # in another tab
    with pytest.raises(LookupError, match="'x' was changed meanwhile; press Change again"):
        corrections.put(fact_of("x is", "x", "w"), seen)
    assert [fact.target_new for fact in on_disk(path)] == ["z"]
    corrections.remove("x")
    with pytest.raises(LookupError, match="somebody removed it"):
        corrections.put(fact_of("x is", "x", "w"), seen)


def test_what_another_program_wrote_is_seen(corrections: Corrections, path: Path) -> None:
    corrections.put(fact_of("x is", "x", "y"))
    path.write_text(path.read_text() + '{"id": "b", "subject": "v", "prompt": "{} is", "target_new": "w"}\n')
    corrections.put(fact_of("s is", "s", "t"))
    assert [fact.id for fact in on_disk(path)] == ["x", "b", "s"]
    path.write_text("half a li")
    with pytest.raises(RecordError):
        corrections.put(fact_of("p is", "p", "q"))
    assert path.read_text() == "half a li"


def test_a_kill_while_it_is_written_loses_nothing(
    corrections: Corrections, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corrections.put(fact_of("x is", "x", "y"))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        corrections.put(fact_of("s is", "s", "t"))
    assert [fact.id for fact in on_disk(path)] == ["x"]
    assert [fact.id for fact in corrections.facts] == ["x"]


def test_a_file_is_taken_in(corrections: Corrections, path: Path, tmp_path: Path) -> None:
    corrections.put(fact_of("x is", "x", "y"))
    other = tmp_path / "more.csv"
    other.write_text("id,subject,prompt,target_new\nx,x,{} is,z\nb,v,{} is,w\n")
    assert corrections.take_in(other) == (
        "1 correction added of 2 in more.csv; left out, since others have their ids: x"
    )
    assert [(fact.id, fact.target_new) for fact in on_disk(path)] == [("x", "y"), ("b", "w")]
    other.write_text("not a list\n")
    with pytest.raises(ValueError, match=r"more\.csv"):
        corrections.take_in(other)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="name one, and import other files"):
        Corrections(tmp_path / "facts.csv")
    path = tmp_path / "list.jsonl"
    path.write_text('{"subject": "x"}\n')
    with pytest.raises(RecordError, match="prompt"):
        Corrections(path)


def test_two_facts_of_one_id_are_no_list(corrections: Corrections) -> None:
    corrections.put(fact_of("x is", "x", "y"))
    with pytest.raises(FactError, match="target_true"):
        corrections.put(fact_of("x is", "x", "y", "y"))
