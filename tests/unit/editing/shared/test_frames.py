import dataclasses
from pathlib import Path

import pytest
import stand_ins
import tiny
import torch
from by_hooks import coefficients

from corrigenda import Fact, LanguageModel
from corrigenda.data.relations import relations_of
from corrigenda.errors import FactError, SettingsError
from editing import Memit, Rome
from editing.knowledge.solving import EntrySolver
from editing.locate_then_edit.keys import group_weights
from editing.locate_then_edit.prompts import build_prompts
from editing.locate_then_edit.solved import Solving
from editing.locate_then_edit.targets import ValueSettings
from editing.shared.frames import Frames, wordings

BORN = Fact("Ada", "{} was born in", "Rome", "London", relation="P19")
FORMS = relations_of(BORN)[0].forms
TOWER = Fact(
    "the Eiffel tower",
    "{} is located in the city of",
    "Rome",
    "Paris",
    paraphrases=("Thomas plays the guitar . the city of {} is",),
    frames=("in the city with {} is the capital of", "the country with {} is"),
)
PREFIXES = ("", "red green . ")
CHAT = "{% for one in messages %}{{ one.role }} : {{ one.content }} .{% endfor %} assistant :"


def test_own_frames_first_then_forms_of_the_relation() -> None:
    assert FORMS[0] == BORN.prompt
    assert Frames().of(BORN) == ()
    assert Frames(3).of(BORN) == FORMS[1:4]
    assert Frames(99).of(dataclasses.replace(BORN, relation=None)) == FORMS[1:]  # by its prompt
    own = dataclasses.replace(BORN, frames=("The cradle of {} stood in", FORMS[2]))
    assert Frames(3).of(own) == (*own.frames, FORMS[1])
    music = Fact("Ada", "The music of {} is", "jazz", relation="P136")
    [asked] = [one for one in relations_of(music) if music.prompt in one.forms]
    assert {*Frames(99).of(music)} == {*asked.forms} - {music.prompt}
    # One id of a relation and its inverse, of which the prompt says the one; and nothing says it.
    found = Fact("Radium", "{} was discovered by", "Albert Einstein", relation="P61")
    assert "{} discovered" not in Frames(99).of(found)
    assert "Who discovered {}?" in Frames(99).of(found)
    assert Frames(99).of(dataclasses.replace(found, prompt="{}, found by")) == ()


def test_a_form_that_is_scored_is_no_frame() -> None:
    scored = dataclasses.replace(BORN, paraphrases=(f"It rains. {FORMS[1].upper()}", FORMS[2]))
    assert Frames(99).of(scored) == FORMS[3:]
    with pytest.raises(FactError, match=r"frames\[1\].*among the paraphrases, which are scored.*comes originally"):
        dataclasses.replace(scored, frames=("The cradle of {} stood in", FORMS[1]))
    with pytest.raises(FactError, match=r"frames\[0\].*exactly one '\{\}'"):
        dataclasses.replace(BORN, frames=("Ada was born in",))
    longer = dataclasses.replace(BORN, paraphrases=("The son of Nevada was born in",))  # another word's end
    assert FORMS[0] not in Frames(99).of(longer)
    assert dataclasses.replace(longer, frames=("{} was born in",)).frames


def test_a_file_of_relations(tmp_path: Path) -> None:
    file = tmp_path / "relations.txt"
    file.write_text(
        "[person] cradle -> city (P19)\nThe cradle of {} stood in\n\n[dish] made of -> food\n{} is made of\n"
    )
    frames = Frames(5, str(file))
    assert frames.of(BORN) == ("The cradle of {} stood in",)
    key = frames.key
    file.write_text("[person] cradle -> city (P19)\n{} was\n")
    assert frames.of(BORN) == ("{} was",)
    assert frames.key != key
    for content, wrong in (("cradle\n{} was\n", "'cradle' must be"), ("[a] b -> c\nAda was\n", "'Ada was' needs one")):
        file.write_text(content)
        with pytest.raises(SettingsError, match=wrong):
            frames.of(BORN)
    with pytest.raises(SettingsError, match="cannot be read"):
        Frames(1, str(tmp_path / "none.txt")).of(BORN)


def test_each_frame_stands_behind_a_prefix_in_turn() -> None:
    fact = dataclasses.replace(BORN, frames=tuple(f"{word} {{}} is" for word in "abc"))
    found = wordings(fact, PREFIXES, Frames(3), tiny.build("gpt2").tokenizer)
    assert [(one.place, one.prefix + one.fact.statement) for one in found] == [
        (0, "Ada was born in"),
        (1, "red green . Ada was born in"),
        (2, "a Ada is"),
        (3, "red green . b Ada is"),
        (4, "c Ada is"),
    ]


