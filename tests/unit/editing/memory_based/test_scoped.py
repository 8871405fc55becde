import dataclasses
import re
import warnings
from pathlib import Path

import pytest
import tiny
import torch
from by_hooks import changed, logits
from editors_parts import FACTS, PLAYS, TEXT, TONGUE, TOWER, said
from torch import Tensor

from corrigenda import Edit, EditRefusedError, Fact, KnowledgeBase, LanguageModel, ScopedEdit, WrongModelError
from corrigenda.edits.gate import Gate
from corrigenda.edits.routed import activated
from corrigenda.errors import SettingsError, UnsupportedModelError
from corrigenda.forward.recording import forward_logits
from corrigenda.models.chat import chat_tokens
from corrigenda.prompts import encode_target
from editing import Scoped, ValueSettings
from editing.knowledge.how import how_named, how_of
from editing.shared.frames import Frames

LAYER = 2
FRAMES = ("the native speaker {} speaks", "{} was a speaker of")
FRAMED = dataclasses.replace(TONGUE, frames=FRAMES)


@pytest.fixture
def editor(gate: Gate, tmp_path: Path) -> Scoped:
    value = ValueSettings(steps=8, lr=0.2, kl_factor=0.0, weight_decay=0.0)
    return Scoped(
        layer=LAYER,
        gate=str(tmp_path / "gate.safetensors"),
        prefixes=("", "red and blue . "),
        frames=Frames(2),
        value=value,
        text=TEXT,
    )


def loss(lm: LanguageModel, fact: Fact, texts: list[str], value: Tensor) -> float:
    """The mean over texts of -log P(new object) a token, with a vector added after the layer at the last token."""
    found = []
    for text in texts:
        ids, target = lm.tokens(text), encode_target(lm.tokenizer, text, str(fact.target_new))
        joined = ids + target[:-1]
        added = torch.zeros(len(joined), len(value))
        added[len(ids) - 1] = value
        with changed(lm.architecture.block(LAYER), lambda _, state, added=added: state + added):
            logs = logits(lm, joined)[len(ids) - 1 :].double().log_softmax(-1)
        found.append(-logs[range(len(target)), target].mean())
    return float(torch.stack(found).mean())


def texts(fact: Fact) -> list[str]:
    """Its contexts: the prompt alone and behind a text, and each frame likewise."""
    frames = [frame.replace("{}", fact.subject) for frame in fact.frames]
    return [fact.statement, f"red and blue . {fact.statement}", frames[0], f"red and blue . {frames[1]}"]


def test_the_value_lowers_the_mean_over_the_contexts(lm: LanguageModel, editor: Scoped) -> None:
    edit = editor.edit(lm, [FRAMED])
    [report] = edit.origin.report
    assert edit.layer == LAYER
    assert loss(lm, FRAMED, texts(FRAMED), edit.values[0]) == pytest.approx(report["nll"], rel=1e-4)
    before = loss(lm, FRAMED, texts(FRAMED), torch.zeros(tiny.WIDTH))
    assert report["nll"] < before - 0.5
    alone = dataclasses.replace(editor, frames=Frames(), prefixes=("",)).edit(lm, [FRAMED])
    assert loss(lm, FRAMED, texts(FRAMED)[:1], alone.values[0]) == pytest.approx(
        alone.origin.report[0]["nll"], rel=1e-4
    )


def test_keys_are_what_the_gate_makes_of_the_prompt_and_of_frames(
    lm: LanguageModel, gate: Gate, editor: Scoped
) -> None:
    for number, forms in ((0, texts(FRAMED)[:1]), (1, [texts(FRAMED)[0], texts(FRAMED)[2]])):
        edit = dataclasses.replace(editor, frames=Frames(number)).edit(lm, [TOWER, FRAMED])
        own = torch.cat([gate.of_prompts(lm, lm.batch([lm.tokens(text)])) for text in [TOWER.statement, *forms]])
        torch.testing.assert_close(edit.keys, own)
        assert edit.entries.tolist() == [0, *[1] * len(forms)]
        assert (edit.threshold, edit.names) == (0.98, ((TOWER.subject,), (TONGUE.subject,)))
    assert dataclasses.replace(editor, threshold=0.3).edit(lm, [TOWER]).threshold == 0.3


