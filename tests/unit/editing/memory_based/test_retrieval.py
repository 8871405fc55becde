import dataclasses
from pathlib import Path

import pytest
import tiny
import torch
from editors_parts import FACTS, PLAYS, TONGUE, TOWER

from corrigenda import Edit, EditRefusedError, Fact, LanguageModel, RetrievalEdit
from corrigenda.edits.encoders import text_encoder
from corrigenda.edits.gate import Gate
from corrigenda.errors import UnsupportedModelError, WrongModelError
from editing import Ike, Retrieve
from editing.gate.questions import held_out_questions
from editing.memory_based.retrieval import threshold_of


@pytest.fixture
def editor(gate: Gate, tmp_path: Path) -> Retrieve:
    return Retrieve(gate=str(tmp_path / "gate.safetensors"))


def test_statements_and_their_prompts_as_keys(lm: LanguageModel, gate: Gate, editor: Retrieve) -> None:
    edit = editor.edit(lm, FACTS[:2])
    assert edit.texts == ("the Eiffel tower is located in the city of Rome. ", f"{TONGUE.claim}. ")
    assert edit.names == ((TOWER.subject,), (TONGUE.subject,))
    own = torch.cat([gate.of_prompts(lm, lm.batch([lm.tokens(fact.statement)])) for fact in FACTS[:2]])
    torch.testing.assert_close(edit.keys, own)
    assert (edit.threshold, edit.k, edit.encoder) == (0.98, 1, "states")
    with edit.applied(lm):
        assert lm.reads(TOWER.statement) == edit.texts[0] + TOWER.statement
        assert lm.reads(PLAYS.statement) == PLAYS.statement
        again = editor.edit(lm, [TOWER])  # by what stands in the prompt, whatever is put before it
    torch.testing.assert_close(again.keys, own[:1])
    other = dataclasses.replace(editor, template="{target} : {statement} . ", threshold=0.3, k=2).edit(lm, [TOWER])
    assert (other.texts, other.threshold, other.k) == ((f"Rome : {TOWER.statement} . ",), 0.3, 2)


def test_the_last_word_counts_also_when_facts_are_added(lm: LanguageModel, editor: Retrieve, tmp_path: Path) -> None:
    first = editor.edit(lm, [TOWER, TONGUE])
    new = dataclasses.replace(TOWER, target_new="London", id="new", other_names=("the old one",))
    edit = editor.extend(lm, first, [PLAYS, new])
    assert edit.texts == tuple(f"{fact.claim}. " for fact in (TONGUE, PLAYS, new))
    assert edit.names == ((TONGUE.subject,), (PLAYS.subject,), (TOWER.subject, "the old one"))
    torch.testing.assert_close(edit.keys, editor.edit(lm, [TONGUE, PLAYS, new]).keys)
    assert edit.origin.report == ({}, {}, {}, {"contradicts": 0})
    edit.save(tmp_path / "edit")
    back = editor.extend(lm, Edit.load(tmp_path / "edit"), [TOWER])  # from the disk
    assert back.texts == tuple(f"{fact.claim}. " for fact in (TONGUE, PLAYS, TOWER))
    assert [fact.id for fact in back.origin.facts] == ["tower", "tongue", "plays", "new", "tower"]
    assert first.texts == tuple(f"{fact.claim}. " for fact in (TOWER, TONGUE))


def test_what_it_does_not_go_on_from(lm: LanguageModel, editor: Retrieve) -> None:
    edit = editor.edit(lm, [TOWER])
    with pytest.raises(EditRefusedError, match="retrieval goes on from an edit by retrieval, not from one by ike"):
        editor.extend(lm, Ike(copies=0, updates=0, retained=0, gate=editor.gate).edit(lm, [TOWER]), [TONGUE])
    with pytest.raises(EditRefusedError, match="has the encoder 'states', this editor 'wordllama'"):
        Retrieve(encoder="wordllama").extend(lm, edit, [TONGUE])


def test_the_gate_is_the_models_own(editor: Retrieve) -> None:
    with pytest.raises(WrongModelError, match="the gate is tiny-llama's"):
        editor.edit(tiny.build("llama", seed=1), [TOWER])
    for family in ("bert", "t5"):
        with pytest.raises(UnsupportedModelError, match="retrieval with encoder=states"):
            editor.edit(tiny.build(family), [TOWER])


def test_by_words_a_model_of_any_kind(tmp_path: Path) -> None:
    """And the threshold is where a hundredth of other questions about a subject passes."""
    lm, editor = tiny.build("t5"), Retrieve(encoder="wordllama")
    edit = editor.edit(lm, [TOWER])
    assert edit.gate is None
    torch.testing.assert_close(edit.keys, text_encoder("wordllama")([TOWER.statement]))
    asked = held_out_questions()
    some = [one for one in asked if one.subject == asked[0].subject]
    cosines = text_encoder("wordllama")([one.prompt for one in some])
    cosines = cosines @ cosines.T
    other = torch.tensor([[a.relation != b.relation and a.form != b.form for b in some] for a in some])
    assert 0.002 < float((cosines[other] > edit.threshold).float().mean()) < 0.05
    assert edit.threshold == threshold_of("wordllama")
    with edit.applied(lm):
        assert lm.reads(TOWER.statement) == edit.texts[0] + TOWER.statement
        assert (
            lm.reads("the Eiffel tower plays the piano on the river") == "the Eiffel tower plays the piano on the river"
        )
    edit.save(tmp_path)
    loaded = Edit.load(tmp_path)
    assert isinstance(loaded, RetrievalEdit)
    assert loaded.near(lm, TOWER.statement) == [0]


def test_a_thousand_facts_are_told_apart(lm: LanguageModel, editor: Retrieve) -> None:
    facts = [Fact(f"{one} {two} {three}", "{} is in", "Rome") for one in W for two in W for three in W]
    edit = dataclasses.replace(editor, threshold=-1.0).edit(lm, facts)
    assert [edit.near(lm, facts[number].statement) for number in (0, 500, 999)] == [[0], [500], [999]]


W = ("red", "green", "blue", "black", "white", "north", "south", "east", "west", "sport")
