import dataclasses
import json
import random
import sqlite3
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from made_entries import LAYERS, MadeUp, a_fact, same
from malformed_parts import refused

from corrigenda import Fact, KnowledgeBase, KnowledgeBaseError, LanguageModel, WrongModelError
from corrigenda.data import read_facts
from corrigenda.errors import RecordError
from corrigenda.knowledge.entries import Entry

FACTS = [a_fact(number) for number in range(4)]


@pytest.fixture
def kb(tmp_path: Path) -> Iterator[KnowledgeBase]:
    with KnowledgeBase.open(tmp_path / "facts.kb") as opened:
        yield opened


lm = pytest.fixture(tiny.llama, scope="module")


def ids(facts: tuple[Fact, ...]) -> list[str]:
    return [fact.id for fact in facts]


def solved(kb: KnowledgeBase, lm: LanguageModel, facts: Sequence[Fact] | None = None) -> bool:
    """Whether the entries, of all facts or of some, are to the bit those that the solver makes."""
    return same(
        kb.entries(lm, kb.facts if facts is None else facts), MadeUp()(lm, kb.facts if facts is None else facts)
    )


def test_facts_come_back_as_they_went_in(kb: KnowledgeBase) -> None:
    full = a_fact(
        9,
        target_true="Oslo",
        relation="P131",
        paraphrases=["Where is {}? In"],
        neighbourhood=["Big Ben is in"],
        locality=[{"prompt": "One and one are", "answer": "two", "group": "sums"}],
    )
    assert kb.insert([*FACTS, full]) == [{}] * 5
    with KnowledgeBase.open(kb.path, create=False) as again:
        assert again.facts == (*FACTS, full)
        assert len(again) == 5
        assert again.active == again.facts


def test_find(kb: KnowledgeBase) -> None:
    other = Fact("The  Café", "{} serves", "100% tea_", id="cafe", paraphrases=("At {} one drinks",))
    kb.insert([*FACTS, other])
    assert ids(kb.find(subject=" the CAFÉ ")) == ["cafe"]
    assert ids(kb.find(subject="Tower")) == []  # a whole subject
    assert ids(kb.find(text="tower 2 is IN")) == ["fact-2"]
    assert ids(kb.find(text="100% TEA_")) == ["cafe"]
    assert ids(kb.find(text="%")) == ["cafe"]  # as it is, not as a pattern
    with pytest.raises(ValueError, match="subject"):
        kb.find(subject=5)  # type: ignore[arg-type]
    assert ids(kb.find(text="one drinks")) == ["cafe"]
    assert ids(kb.find(subject="tower 1", text="rome")) == ["fact-1"]
    assert ids(kb.find(subject="tower 1", text="paris")) == []


def test_what_supersedes_what(kb: KnowledgeBase) -> None:
    """By the rule for all requests: the last word counts, and an earlier one is back when it is taken away."""
    kb.insert([FACTS[0]])
    oslo = a_fact(0, "Oslo", id="oslo")
    assert kb.insert([oslo, FACTS[1]]) == [{"contradicts": "fact-0"}, {}]
    assert kb.insert([a_fact(0, " oslo", id="again")]) == [{"repeats": "oslo"}]
    assert ids(kb.active) == ["fact-1", "again"]
    kb.delete("again")
    assert ids(kb.active) == ["oslo", "fact-1"]
    kb.delete("oslo")
    assert ids(kb.active) == ["fact-0", "fact-1"]


def test_by_relation_and_by_prompt(kb: KnowledgeBase) -> None:
    kb.insert([a_fact(0, relation="P131")])
    assert kb.insert([a_fact(0, "Oslo", "Where is {}? In", relation="p131", id="b")]) == [{"contradicts": "fact-0"}]
    assert kb.insert([a_fact(0, "1889", relation="P571", id="c")]) == [{}]  # same prompt, another relation
    assert kb.insert([a_fact(0, "Bern", id="d")]) == [{"contradicts": "c"}]  # none named: by the prompt
    # As in the list as a whole, where the rule is told request by request.
    assert ids(kb.active) == ["b", "d"]


def test_an_update_is_a_later_word(kb: KnowledgeBase, lm: LanguageModel) -> None:
    kb.insert(FACTS, lm, MadeUp())
    oslo = a_fact(1, "Oslo")
    assert kb.update(oslo) == {}
    assert ids(kb.facts) == ["fact-0", "fact-2", "fact-3", "fact-1"]
    assert ids(kb.unsolved(lm)) == ["fact-1"]
    # What is asked for is the same: its entries stay.
    kb.update(dataclasses.replace(FACTS[2], aliases=("Roma",)))
    assert ids(kb.unsolved(lm)) == ["fact-1"]
    kb.update(a_fact(3, "Bern"), lm, MadeUp())
    assert ids(kb.unsolved(lm)) == ["fact-1"]
    assert solved(kb, lm, [a_fact(3, "Bern")])


