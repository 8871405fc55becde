import dataclasses
import random
from pathlib import Path

import pytest
import tiny
import torch
from made_entries import Folding

from corrigenda import EditRefusedError, Fact, KnowledgeBase, LanguageModel, LowRankEdit
from corrigenda.errors import SettingsError
from corrigenda.moments.text import Text
from editing import AfterTreatments, AlphaEdit, Emmet, FineTune, Memit, Rome, Suit, ValueSettings
from editing.knowledge.how import how_named, how_of, ways
from editing.locate_then_edit.memit import SCALE_FACTS
from editing.shared.frames import Frames

SUBJECTS = ["Danielle Darrieux", "Thomas", "Big Ben", "Eiffel", "tower", "river"]
FACTS = [
    Fact(f"the {subject}", "{} is in the city of", ["Rome", "London"][number % 2], id=f"fact-{number}")
    for number, subject in enumerate(SUBJECTS)
]
SMALL = {
    "prefixes": ("", "one two ."),
    "value": ValueSettings(steps=6),
    "text": Text(tokens=640, length=16),
    "tokens_per_coefficient": 0,
    "refuse_norm": 1e9,
}
ONE_LAYER = SMALL | {"layers": (1,), "site": "ffn"}
EDITORS = [Memit(**ONE_LAYER), AlphaEdit(**ONE_LAYER, energy=0.5), Emmet(**SMALL), Memit(**SMALL, layers=(1, 2))]


lm = pytest.fixture(tiny.llama, scope="module")


def bits(edit: object) -> dict[int, bytes]:
    assert isinstance(edit, LowRankEdit)
    return {layer: edit.delta(layer).numpy().tobytes() for layer in edit.changed}


def test_the_ways_have_names() -> None:
    assert set(ways()) == {"memit", "suit", "alphaedit", "emmet", "rome", "scoped", "attached"}
    assert how_named("alphaedit").compiler.editor == AlphaEdit()  # type: ignore[attr-defined]
    with pytest.raises(SettingsError, match=r"how=memitt: .*did you mean memit\?.*The ways are alphaedit, "):
        how_named("memitt")
    with pytest.raises(SettingsError, match="editor=memit_blue"):
        how_named("memit_blue")
    with pytest.raises(SettingsError, match="editor=finetune cannot keep a list"):
        how_of(FineTune())
    with pytest.raises(SettingsError, match="norm_anchor"):
        how_of(Memit(after=AfterTreatments(norm_anchor=True)))
    with pytest.raises(SettingsError, match="rule=replay"):
        how_of(Memit(rule="replay"))
    with pytest.raises(SettingsError, match=r"memit_rounds: with rounds=3 .*; take rounds=1"):
        how_of(Memit(name="memit_rounds", rounds=3))
    for of_edits in (
        *({"position": "relation"}, {"ridge": 1.0}, {"homogeneous_keys": False}, {"bare_agreement": 0.5}),
        {"flag_norm": 0.1},
    ):
        with pytest.raises(SettingsError, match=f"{next(iter(of_edits))}={next(iter(of_edits.values()))} is for edits"):
            how_of(Rome(**of_edits))  # type: ignore[arg-type]
    assert how_of(Rome(bare_agreement=0.0, tokens_per_coefficient=3)).solver.editor.tokens_per_coefficient == 3  # type: ignore[union-attr]


@pytest.mark.parametrize("editor", EDITORS, ids=lambda editor: f"{editor.name}-{len(editor.layers)}")
def test_the_order_leaves_no_trace(lm: LanguageModel, tmp_path: Path, editor: Emmet) -> None:
    way = how_of(editor)
    before = [parameter.clone() for parameter in lm.model.parameters()]
    with KnowledgeBase.open(tmp_path / "one.kb") as one, KnowledgeBase.open(tmp_path / "other.kb") as other:
        one.insert(FACTS[:4])
        assert one.solve(lm, way.solver) == 4
        for fact in random.Random(3).sample(FACTS, len(FACTS)):
            other.insert([fact], lm, way.solver)
        for fact in FACTS[4:]:
            other.delete(fact.id)
        edit = one.compile(lm, way.compiler)
        assert bits(edit) == bits(other.compile(lm, way.compiler))
    assert any(map(any, (bits(edit)).values()))
    assert all(torch.equal(*pair) for pair in zip(before, lm.model.parameters(), strict=True))


