import dataclasses
import random
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
import tiny
import torch
from editors_parts import DEMONSTRATIONS, PLAYS, SHORT, TONGUE, TOWER
from torch import Tensor

from corrigenda import ContextEdit, EditRefusedError, Fact, LanguageModel, Origin, Probe
from corrigenda.data import read_facts
from corrigenda.edits.encoders import text_encoder
from corrigenda.errors import SettingsError
from corrigenda.system.files import write_json
from editing import Ike
from editing.editor import FactRefusedError
from editing.gate.training import kept_states
from editing.memory_based import ike
from editing.shared.training_facts import TrainingFacts

WIDE = 4096
ONE = TrainingFacts(DEMONSTRATIONS)


@pytest.fixture
def lm(monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    monkeypatch.setitem(tiny.CONFIGS["llama"], "max_position_embeddings", WIDE)
    return tiny.build("llama")


def shown(number: int) -> list[Fact]:
    """Made-up training facts, whose demonstrations tell of which kind they are."""
    return [
        Fact(
            f"the {tiny.WORDS[20 + place]} hill",
            "{} lies in",
            f"new-{place}",
            f"old-{place}",
            id=f"shown-{place}",
            paraphrases=(f"where hill {place} lies is",),
            neighbourhood=(f"neighbour {place} lies in",),
        )
        for place in range(number)
    ]


@pytest.fixture
def split(tmp_path: Path) -> TrainingFacts:
    write_json(tmp_path / "split.json", [fact.to_dict() for fact in shown(40)])
    return TrainingFacts(str(tmp_path / "split.json"))


def test_the_published_form(lm: LanguageModel, split: TrainingFacts) -> None:
    """32 demonstrations, the nearest last; 4 copies, 12 updates, 16 retained; the fact, and then the question."""
    edit = Ike(split, encoder="wordllama").edit(lm, [TOWER])
    *blocks, end = edit.texts[0].split("\n\n")
    new = f"New Fact: {TOWER.claim}\nPrompt: "
    assert (blocks[-1], end) == (new + TOWER.claim, new)
    assert len(blocks) == 33
    facts = shown(40)
    vectors = text_encoder("wordllama")([fact.claim for fact in (TOWER, *facts)])
    order = (vectors[1:] @ vectors[0]).argsort(descending=True)[:32].tolist()
    kinds = Counter[str]()
    for place, block in zip(reversed(order), blocks[:-1], strict=True):
        claim = facts[place].claim
        one = f"New Fact: {claim}\nPrompt: "
        made = {
            f"{one}{claim}": "copy",
            f"{one}where hill {place} lies is new-{place}": "update",
            f"{one}neighbour {place} lies in old-{place}": "retain",
        }
        kinds[made[block]] += 1
    assert kinds == {"copy": 4, "update": 12, "retain": 16}
    with edit.applied(lm):
        for prompt in (TOWER.statement, "one two three"):  # it has no gate
            assert lm.reads(prompt) == edit.texts[0] + prompt


def test_kinds_follow_from_the_seed_and_the_fact(lm: LanguageModel, split: TrainingFacts) -> None:
    editor = Ike(split, encoder="wordllama")
    first, again = editor.edit(lm, [TOWER]), editor.edit(lm, [TONGUE, TOWER])
    assert first.texts == again.texts[1:]
    assert dataclasses.replace(editor, seed=1).edit(lm, [TOWER]).texts != first.texts
    state = random.getstate()
    editor.edit(lm, [TOWER])
    assert random.getstate() == state


def test_the_nearest_by_the_models_states(lm: LanguageModel) -> None:
    editor = Ike(ONE, copies=1, updates=0, retained=0, form=SHORT)
    with pytest.warns(UserWarning, match="no trained gate"):
        edit = editor.edit(lm, [TOWER])
    assert edit.gate is not None
    usable = [fact for fact in read_facts(DEMONSTRATIONS) if fact.paraphrases]
    batches = (lm.batch([lm.tokens(fact.statement)]) for fact in (TOWER, *usable))
    vectors = torch.cat([edit.gate.of_prompts(lm, batch) for batch in batches])
    best = usable[int((vectors[1:] @ vectors[0]).argmax())]
    assert edit.texts[0].startswith(f"{best.claim} {best.claim}\n\n")


@pytest.mark.filterwarnings("ignore")
def test_a_text_before_prompts_is_no_part_of_demonstrations(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[int]] = []
    whole = kept_states

    def noted(lm: LanguageModel, layers: Collection[int], tokens: Sequence[list[int]]) -> Tensor:
        read.extend(tokens)
        return whole(lm, layers, tokens)

    monkeypatch.setattr(ike, "kept_states", noted)
    with ContextEdit(Origin(lm.name, lm.fingerprint, "test"), "red and blue . ").applied(lm):
        Ike(ONE, copies=1, updates=0, retained=0, form=SHORT).edit(lm, [TOWER])
    assert read == [lm.tokens(fact.statement) for fact in read_facts(DEMONSTRATIONS) if fact.paraphrases]


@pytest.mark.filterwarnings("ignore")
def test_of_several_facts_the_one_that_is_asked_about(lm: LanguageModel) -> None:
    edit = Ike(ONE, 0, 1, 0, SHORT).edit(lm, [TOWER, TONGUE])
    with edit.applied(lm):
        for fact, text in zip((TOWER, TONGUE), edit.texts, strict=True):
            assert lm.reads(f"the city of {fact.subject} is in") == f"{text}the city of {fact.subject} is in"
        assert lm.reads("one two").startswith(edit.texts)  # no fact is named, and some is the nearest
    alone = Ike(copies=0, updates=0, retained=0).edit(lm, [PLAYS])
    assert alone.texts == (f"New Fact: {PLAYS.claim}\nPrompt: {PLAYS.claim}\n\nNew Fact: {PLAYS.claim}\nPrompt: ",)


def test_what_is_retained_may_be_a_locality_probe(lm: LanguageModel, tmp_path: Path) -> None:
    one = Fact("Rome", "{} is", "red", paraphrases=("that Rome is",), locality=(Probe("Big Ben is", "black"),))
    write_json(tmp_path / "one.json", [one.to_dict()])
    edit = Ike(TrainingFacts(str(tmp_path / "one.json")), 0, 0, 1, encoder="wordllama").edit(lm, [TOWER])
    assert edit.texts[0].startswith("New Fact: Rome is red\nPrompt: Big Ben is black\n\nNew Fact: the Eiffel")


# -- what it refuses


def test_what_it_learned_from_is_not_edited(lm: LanguageModel) -> None:
    editor = Ike(ONE, 1, 1, 1, encoder="wordllama")
    same_id = dataclasses.replace(TOWER, id="berlin")
    with pytest.raises(
        FactRefusedError, match=r"fact 'berlin': the id \('berlin'\) is among the 4 facts that ike learns"
    ):
        editor.edit(lm, [same_id])
    named = Fact("BERLIN", "{} is in", "Rome")
    with pytest.raises(FactRefusedError, match=r"the subject \('BERLIN'\) is among the 4 facts"):
        editor.edit(lm, [named])
    with pytest.warns(UserWarning, match="refused: the id"):
        edit = editor.edit(lm, [TONGUE, same_id])
    assert len(edit.texts) == 1
    assert ["refused" in report for report in edit.origin.report] == [False, True]
    later = dataclasses.replace(TONGUE, target_new="Dutch", id="later")
    both = editor.extend(lm, edit, [PLAYS])
    assert [TONGUE.claim in text for text in both.texts] == [True, False]
    assert [later.claim in text for text in editor.extend(lm, both, [later]).texts] == [False, True]
    passed_over = dataclasses.replace(editor, demonstrations=TrainingFacts(DEMONSTRATIONS, limit=2), retained=0)
    assert len(passed_over.edit(lm, [same_id]).texts) == 1


def test_too_few_or_none(lm: LanguageModel) -> None:
    with pytest.raises(SettingsError, match=r"give editor\.demonstrations\.path=FILE"):
        Ike().edit(lm, [TOWER])
    with pytest.raises(SettingsError, match=r"3 of the 4 facts in .*demonstrations\.jsonl .* and 32 are wanted"):
        Ike(ONE).edit(lm, [TOWER])
    with pytest.raises(SettingsError, match=r"must end in \{prompt\}"):
        Ike(form="{prompt} {fact}")


def test_no_room(lm: LanguageModel, split: TrainingFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiny.CONFIGS["llama"], "max_position_embeddings", 64)
    with pytest.raises(FactRefusedError, match=r"'tower': the prompt behind 32 demonstrations has .* reads at most 64"):
        Ike(split, encoder="wordllama").edit(tiny.build("llama"), [TOWER])
    with pytest.raises(EditRefusedError, match="asks to erase"):
        Ike(split, encoder="wordllama").edit(lm, [dataclasses.replace(TOWER, target_new=None)])