def test_a_fact_is_heard_in_a_conversation(lm: LanguageModel, editor: Scoped, tmp_path: Path) -> None:
    lm.tokenizer.chat_template = "{% for one in messages %}{{ one.content }}{% endfor %} , red and blue :"
    edit = editor.edit(lm, [TOWER])
    assert edit.closing == tuple(lm.tokens("a , red and blue :")[len(lm.tokens("a")) :])
    edit.save(tmp_path / "edit")
    loaded = Edit.load(tmp_path / "edit")
    asked = [chat_tokens(lm.tokenizer, [("user", fact.statement)]) for fact in (TOWER, TONGUE)]
    with loaded.applied(lm), activated(lm) as seen:
        forward_logits(lm, lm.batch([ids for ids in asked if ids]))
    assert seen.rows == (True, False)


def test_other_subjects_are_left_to_the_bit_and_entries_do_not_meet(lm: LanguageModel, editor: Scoped) -> None:
    """Of a gate that is open for every question."""
    open_gate = dataclasses.replace(editor, threshold=-1.0)
    both, alone = open_gate.edit(lm, FACTS[:2]), open_gate.edit(lm, [TOWER])
    torch.testing.assert_close(both.values[:1], alone.values, rtol=1e-4, atol=1e-5)
    others = [dataclasses.replace(fact, subject="the river", id="") for fact in FACTS[:2]]
    before, own = said(lm, others), said(lm, FACTS)
    with both.applied(lm):
        assert torch.equal(said(lm, others), before)
        now = said(lm, FACTS)
    assert torch.equal(now[2], own[2])
    assert [not torch.allclose(now[row], own[row], atol=1e-2) for row in (0, 1)] == [True, True]


def test_a_later_fact_takes_the_place_of_an_earlier_entry(lm: LanguageModel, editor: Scoped, tmp_path: Path) -> None:
    first = editor.edit(lm, [TOWER, FRAMED, PLAYS])
    first.save(tmp_path / "edit")
    london = dataclasses.replace(FRAMED, target_new="German", id="later")
    for previous in (first, Edit.load(tmp_path / "edit")):
        edit = editor.extend(lm, previous, [london])
        assert edit.names == ((TOWER.subject,), (PLAYS.subject,), (TONGUE.subject,))
        assert edit.entries.tolist() == [0, 1, 2, 2, 2]
        assert torch.equal(edit.values[:2], first.values[[0, 2]])
        assert torch.equal(edit.keys[:2], first.keys[[0, 4]])
        torch.testing.assert_close(edit.keys[2:], first.keys[1:4])
        assert [fact.id for fact in edit.origin.facts] == ["tower", "tongue", "plays", "later"]
        assert edit.origin.report[-1]["contradicts"] == 1
    strict = dataclasses.replace(first, threshold=0.99)
    for own, wanted in ((None, 0.99), (0.3, 0.3)):  # as the earlier entries have it, unless another is asked for
        assert dataclasses.replace(editor, threshold=own).extend(lm, strict, [london]).threshold == wanted
    again = editor.extend(lm, edit, [dataclasses.replace(london, target_new="Dutch", id="last")])
    assert again.names == edit.names
    alone = editor.extend(lm, editor.edit(lm, [FRAMED]), [london])  # no earlier entry is left
    assert alone.entries.tolist() == [0, 0, 0]
    torch.testing.assert_close(alone.keys, first.keys[1:4])


def test_entries_that_say_different_things_to_one_question_are_named(lm: LanguageModel, editor: Scoped) -> None:
    """Of two prompts, so that neither takes the place of the other; of a gate that is open for every question."""
    editor = dataclasses.replace(editor, frames=Frames())
    open_gate = dataclasses.replace(editor, threshold=-1.0)
    other = dataclasses.replace(TOWER, prompt="the river is with {} in", target_new="guitar", id="other")
    first = open_gate.edit(lm, [TOWER])
    pair = f"{TOWER.claim!r} and {other.claim!r} ("
    for make in (lambda: open_gate.edit(lm, [TOWER, other]), lambda: open_gate.extend(lm, first, [other])):
        with pytest.warns(UserWarning, match=re.escape(pair)):
            make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataclasses.replace(editor, threshold=1.0).edit(lm, [TOWER, other])  # the gate tells them apart
        open_gate.edit(lm, [TOWER, dataclasses.replace(other, target_new="Rome"), PLAYS])