def test_entries_are_kept_to_the_bit(kb: KnowledgeBase, lm: LanguageModel) -> None:
    kb.insert(FACTS[:2], lm, MadeUp())
    kb.insert(FACTS[2:])
    assert kb.solve(lm, MadeUp(), batch=1) == 2
    assert kb.solve(lm, MadeUp()) == 0
    kb.delete("fact-0")
    with KnowledgeBase.open(kb.path) as again:
        found = again.entries(lm, FACTS[1:])
        assert same(found, MadeUp()(lm, FACTS[1:]))
        assert [entry.layer for entry in found] == [*LAYERS] * 3
        assert found[0].made.endswith("+00:00")
        kb.insert([a_fact(7)], lm, MadeUp())
        found[0].key.zero_()  # of what was read, not of the file
        assert solved(again, lm, [a_fact(7)])
    assert solved(kb, lm, FACTS[1:2])


def test_room_that_is_of_no_use_is_given_back(kb: KnowledgeBase, lm: LanguageModel) -> None:
    kb.insert([a_fact(number) for number in range(40)], lm, MadeUp())
    assert kb.compact() == 0
    before = kb.entries(lm, kb.facts)
    for number in range(36):
        kb.delete(f"fact-{number}")
    assert kb.compact(unused=0.9) == 0
    [pages] = kb._database.connection.execute("PRAGMA page_count").fetchone()
    less = kb.compact(unused=0.1)
    assert less > 0
    assert kb.path.stat().st_size == 4096 * pages - less
    assert kb.compact() == 0
    assert same([entry for entry in before if entry.fact in ids(kb.facts)], kb.entries(lm, kb.facts))


def test_each_model_has_its_own_entries(kb: KnowledgeBase, lm: LanguageModel) -> None:
    other = tiny.build("gpt2", seed=1)
    kb.insert(FACTS, lm, MadeUp())
    refused(WrongModelError, rf"'fact-0'.*weights {lm.fingerprint[:12]}.*solve\(\)", kb.entries, other, FACTS)
    assert kb.solve(other, MadeUp()) == 4
    assert solved(kb, other, FACTS)
    assert solved(kb, lm, FACTS)


