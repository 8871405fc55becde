"""The knowledge base's verbs, what they leave on disk, and what is said where something is wrong."""

from __future__ import annotations

import dataclasses
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import tiny
import torch
from made_entries import LAYERS, MadeUp, a_fact

from corrigenda import Fact, KnowledgeBase, KnowledgeBaseError, LanguageModel, WrongModelError
from corrigenda.data import RecordError, read_facts
from corrigenda.knowledge import vectors
from corrigenda.knowledge.entries import Entry

FACTS = [a_fact(number) for number in range(4)]


@pytest.fixture
def kb(tmp_path: Path) -> Iterator[KnowledgeBase]:
    with KnowledgeBase.open(tmp_path / "facts.kb") as opened:
        yield opened


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return tiny.build("llama")


def ids(facts: tuple[Fact, ...]) -> list[str]:
    return [fact.id for fact in facts]


def same(found: list[Entry], expected: list[Entry]) -> bool:
    pairs = list(zip(found, expected, strict=True))
    plain = ("fact", "layer", "fingerprint", "settings")
    return all(
        torch.equal(a.key, b.key)
        and torch.equal(a.value, b.value)
        and all(getattr(a, name) == getattr(b, name) for name in plain)
        for a, b in pairs
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
        assert again.in_force == again.facts


def test_find(kb: KnowledgeBase) -> None:
    other = Fact("The  Café", "{} serves", "100% tea_", id="cafe", paraphrases=("At {} one drinks",))
    kb.insert([*FACTS, other])
    assert ids(kb.find(subject=" the CAFÉ ")) == ["cafe"]
    assert ids(kb.find(subject="Tower")) == []  # a whole subject
    assert ids(kb.find(text="tower 2 is IN")) == ["fact-2"]
    assert ids(kb.find(text="100% TEA_")) == ["cafe"]
    assert ids(kb.find(text="%")) == ["cafe"]  # as it is, not as a pattern
    assert ids(kb.find(text="one drinks")) == ["cafe"]
    assert ids(kb.find(subject="tower 1", text="rome")) == ["fact-1"]
    assert ids(kb.find(subject="tower 1", text="paris")) == []


def test_what_supersedes_what(kb: KnowledgeBase) -> None:
    """By the rule for all requests: the last word counts, and an earlier one is back when it is taken away."""
    kb.insert([FACTS[0]])
    oslo = a_fact(0, "Oslo", id="oslo")
    assert kb.insert([oslo, FACTS[1]]) == [{"contradicts": "fact-0"}, {}]
    assert kb.insert([a_fact(0, " oslo", id="again")]) == [{"repeats": "oslo"}]
    assert ids(kb.in_force) == ["fact-1", "again"]
    kb.delete("again")
    assert ids(kb.in_force) == ["oslo", "fact-1"]
    kb.delete("oslo")
    assert ids(kb.in_force) == ["fact-0", "fact-1"]


def test_by_relation_and_by_prompt(kb: KnowledgeBase) -> None:
    kb.insert([a_fact(0, relation="P131")])
    assert kb.insert([a_fact(0, "Oslo", "Where is {}? In", relation="p131", id="b")]) == [{"contradicts": "fact-0"}]
    assert kb.insert([a_fact(0, "1889", relation="P571", id="c")]) == [{}]  # same prompt, another relation
    assert kb.insert([a_fact(0, "Bern", id="d")]) == [{"contradicts": "c"}]  # none named: by the prompt
    # As in the list as a whole, where the rule is told request by request.
    assert ids(kb.in_force) == ["b", "d"]


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
    assert same(kb.entries(lm, [a_fact(3, "Bern")]), MadeUp()(lm, [a_fact(3, "Bern")]))


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
        # The map of the file grows with it, and a tensor of it can be written to without the file.
        kb.insert([a_fact(7)], lm, MadeUp())
        found[0].key.zero_()
        assert same(again.entries(lm, [a_fact(7)]), MadeUp()(lm, [a_fact(7)]))
    assert same(kb.entries(lm, FACTS[1:2]), MadeUp()(lm, FACTS[1:2]))


def test_what_a_killed_writer_left_is_written_over(kb: KnowledgeBase, lm: LanguageModel) -> None:
    kb.insert(FACTS[:1], lm, MadeUp())
    vectors = Path(f"{kb.path}.vectors")
    size = vectors.stat().st_size
    with vectors.open("ab") as file:
        file.write(b"half a vec")
    kb.insert(FACTS[1:2], lm, MadeUp())
    assert vectors.stat().st_size == 2 * size
    assert same(kb.entries(lm, FACTS[:2]), MadeUp()(lm, FACTS[:2]))


def test_vectors_are_written_anew(kb: KnowledgeBase, lm: LanguageModel) -> None:
    kb.insert([a_fact(number) for number in range(4)], lm, MadeUp())
    before, size = kb.entries(lm, kb.facts), Path(f"{kb.path}.vectors").stat().st_size
    assert kb.compact() == 0
    kb.delete("fact-1")
    assert kb.compact(unused=0.5) == 0
    assert kb.compact(unused=0.25) == size // 4
    [left] = kb.path.parent.glob(f"{kb.path.name}.vectors*")
    assert left.name == f"{kb.path.name}.vectors.1"
    assert left.stat().st_size == 3 * size // 4
    after = kb.entries(lm, kb.facts)
    kept = [entry for entry in before if entry.fact != "fact-1"]  # read before, from a file that is gone
    for one, other in zip(kept, after, strict=True):
        assert (one.fact, one.layer) == (other.fact, other.layer)
        assert torch.equal(one.key, other.key)
        assert torch.equal(one.value, other.value)
    for fact in kb.facts:
        kb.delete(fact.id)
    assert kb.compact() == 3 * size // 4
    kb.insert([a_fact(9)], lm, MadeUp())
    assert len(kb.entries(lm, kb.facts)) == len(after) // 3


def test_a_full_disk_leaves_the_earlier_vectors_and_no_half_file(kb: KnowledgeBase, lm: LanguageModel) -> None:
    kb.insert([a_fact(number) for number in range(2)], lm, MadeUp())
    kb.delete("fact-0")
    expected = kb.entries(lm, kb.facts)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with mock.patch.object(vectors.os, "fsync", side_effect=full), pytest.raises(KnowledgeBaseError, match="No space"):
        kb.compact()
    assert [path.name for path in kb.path.parent.glob("*.vectors*")] == [f"{kb.path.name}.vectors"]
    assert same(kb.entries(lm, kb.facts), expected)
    assert kb.compact() > 0
    assert same(kb.entries(lm, kb.facts), expected)


def test_files_that_are_not_the_bases_stay(kb: KnowledgeBase, lm: LanguageModel) -> None:
    kb.insert([a_fact(number) for number in range(2)], lm, MadeUp())
    others = [kb.path.with_name(f"{kb.path.name}.vectors{end}") for end in ("-1", "_2", "0", ".1.bak", ".old")]
    for path in others:
        path.write_bytes(b"somebody's copy")
    kb.delete("fact-0")
    assert kb.compact() > 0
    assert all(path.read_bytes() == b"somebody's copy" for path in others)


def test_a_base_of_the_first_format_is_read(kb: KnowledgeBase, lm: LanguageModel) -> None:
    kb.insert([a_fact(number) for number in range(2)], lm, MadeUp())
    expected = [entry.value for entry in kb.entries(lm, kb.facts)]
    kb.close()
    connection = sqlite3.connect(kb.path, isolation_level=None)
    connection.execute("ALTER TABLE vectors DROP COLUMN generation")
    connection.execute("PRAGMA user_version=1")
    connection.close()
    for _ in range(2):
        with KnowledgeBase.open(kb.path) as again:
            found = [entry.value for entry in again.entries(lm, again.facts)]
            assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_each_model_has_its_own_entries(kb: KnowledgeBase, lm: LanguageModel) -> None:
    other = tiny.build("gpt2", seed=1)
    kb.insert(FACTS, lm, MadeUp())
    with pytest.raises(WrongModelError, match=rf"'fact-0'.*weights {lm.fingerprint[:12]}.*solve\(\)"):
        kb.entries(other, FACTS)
    assert kb.solve(other, MadeUp()) == 4
    assert same(kb.entries(other, FACTS), MadeUp()(other, FACTS))
    assert same(kb.entries(lm, FACTS), MadeUp()(lm, FACTS))


def test_export_and_import(kb: KnowledgeBase, tmp_path: Path) -> None:
    said = [*FACTS, a_fact(0, "Ålesund", id="later"), Fact("Ann", "{} speaks", None, "French", id="erased")]
    kb.insert(said)
    path = tmp_path / "facts.jsonl"
    assert kb.export(path) == 6
    assert read_facts(path).facts == tuple(said)
    with KnowledgeBase.open(tmp_path / "other.kb") as other:
        assert other.import_(path)[4] == {"contradicts": "fact-0"}
        assert other.facts == kb.facts
        with pytest.raises(ValueError, match="'fact-0' is there already"):
            other.import_(path)
        lines = path.read_text(encoding="utf-8").splitlines()
        path.write_text("\n".join([lines[0].replace("fact-0", "new"), lines[1][:-5]]), encoding="utf-8")
        with pytest.raises(RecordError, match=r"facts\.jsonl, line 2: not valid JSON"):
            other.import_(path)
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
        with pytest.raises(LookupError, match="no fact has the id 'fact-7'"):
            kb.delete("fact-7")
        with pytest.raises(LookupError, match="no fact has the id 'fact-7'"):
            kb.update(a_fact(7))
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
            with pytest.raises(ValueError, match=message):
                kb.insert(FACTS[:1], lm, lambda _lm, _facts, entries=entries: entries)
        with pytest.raises(ValueError, match="give both lm and solver"):
            kb.insert(FACTS[:1], lm)
        with pytest.raises(ValueError, match="NaN"):
            Entry("a", 1, torch.tensor([1.0, float("nan")]), torch.ones(2), "f")
        assert not kb.facts

    def test_a_disk_that_is_full(self, kb: KnowledgeBase, lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
        kb.insert(FACTS[:1], lm, MadeUp())
        # Room for no further page: SQLite's own limit stands in for the disk's.
        connection = kb._database.connection
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count={pages}")
        many = [a_fact(number, paraphrases=["x" * 500]) for number in range(10, 60)]
        with pytest.raises(KnowledgeBaseError, match=r"facts\.kb: .*full"):
            kb.insert(many, lm, MadeUp())
        connection.execute("PRAGMA max_page_count=1000000")

        def full(_handle: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(KnowledgeBaseError, match=r"No space left on device; nothing was changed"):
            kb.insert(many, lm, MadeUp())
        monkeypatch.undo()
        assert ids(kb.facts) == ["fact-0"]
        kb.insert(FACTS[1:], lm, MadeUp())
        assert same(kb.entries(lm, FACTS), MadeUp()(lm, FACTS))

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
        assert same(kb.entries(lm, [a_fact(1, "Oslo")]), MadeUp()(lm, [a_fact(1, "Oslo")]))


class TestFilesThatCannotBeUsed:
    def test_none_there(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="no knowledge base at"):
            KnowledgeBase.open(tmp_path / "a.kb", create=False)
        with pytest.raises(KnowledgeBaseError, match="is a folder"):
            KnowledgeBase.open(tmp_path)
        (tmp_path / "file").write_text("text")
        with pytest.raises(KnowledgeBaseError, match="file"):
            KnowledgeBase.open(tmp_path / "file" / "a.kb")

    def test_another_kind_of_file(self, tmp_path: Path) -> None:
        text = tmp_path / "text.kb"
        text.write_text("a text, and no database. " * 100)
        with pytest.raises(KnowledgeBaseError, match=r"text\.kb: "):
            KnowledgeBase.open(text)
        other = tmp_path / "other.kb"
        connection = sqlite3.connect(other)
        connection.execute("CREATE TABLE things (name)")
        connection.commit()
        connection.close()
        before = other.read_bytes()
        with pytest.raises(KnowledgeBaseError, match=r"other\.kb is an SQLite file, but no knowledge base"):
            KnowledgeBase.open(other)
        assert other.read_bytes() == before

    def test_a_later_version(self, kb: KnowledgeBase) -> None:
        kb._database.connection.execute("PRAGMA user_version=3")
        with pytest.raises(KnowledgeBaseError, match="has format 3; this version of Corrigenda reads up to 2"):
            KnowledgeBase.open(kb.path)

    def test_damaged_vectors(self, kb: KnowledgeBase, lm: LanguageModel) -> None:
        kb.insert(FACTS, lm, MadeUp())
        vectors = Path(f"{kb.path}.vectors")
        content = bytearray(vectors.read_bytes())
        content[-1] ^= 1  # of the value of the last fact at the last layer
        vectors.write_bytes(content)
        with KnowledgeBase.open(kb.path) as again:
            assert same(again.entries(lm, FACTS[:3]), MadeUp()(lm, FACTS[:3]))
            with pytest.raises(KnowledgeBaseError, match=r"damaged at the entry of fact 'fact-3' at layer 2"):
                again.entries(lm, FACTS)
        vectors.write_bytes(content[:-8])
        with (
            KnowledgeBase.open(kb.path) as again,
            pytest.raises(KnowledgeBaseError, match="numbers where 640 are needed for the entry of fact 'fact-3'"),
        ):
            again.entries(lm, FACTS)
        vectors.unlink()
        with KnowledgeBase.open(kb.path) as again:
            with pytest.raises(KnowledgeBaseError, match=r"is missing for the entry of fact 'fact-0'.*anew=True"):
                again.entries(lm, FACTS)
            again.solve(lm, MadeUp(), anew=True)
            assert same(again.entries(lm, FACTS), MadeUp()(lm, FACTS))