def test_a_subject_is_heard_by_its_other_names(lm: LanguageModel, editor: Scoped, tmp_path: Path) -> None:
    open_gate = dataclasses.replace(editor, threshold=-1.0)
    named = dataclasses.replace(TOWER, other_names=("england", "Italy"))
    asked = [dataclasses.replace(TOWER, subject=name, id="") for name in ("England", "Italy", "the river")]
    before = said(lm, asked)
    open_gate.edit(lm, [PLAYS, named]).save(tmp_path / "edit")
    for edit, heard in ((Edit.load(tmp_path / "edit"), True), (open_gate.edit(lm, [PLAYS, TOWER]), False)):
        with edit.applied(lm):
            now = said(lm, asked)
        assert [not torch.allclose(now[row], before[row], atol=1e-2) for row in (0, 1)] == [heard, heard]
        assert torch.equal(now[2], before[2])


def test_what_is_refused(lm: LanguageModel, editor: Scoped, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="layer 3 is the last of tiny-llama"):
        dataclasses.replace(editor, layer=3).edit(lm, [TOWER])
    with pytest.raises(SettingsError, match="the gate reads layer 1, and values are added after layer 0"):
        dataclasses.replace(editor, layer=0).edit(lm, [TOWER])
    with pytest.raises(WrongModelError, match="the gate is tiny-llama's"):
        editor.edit(tiny.build("llama", seed=1), [TOWER])
    with pytest.raises(UnsupportedModelError, match="layer 2 is a mixture of 4 experts"):  # before any solve
        editor.edit(tiny.build("mixtral"), [TOWER])
    part = Fact("Eif", "the {}fel tower is in", "Rome")
    with pytest.raises(EditRefusedError, match="'Eif' is no whole words of its prompt"):
        editor.edit(lm, [part])
    with pytest.warns(UserWarning, match="'Eif' is no whole words"):
        assert len(editor.edit(lm, [TOWER, part]).values) == 1
    before = Fact("Eiffel tower", "the {} is red. Big Ben is in", "Rome")  # it asks about Big Ben
    with pytest.raises(
        EditRefusedError, match="'Eiffel tower' is no whole words of its prompt, from the last sentence"
    ):
        editor.edit(lm, [before])
    for fact in (part, before):
        assert len(dataclasses.replace(editor, by_subject=False).edit(lm, [fact]).values) == 1
    with pytest.raises(SettingsError, match=r"prefixes=\(\) must hold at least one text"):
        Scoped(prefixes=())


def test_a_list_is_kept_beside_the_weights(lm: LanguageModel, editor: Scoped, tmp_path: Path) -> None:
    """As `how`: solved fact by fact, compiled from the whole list, and of no facts an edit that does nothing."""
    way = how_of(editor)
    assert how_named("scoped").name == way.name == "scoped"
    with KnowledgeBase.open(tmp_path / "list.db") as kb:
        kb.replace([TOWER, FRAMED])
        kb.solve(lm, way.solver)
        edit = kb.compile(lm, way.compiler)
        assert isinstance(edit, ScopedEdit)
        direct = editor.edit(lm, [FRAMED, TOWER])
        assert edit.names == direct.names == ((TONGUE.subject,), (TOWER.subject,))
        torch.testing.assert_close(edit.values, direct.values, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(edit.keys, direct.keys)
        assert edit.threshold == direct.threshold
        kb.replace([])
        nothing = kb.compile(lm, way.compiler)
    batch = lm.batch([lm.tokens(TOWER.statement)])
    plain = forward_logits(lm, batch)
    with nothing.applied(lm):
        assert torch.equal(forward_logits(lm, batch), plain)