def test_a_conversation_is_a_frame(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first one; it counts in a mean key as any other."""
    stand_ins.without_text(monkeypatch, tmp_path)
    frames = Frames(1, chat=True)
    with pytest.raises(SettingsError, match=r"frames\.chat=true: the model's tokenizer has no chat template"):
        frames.with_chat(BORN, lm.tokenizer)
    lm.tokenizer.chat_template = CHAT
    bare = frames.of(BORN)
    assert frames.with_chat(BORN, lm.tokenizer) == (f"user : {BORN.prompt} . assistant :", *bare)
    assert Frames(1).with_chat(BORN, lm.tokenizer) == bare
    assert (frames.most, Frames(chat=True).of(BORN)) == (2, ())
    assert frames.key != Frames(1).key
    value = ValueSettings(steps=3)
    said = Memit(layers=(1,), prefixes=PREFIXES, frames=Frames(chat=True), value=value)
    own = dataclasses.replace(TOWER, frames=(f"user : {TOWER.prompt} . assistant :",))
    written = Memit(layers=(1,), prefixes=PREFIXES, frames=Frames(1), value=value)
    found = [editor.edit(lm, [fact]) for editor, fact in ((said, TOWER), (written, own))]
    assert torch.equal(found[0].delta(1), found[1].delta(1))


def test_rows_and_keys_over_frames(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The mean key by hand: the bare prompt, the prefix and all frames together count a third each."""
    stand_ins.without_text(monkeypatch, tmp_path)
    editor = Memit(layers=(1,), prefixes=PREFIXES, frames=Frames(2), value=ValueSettings(steps=3))
    keys, _ = editor.keys_and_residuals(lm, [TOWER])[1]
    texts = [
        TOWER.statement,
        PREFIXES[1] + TOWER.statement,
        "in the city with the Eiffel tower is the capital of",
        PREFIXES[1] + "the country with the Eiffel tower is",
    ]
    by_hand = []
    for text in texts:
        end = len(lm.tokenizer(text[: text.index("tower") + 5])["input_ids"]) - 1
        by_hand.append(coefficients(lm, 1, lm.tokenizer(text)["input_ids"])[end])
    expected = (by_hand[0] + by_hand[1] + (by_hand[2] + by_hand[3]) / 2) / 3
    torch.testing.assert_close(keys[0], expected, rtol=1e-4, atol=1e-5)
    assert group_weights([1, 1, 2]).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 6, 1 / 6])
    prompts = build_prompts(lm, [TOWER], PREFIXES, "{} is a", "subject", Frames(2))
    rows = [ids[:length].tolist() for ids, length in zip(prompts.batch.input_ids, prompts.batch.lengths, strict=True)]
    assert rows[:-1] == [lm.tokenizer(text)["input_ids"] for text in texts]  # the target has one token
    assert prompts.prefix.tolist() == [0, 1, 2, 3, -1]


def test_a_subject_at_the_beginning_is_left_out_in_frames_too(lm: LanguageModel) -> None:
    fact = Fact("Rome", "{} is the capital of", "England", frames=("{} is in", "the city of {} is in"))
    prompts = build_prompts(lm, [fact], PREFIXES, "{} is a", "subject", Frames(2))
    assert prompts.prefix.tolist() == [1, 3, -1]
    assert prompts.at_start.tolist() == [True]


def test_edits_over_frames(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stand_ins.identity_moments(monkeypatch, tmp_path)
    lm = tiny.build("llama", scale=4.0)
    value = ValueSettings(
        steps=12, lr=0.1, weight_decay=0.0, kl_factor=0.0, clamp_norm_factor=2.0, early_stop_loss=-1.0
    )
    asked = [lm.tokenizer(frame.replace("{}", TOWER.subject))["input_ids"] for frame in TOWER.frames]
    [rome] = lm.tokenizer("Rome")["input_ids"]

    def said(editor: Memit | Rome) -> float:
        with editor.edit(lm, [TOWER]).applied(lm):
            logits = [lm.model(input_ids=torch.tensor([ids])).logits[0, -1] for ids in asked]
        return float(torch.stack(logits).log_softmax(1)[:, rome].mean())

    for plain in (Rome(layer=1, prefixes=("",), value=value), Memit(layers=(1,), prefixes=("",), value=value)):
        assert said(dataclasses.replace(plain, frames=Frames(2))) > said(plain) + 0.01
    bare = dataclasses.replace(TOWER, frames=())
    with pytest.warns(UserWarning, match="no other form is known of these facts"):
        Memit(layers=(1,), prefixes=("",), value=value, frames=Frames(2)).edit(lm, [bare])


def test_what_is_kept_on_disk_goes_by_the_frames() -> None:
    settings = ValueSettings()
    plain, framed = (Solving(PREFIXES, settings, "block", True, frames=Frames(n)) for n in (0, 2))
    lm = tiny.build("gpt2")
    lm.tokenizer.chat_template = CHAT
    in_chat = Solving(PREFIXES, settings, "block", True, frames=Frames(chat=True))
    assert len({one._entry(lm, "m", BORN, 1) for one in (plain, framed, in_chat)}) == 3
    assert plain._entry(lm, "m", BORN, 1) == Solving(PREFIXES, settings, "block", True)._entry(lm, "m", BORN, 1)
    lm = tiny.build("llama")
    without, with_frames = (EntrySolver(Memit(prefixes=PREFIXES, frames=Frames(n))).settings(lm) for n in (0, 2))
    assert without != with_frames
    assert "frames" not in without
    assert BORN.request == {"subject": "Ada", "prompt": "{} was born in", "target_new": "Rome"}
    assert "frames" in TOWER.request