def test_what_is_folded_holds(lm: LanguageModel, tmp_path: Path) -> None:
    way = how_of(dataclasses.replace(EDITORS[2], eps=0.0))
    with KnowledgeBase.open(tmp_path / "facts.kb") as kb:
        kb.insert(FACTS, lm, way.solver)
        edit, entries = kb.compile(lm, way.compiler), kb.entries(lm, FACTS)
    values = lm.memory(entries[0].layer).values + edit.delta(entries[0].layer)
    for entry in entries:
        error = (entry.key @ values - entry.value).norm() / entry.value.norm()
        assert float(error) < 1e-3


def test_memit_is_the_algebra_of_the_base(lm: LanguageModel, tmp_path: Path) -> None:
    """V = A^-1 B with lambda as MEMIT takes it, entry by entry."""
    editor = dataclasses.replace(EDITORS[0], ridge=0.0)
    way = how_of(editor)
    with KnowledgeBase.open(tmp_path / "facts.kb") as kb:
        kb.insert(FACTS, lm, way.solver)
        edit, entries = kb.compile(lm, way.compiler), kb.entries(lm, FACTS)
        moment = editor.moments(lm)[1].matrix
        energy = sum(float(entry.key.double().square().sum()) for entry in entries) / len(entries)
        assert editor.ratio is not None
        folded = kb.compile(lm, Folding({1: moment}, editor.ratio * SCALE_FACTS * energy / float(moment.trace())))
    assert torch.allclose(edit.delta(1), folded.delta(1), rtol=1e-3, atol=1e-5 * float(folded.delta(1).norm()))


@pytest.mark.parametrize(
    "editor",
    [
        Memit(**SMALL, layers=(1, 2)),
        Memit(**SMALL, layers=(0, 1, 2), ends_only=True),
        Memit(**SMALL, layers=(0, 1, 2), rule="root"),
        AlphaEdit(**SMALL, layers=(1, 2), energy=0.5),
    ],
    ids=["memit", "ends", "root", "alphaedit"],
)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_several_layers_are_written_as_the_editor_writes_them(family: str, tmp_path: Path, editor: Memit) -> None:
    """Each with what is left when those below are written: the edit of the list is the editor's own."""
    lm = tiny.build(family)
    way = how_of(editor)
    with KnowledgeBase.open(tmp_path / "facts.kb") as kb:
        kb.insert(FACTS, lm, way.solver)
        edit = kb.compile(lm, way.compiler)
    own = editor.edit(lm, FACTS)
    assert set(edit.changed) == set(own.changed)
    for layer in own.changed:
        assert torch.allclose(edit.delta(layer), own.delta(layer), rtol=0, atol=2e-3 * float(own.delta(layer).norm()))


def test_an_entry_is_what_the_editor_solves(lm: LanguageModel) -> None:
    [entry] = how_of(EDITORS[2]).solver(lm, FACTS[:1])
    edit = EDITORS[2].edit(lm, FACTS[:1])
    after = entry.key @ (lm.memory(entry.layer).values + edit.delta(entry.layer))
    wanted = entry.value - entry.key @ lm.memory(entry.layer).values
    assert float((after - entry.value).norm() / wanted.norm()) < 0.02  # eps = 0.01 leaves one hundredth


def test_rome_is_emmet_with_equality() -> None:
    way = how_of(Rome(layer=2, value=ValueSettings(steps=3)))
    assert isinstance(way.solver.editor, Emmet)
    assert (way.name, way.solver.editor.eps, way.solver.editor.layers) == ("rome", 0.0, (2,))
    assert way.solver.editor.value.steps == 3


def test_facts_alike_are_named(lm: LanguageModel, tmp_path: Path) -> None:
    way = how_of(EDITORS[2])
    twice = [FACTS[0], dataclasses.replace(FACTS[0], prompt="{} is in the country of", target_new="Italy", id="same")]
    with KnowledgeBase.open(tmp_path / "facts.kb") as kb:
        kb.insert([*twice, FACTS[1]], lm, way.solver)
        with pytest.warns(UserWarning, match=r"nearly the same key.*'fact-0'.*'same'"):
            edit = kb.compile(lm, way.compiler)
    report = {fact.id: one.get("alike") for fact, one in zip(edit.origin.facts, edit.origin.report, strict=True)}
    assert report == {"fact-0": ["same"], "same": ["fact-0"], "fact-1": []}


def test_entries_come_from_no_disk(lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path))
    how_of(dataclasses.replace(EDITORS[2], keep_targets=True)).solver(lm, [FACTS[0]])
    assert not (tmp_path / "targets").exists()