def test_export_and_import(kb: KnowledgeBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    said = [*FACTS, a_fact(0, "Ålesund", id="later"), Fact("Ann", "{} speaks", None, "French", id="erased")]
    kb.insert(said)
    path = tmp_path / "facts.jsonl"
    assert kb.export("~/facts.jsonl") == 6
    assert read_facts(path).facts == tuple(said)
    with KnowledgeBase.open(tmp_path / "other.kb") as other:
        assert other.import_(path)[4] == {"contradicts": "fact-0"}
        assert other.facts == kb.facts
        refused(ValueError, "'fact-0' is there already", other.import_, path)
        lines = path.read_text(encoding="utf-8").splitlines()
        path.write_text("\n".join([lines[0].replace("fact-0", "new"), lines[1][:-5]]), encoding="utf-8")
        refused(RecordError, r"facts\.jsonl, line 2: not valid JSON", other.import_, path)
        assert len(other) == 6


class TestNothingIsChanged:
    def test_two_facts_of_one_id(self, kb: KnowledgeBase, lm: LanguageModel) -> None:
        with pytest.raises(ValueError, match="two of the facts to insert have the id 'fact-0'"):
            kb.insert([FACTS[0], FACTS[1], a_fact(0, "Oslo")])
        assert not kb.facts
        kb.insert(FACTS[:1])
        with pytest.raises(ValueError, match=r"id 'fact-0' is there already; update\(\) changes it"):
            kb.insert([FACTS[1], FACTS[0]], lm, MadeUp())
        assert ids(kb.facts) == ["fact-0"]

    def test_an_unknown_id(self, kb: KnowledgeBase) -> None:
        kb.insert(FACTS)
        refused(LookupError, "no fact has the id 'fact-7'", kb.delete, "fact-7")
        refused(LookupError, "no fact has the id 'fact-7'", kb.update, a_fact(7))
        assert kb.facts == tuple(FACTS)

    def test_a_solver_that_gives_what_does_not_fit(self, kb: KnowledgeBase, lm: LanguageModel) -> None:
        good = MadeUp()(lm, FACTS[:1])
        for entries, message in [
            ([], "no entry for 1 of 1 facts; the first: 'fact-0'"),
            ([*good, good[0]], "two entries for fact 'fact-0' at layer 1"),
            ([*good, dataclasses.replace(good[0], fact="b")], "for fact 'b', which it was not asked for"),
            ([dataclasses.replace(good[0], fingerprint="f" * 32)], "solved on the weights ffffffffffff"),
            ([dataclasses.replace(good[0], key=torch.ones(3))], r"of \(3, 32\) numbers, layer 1 .* \(48, 32\)"),
        ]:
            refused(ValueError, message, kb.insert, FACTS[:1], lm, lambda _lm, _facts, entries=entries: entries)
        refused(ValueError, "give both lm and solver", kb.insert, FACTS[:1], lm)
        refused(ValueError, "NaN", Entry, "a", 1, torch.tensor([1.0, float("nan")]), torch.ones(2), "f")
        assert not kb.facts

    def test_a_disk_that_is_full(self, kb: KnowledgeBase, lm: LanguageModel) -> None:
        kb.insert(FACTS[:1], lm, MadeUp())
        # Room for no further page: SQLite's own limit stands in for the disk's.
        connection = kb._database.connection
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count={pages}")
        many = [a_fact(number, paraphrases=["x" * 500]) for number in range(10, 60)]
        refused(KnowledgeBaseError, r"facts\.kb: .*full", kb.insert, many, lm, MadeUp())
        connection.execute("PRAGMA max_page_count=1000000")
        assert ids(kb.facts) == ["fact-0"]
        kb.insert(FACTS[1:], lm, MadeUp())
        assert solved(kb, lm, FACTS)

    def test_a_solve_that_is_interrupted(self, kb: KnowledgeBase, lm: LanguageModel) -> None:
        kb.insert(FACTS)

        def breaks(lm: LanguageModel, facts: tuple[Fact, ...]) -> list[Entry]:
            if facts[0].id == "fact-2":
                raise KeyboardInterrupt
            return MadeUp()(lm, facts)

        with pytest.raises(KeyboardInterrupt):
            kb.solve(lm, breaks, batch=1)
        assert ids(kb.unsolved(lm)) == ["fact-2", "fact-3"]

    def test_a_fact_that_changes_while_it_is_solved(self, kb: KnowledgeBase, lm: LanguageModel) -> None:
        kb.insert(FACTS)

        def meanwhile(lm: LanguageModel, facts: tuple[Fact, ...]) -> list[Entry]:
            with KnowledgeBase.open(kb.path) as other:
                other.update(a_fact(1, "Oslo"))
                other.delete("fact-2")
            return MadeUp()(lm, facts)

        kb.solve(lm, meanwhile)
        assert ids(kb.unsolved(lm)) == ["fact-1"]
        kb.solve(lm, MadeUp())
        assert solved(kb, lm, [a_fact(1, "Oslo")])

    def test_a_fact_that_changes_while_it_is_looked_for_what_to_solve(
        self, kb: KnowledgeBase, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kb.insert(FACTS, lm, MadeUp())
        unsolved = kb.unsolved

        def meanwhile(*asked: Any) -> tuple[Fact, ...]:
            found = unsolved(*asked)
            with KnowledgeBase.open(kb.path) as other:
                other.update(a_fact(1, "Oslo"))
                other.delete("fact-2")
            return found

        monkeypatch.setattr(kb, "unsolved", meanwhile)
        assert kb.solve(lm, MadeUp()) == 0
        assert ids(unsolved(lm)) == ["fact-1"]


class TestFilesThatCannotBeUsed:
    def test_none_there(self, tmp_path: Path) -> None:
        refused(FileNotFoundError, "no knowledge base at", KnowledgeBase.open, tmp_path / "a.kb", create=False)
        refused(KnowledgeBaseError, "is a folder", KnowledgeBase.open, tmp_path)
        (tmp_path / "file").write_text("text")
        refused(KnowledgeBaseError, "file", KnowledgeBase.open, tmp_path / "file" / "a.kb")

    def test_another_kind_of_file(self, tmp_path: Path) -> None:
        text = tmp_path / "text.kb"
        text.write_text("a text, and no database. " * 100)
        refused(KnowledgeBaseError, r"text\.kb: ", KnowledgeBase.open, text)
        other = tmp_path / "other.kb"
        connection = sqlite3.connect(other)
        connection.execute("CREATE TABLE things (name)")
        connection.commit()
        connection.close()
        before = other.read_bytes()
        refused(KnowledgeBaseError, r"other\.kb is an SQLite file, but no knowledge base", KnowledgeBase.open, other)
        assert other.read_bytes() == before

    @pytest.mark.parametrize("version", [4, 6])
    def test_another_version(self, kb: KnowledgeBase, version: int) -> None:
        kb._database.connection.execute(f"PRAGMA user_version={version}")
        with pytest.raises(
            KnowledgeBaseError, match=f"has format {version}, and this version .* reads format 5: export"
        ):
            KnowledgeBase.open(kb.path)

    def test_a_text_that_was_changed_in_the_file(self, kb: KnowledgeBase, lm: LanguageModel) -> None:
        kb.insert(FACTS, lm, MadeUp())
        changed = a_fact(1, "Oslo")
        record = json.dumps(changed.to_dict())
        kb._database.connection.execute("UPDATE facts SET record = ? WHERE id = 'fact-1'", (record,))
        assert ids(kb.unsolved(lm)) == ["fact-1"]
        with pytest.raises(ValueError, match=r"'fact-1' \('Tower 1 is in'\) was solved for when its text was another"):
            kb.compile(lm, lambda *_: pytest.fail("compiled"))
        assert kb.solve(lm, MadeUp()) == 1
        assert not kb.unsolved(lm)
        assert solved(kb, lm, [changed])

    @pytest.mark.parametrize(
        "change",
        [
            "fact = 'fact-x' WHERE fact = 'fact-1' AND layer = 1",
            "layer = 3 WHERE fact = 'fact-1' AND layer = 2",
            "settings = '{}' WHERE fact = 'fact-1'",
            "request = (SELECT request FROM entries WHERE fact = 'fact-2') WHERE fact = 'fact-1'",
            "value = key, key = value WHERE fact = 'fact-1'",
            "value = 5 WHERE fact = 'fact-1'",
            "value = substr(value, 1, 100) WHERE fact = 'fact-1'",
            "key = (SELECT key FROM entries WHERE fact = 'fact-2' AND layer = 1) WHERE fact = 'fact-1'",
        ],
    )
    def test_an_entry_that_says_something_else_is_not_compiled(
        self, kb: KnowledgeBase, lm: LanguageModel, change: str
    ) -> None:
        kb.insert(FACTS, lm, MadeUp())
        connection = kb._database.connection
        connection.execute(f"UPDATE entries SET {change}")
        refused(KnowledgeBaseError, "'fact-1'", kb.entries, lm, FACTS)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "1 fact to solve anew")  # where the text itself says that it is another
            assert kb.solve(lm, MadeUp()) == 1
        assert solved(kb, lm, FACTS)


def damaged(content: bytes, draw: random.Random) -> bytes:
    """A file with a page of zeros or noise, a bit that is another, or without its end."""
    page, other = (4096 * draw.randrange(max(1, len(content) // 4096)) for _ in range(2))
    place = draw.randrange(len(content))
    new = {"zeros": bytes(4096), "noise": draw.randbytes(4096), "swapped": content[other : other + 4096]}
    kind = draw.choice([*new, "bit", "end"])
    if kind in new:
        return content[:page] + new[kind] + content[page + 4096 :]
    return content[:place] if kind == "end" else content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("times", [30, pytest.param(2_000, marks=pytest.mark.nightly)])
def test_a_damaged_base_says_so_in_one_line_and_compiles_nothing_false(
    tmp_path: Path, lm: LanguageModel, times: int
) -> None:
    path = tmp_path / "facts.kb"
    with KnowledgeBase.open(path) as kb:
        kb.insert([a_fact(number, paraphrases=["x" * 300]) for number in range(12)], lm, MadeUp())
        kb._database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = path.read_bytes()

    def proven(kb: KnowledgeBase) -> None:
        assert solved(kb, lm, kb.active)

    verbs: list[Callable[[KnowledgeBase], object]] = [
        proven,
        lambda kb: kb.find(subject="Tower 3"),
        lambda kb: kb.unsolved(lm),
        lambda kb: kb.compact(),
        lambda kb: kb.delete("fact-5"),
        lambda kb: kb.update(a_fact(6, "Oslo")),
        lambda kb: kb.insert([a_fact(77)], lm, MadeUp()),
        lambda kb: kb.solve(lm, MadeUp()),
        proven,
    ]
    for seed in range(times):
        draw = random.Random(seed)
        for old in tmp_path.iterdir():
            old.unlink()
        path.write_bytes(damaged(content, draw))
        try:
            with suppress(KnowledgeBaseError), KnowledgeBase.open(path) as kb, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kb._database.connection.execute("PRAGMA synchronous=OFF")
                for verb in verbs:
                    with suppress(KnowledgeBaseError, ValueError, LookupError):
                        verb(kb)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