def test_an_erasure_is_refused(lm: LanguageModel) -> None:
    with pytest.raises(EditRefusedError, match="'gone' asks to erase"):
        how_of(EDITORS[2]).solver(lm, [Fact("Thomas", "{} is in", None, "Rome", id="gone")])


def test_settings_of_the_solver_alone_count(lm: LanguageModel) -> None:
    said = [how_of(editor).solver.settings(lm) for editor in EDITORS[:2]]
    assert said[0] == said[1]
    other = dataclasses.replace(EDITORS[0], value=ValueSettings(steps=7))
    assert how_of(other).solver.settings(lm) != said[0]
    kept = [how_of(Suit(layers=(1,), prefixes=("",), energy=energy)).solver.settings(lm) for energy in (0.4, 0.6)]
    assert kept[0] != kept[1]  # of its keys a part is taken away
    in_chats = how_of(dataclasses.replace(EDITORS[0], frames=Frames(chat=True))).solver
    kept = []
    for template in ("{{ messages[0].content }} :", "user : {{ messages[0].content }} :"):
        lm.tokenizer.chat_template = template
        kept.append(in_chats.settings(lm))
    lm.tokenizer.chat_template = None
    assert kept[0] != kept[1]  # what of it is a prompt says the template
    knows_words = tiny.build_byte_level()
    sampled = dataclasses.replace(EDITORS[0], prefixes=None, prefix_lengths=((6, 2),), text=Text("self"))
    shipped = dataclasses.replace(sampled, text=Text("shipped"))
    assert how_of(sampled).solver.settings(knows_words) != how_of(shipped).solver.settings(knows_words)


def test_what_one_way_solved_another_solves_anew(lm: LanguageModel, tmp_path: Path) -> None:
    """Their entries are of other layers and targets; so are those of a model that puts something before a text."""
    first, second = how_of(EDITORS[2]), how_of(EDITORS[3])
    with KnowledgeBase.open(tmp_path / "facts.kb") as kb:
        kb.insert(FACTS[:2], lm, first.solver)
        with pytest.raises(ValueError, match=r"'fact-0' was solved with other settings .* than those of memit"):
            kb.compile(lm, second.compiler)
        assert kb.solve(lm, second.solver) == 2
        assert kb.compile(lm, second.compiler).changed.keys() == {1, 2}
        assert kb.solve(lm, second.solver) == 0
        begins = tiny.llama()
        begins.tokenizer.add_bos_token, begins.tokenizer.model_max_length = True, 17
        assert begins.fingerprint == lm.fingerprint
        assert begins.cache_key != lm.cache_key
        assert kb.solve(begins, second.solver) == 2


def test_a_wording_that_is_scored_now_is_no_frame_of_an_entry(lm: LanguageModel, tmp_path: Path) -> None:
    """Which other forms a fact has hangs on its relation and on its paraphrases."""
    way = how_of(dataclasses.replace(EDITORS[2], frames=Frames(2)))
    fact = Fact("Thomas", "{} speaks", "Rome", id="fact", relation="P103")
    with KnowledgeBase.open(tmp_path / "facts.kb") as kb:
        kb.insert([fact], lm, way.solver)
        for changed in (
            dataclasses.replace(fact, paraphrases=("The mother tongue of Thomas is",)),
            dataclasses.replace(fact, relation="P19"),
        ):
            kb.replace([changed])
            assert kb.unsolved(lm) == (changed,)


def test_a_base_finds_entries_by_settings_and_is_replaced(lm: LanguageModel, tmp_path: Path) -> None:
    way = how_of(EDITORS[2])
    settings = way.solver.settings(lm)
    with KnowledgeBase.open(tmp_path / "facts.kb") as kb:
        kb.insert(FACTS[:3], lm, way.solver)
        assert kb.solved_on == {lm.fingerprint}
        assert kb.unsolved(lm, settings) == ()
        assert len(kb.unsolved(lm, settings | {"seed": 1})) == 3
        changed = dataclasses.replace(FACTS[0], target_new="Paris")
        also = dataclasses.replace(FACTS[1], aliases=("Londra",))
        kb.replace([FACTS[4], also, changed])
        assert kb.facts == (FACTS[4], also, changed)
        assert kb.unsolved(lm) == (FACTS[4], changed)
        with pytest.raises(ValueError, match="'fact-4' is there already"):
            kb.replace([FACTS[4], FACTS[4]])
        assert kb.facts == (FACTS[4], also, changed)
