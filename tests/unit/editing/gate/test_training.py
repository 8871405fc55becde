import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from edits_parts import random_update
from program import call
from torch import Tensor
from torch.nn import functional

from corrigenda import ContextEdit, Fact, LanguageModel, Origin
from corrigenda.data.relations import relations, relations_to_learn, subjects
from corrigenda.edits.gate import Gate, states_of
from corrigenda.errors import SettingsError, WrongModelError
from editing.gate import training
from editing.gate.kept import gate_of, kept_gate
from editing.gate.questions import AskedPrompt, held_out_questions, opened, questions_of, shipped_questions
from editing.gate.training import SHARES, Batches, GateTraining, Scores, info_nce, kept_states, whitened


def test_every_form_is_asked_about_several_names_of_its_kind() -> None:
    train = shipped_questions(3, seed=0)
    forms = [(one.kind, form) for one in relations_to_learn() for form in one.forms]
    asked = [form for kind, form in forms for _ in range(min(3, len(subjects()[kind]) - 1))]
    assert [one.form for one in train] == asked
    shared = defaultdict(set)
    for one in train:
        assert one.prompt == one.form.replace("{}", one.subject)
        shared[one.subject].add(one.relation)
    assert {kind for kind, names in subjects().items() if max(len(shared[name]) for name in names) == 1} == set()


def test_forms_and_names_by_which_a_gate_is_tried_are_new_to_it() -> None:
    train, aside = shipped_questions(3, seed=0), held_out_questions()
    assert [one.form for one in aside] == [form for one in relations() for form in one.forms]
    for of in ("form", "subject"):
        assert not {getattr(one, of) for one in train} & {getattr(one, of) for one in aside}, of
    assert {one.subject for one in held_out_questions(0)} == {names[0] for names in subjects().values()}


def test_a_facts_prompts_are_of_the_relation_that_is_known_or_of_its_own() -> None:
    known = Fact("Ann", "{} was born in", "Rome", "Paris", relation="P19", paraphrases=("It rained. Ann is from",))
    own = Fact("Ann", "Whom does {} love?", "Bob")
    found = list(questions_of([known, own]))
    assert [one.relation for one in found] == ["P19", "P19", "Whom does {} love?"]
    assert [one.form for one in found] == ["{} was born in", "{} is from", "Whom does {} love?"]
    assert [one.prompt for one in found] == ["Ann was born in", "It rained. Ann is from", "Whom does Ann love?"]


def test_facts_without_a_relation_are_of_one_where_a_chain_of_them_joins_their_forms() -> None:
    ann = Fact("Ann", "Whom does {} love?", "Bob", paraphrases=("It rained. Who is loved by Ann?",))
    eve = Fact("Eve", "Who is {}'s love?", "Tom", paraphrases=("Who is loved by Eve?",))
    zoe = Fact("Zoe", "Where does {} live?", "Rome")
    found = [one.relation for one in questions_of([ann, zoe, eve])]
    assert found[0] == found[1] == found[3] == found[4] != found[2]


def test_half_of_the_prompts_behind_an_opening_are_in_a_conversation() -> None:
    """As many prompts, and each the end of what is read; without a template all are bare."""
    lm = tiny.build("llama")
    asked = [AskedPrompt("r", "{} is in", "Rome", "Rome is in the city")] * 200
    own = lm.tokens("Rome is in the city")[-4:]
    for template, turns in (("{% for m in messages %}red {{ m['content'] }} blue {% endfor %}", True), (None, False)):
        lm.tokenizer.chat_template = template
        found = opened(lm, asked, 0)
        assert all(tokens[-4:] == own and len(tokens) > len(own) for tokens in found)
        begun = sum(tokens[: len(lm.tokens("red"))] == lm.tokens("red") for tokens in found)
        assert 80 < begun < 120 if turns else begun == 0
        assert len({len(tokens) for tokens in found}) > 2  # several openings
    assert opened(lm, asked, 0) == found
    assert opened(lm, asked, 1) != found


def test_the_loss_by_brute_force() -> None:
    draw = torch.Generator().manual_seed(0)
    z = functional.normalize(torch.randn(6, 4, generator=draw, dtype=torch.float64), dim=1)
    labels, forms = [0, 0, 0, 1, 1, 2], [0, 1, 2, 2, 3, 4]  # 2 and 3 are the same words under two relations
    total, counted = 0.0, 0
    for i in range(6):
        against = [a for a in range(6) if a != i and not (labels[a] != labels[i] and forms[a] == forms[i])]
        positives = [a for a in against if labels[a] == labels[i]]
        if not positives:
            continue
        scale = sum(math.exp(float(z[i] @ z[a]) / 0.5) for a in against)
        total -= sum(math.log(math.exp(float(z[i] @ z[p]) / 0.5) / scale) for p in positives) / len(positives)
        counted += 1
    assert counted == 5
    found = info_nce(z, torch.tensor(labels), torch.tensor(forms), 0.5)
    assert float(found) == pytest.approx(total / 5)


def test_whitened_states_have_unit_variance_in_the_leading_directions() -> None:
    draw = torch.Generator().manual_seed(0)
    states = torch.randn(4000, 2, 5, generator=draw) * torch.tensor([9.0, 3.0, 1.0, 0.5, 0.1]) + 7
    mean, whitening = whitened(states, 3)
    for layer in range(2):
        z = (states[:, layer] - mean[layer]) @ whitening[layer]
        torch.testing.assert_close(z.T @ z / len(z), torch.eye(3), atol=0.02, rtol=0)  # but for SMALLEST
        assert whitening[layer].abs().argmax(0).tolist() == [0, 1, 2]


def test_whitened_states_are_the_same_by_any_number_of_threads() -> None:
    """SERAC's networks hang on a gate's bits, and one that is not trained is whitened anew in each process."""
    states = torch.randn(300, 1, 256, generator=torch.Generator().manual_seed(0))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(whitened(states, 64)[1])
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def questions(relations: int, forms: int, names: int) -> list[AskedPrompt]:
    return [
        AskedPrompt(f"r{r}", f"r{r} f{f}", f"s{s}", f"r{r} f{f} s{s}")
        for r in range(relations)
        for f in range(forms)
        for s in range(names)
    ]


def test_pairs_and_the_threshold_by_hand() -> None:
    asked = [AskedPrompt("a", form, name, "") for form, name in (("x", "s"), ("y", "s"), ("z", "t"))]
    asked += [AskedPrompt("b", form, name, "") for form, name in (("x", "s"), ("u", "s"))]
    z = functional.normalize(torch.tensor([[1.0, 0], [1, 1], [1, 0], [1, 0], [0, 1]]), dim=1)
    scores = Scores.of(z, asked)
    half = math.sqrt(0.5)
    assert scores.same.tolist() == pytest.approx([half, 0])  # x y of a; x u of b; t is another subject
    assert scores.other.tolist() == pytest.approx([0, half, half])  # not x of a and x of b: the same words
    many = Scores(torch.tensor([0.5, 0.985, 0.995]), torch.arange(100) / 100)
    assert many.threshold(0.01) == pytest.approx(0.98)  # one of the hundred lies above
    assert many.shares() == pytest.approx({"1%": 2 / 3, "5%": 2 / 3, "10%": 2 / 3})


def made_states(asked: list[AskedPrompt]) -> Tensor:
    """States in which subject, relation and form lie in directions of their own, the relation the quietest."""
    draw = torch.Generator().manual_seed(1)
    parts: dict[str, Tensor] = {}

    def of(name: str) -> Tensor:
        return parts.setdefault(name, torch.randn(300, generator=draw))

    return torch.stack([3 * of(one.subject) + of(one.relation) + 3 * of(one.form) for one in asked])


def recall(z: Tensor, asked: list[AskedPrompt]) -> float:
    return Scores.of(functional.normalize(z, dim=1), asked).shares()[f"{SHARES[0]:.0%}"]


def test_it_learns_the_question_and_not_the_subject() -> None:
    asked = questions(12, 6, 8)
    x = made_states(asked)
    known = [n for n, one in enumerate(asked) if one.subject not in ("s6", "s7")]
    tried = [n for n, one in enumerate(asked) if one.subject in ("s6", "s7")]
    a, b = GateTraining(steps=150, hidden=64, width=16).learned(x[known], [asked[n] for n in known], (), "test")
    others = [asked[n] for n in tried]
    assert recall(x[tried], others) < 0.5
    assert recall(functional.gelu(x[tried] @ a) @ b, others) > 0.9


def test_batches_have_several_forms_of_each_relation_once_and_half_are_of_the_facts() -> None:
    asked = [*questions(5, 6, 3), AskedPrompt("lonely", "f", "s", "p")]
    rows, labels = Batches(asked, {"r4", "lonely"}, GateTraining(relations=4, forms=3)).draw()
    drawn = [asked[row] for row in rows.tolist()]
    assert labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert len({one.form for one in drawn}) == 12
    assert all(len({drawn[n].relation for n in range(k, k + 3)}) == 1 for k in (0, 3, 6, 9))
    assert drawn[0].relation == "r4"
    two = [Batches(asked, {"r1", "r2", "r3"}, GateTraining(relations=4)).draw() for _ in range(3)]
    for rows, _ in two:
        assert len({asked[row].relation for row in rows.tolist()} & {"r1", "r2", "r3"}) == 2


lm = pytest.fixture(tiny.llama, scope="module")


pytestmark = pytest.mark.usefixtures("own_cache")


def test_states_are_read_once(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "PIECE", 2)
    prompts = [lm.tokens(prompt) for prompt in ("Rome", "the city of Paris is", "the river", "Berlin")]
    found = kept_states(lm, (1, 2), prompts)
    gate = Gate(lm.name, lm.fingerprint, (1, 2), torch.zeros(2 * found.shape[2]), (torch.eye(2 * found.shape[2]),), 0)
    alone = torch.cat([gate.of_prompts(lm, lm.batch([prompt])) for prompt in prompts])
    torch.testing.assert_close(gate.embed(found), alone, atol=1e-5, rtol=0)

    def never(*_: object) -> Tensor:
        raise AssertionError("the model runs again")

    monkeypatch.setattr(training, "states_of", never)
    assert torch.equal(kept_states(lm, (1, 2), prompts), found)
    with pytest.raises(AssertionError, match="runs again"):
        kept_states(lm, (1, 3), prompts)


def test_states_are_the_unedited_models(lm: LanguageModel) -> None:
    prompts = [lm.tokens(prompt) for prompt in ("Rome", "the river")]
    with random_update(lm, 1.0, layer=0).applied(lm):
        found = kept_states(lm, (1, 2), prompts)
        assert len(lm.edits) == 1
    plain = torch.cat([states_of(lm, (1, 2), lm.batch([prompt])) for prompt in prompts])
    torch.testing.assert_close(found, plain, atol=1e-5, rtol=0)


SMALL: dict[str, Any] = {"names": 1, "steps": 3, "components": 8, "hidden": 8, "width": 4, "relations": 20}


def test_a_models_gate_is_the_one_that_was_trained_or_an_untrained_one(
    lm: LanguageModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "editing.gate.kept")
    with pytest.warns(UserWarning, match=f"{lm.name} has no trained gate"):
        plain = gate_of(lm)
    assert (len(plain.maps), plain.made["prompts"]) == (1, len(held_out_questions()))
    context = ContextEdit(Origin(lm.name, lm.fingerprint, "test"), "red and blue . ")
    with context.applied(lm), pytest.warns(UserWarning, match="no trained gate"):
        beside = gate_of(lm)
    assert torch.equal(beside.maps[0], plain.maps[0])
    assert beside.said() == plain.said()
    trained = GateTraining(**SMALL).gate(lm)
    assert set(trained.made["recall"]) == {"1%", "5%", "10%"}
    assert trained.width == 4
    trained.save(kept_gate(lm))
    assert caplog.messages == []
    assert gate_of(lm).said() == trained.said()
    assert caplog.messages == [f"{lm.name}: the gate that was trained here is taken, {kept_gate(lm)}"]
    again = GateTraining(**SMALL).gate(lm)
    assert all(torch.equal(one, other) for one, other in zip(again.maps, trained.maps, strict=True))


def test_the_command_trains_on_facts_too_and_writes_the_file(lm: LanguageModel, tmp_path: Path) -> None:
    lm.save_pretrained(tmp_path / "model")
    record = {"subject": "Ann", "prompt": "{} loves", "target_new": "Bob", "paraphrases": ["The love of Ann is"]}
    (tmp_path / "facts.json").write_text(json.dumps([record | {"subject": "Eve", "paraphrases": []}, record]))
    settings = [f"job.{name}={value}" for name, value in SMALL.items()]
    model = ["model=own", f"model.name={tmp_path / 'model'}"]
    said = call(tmp_path, "gate", *model, *settings, "job.facts=['facts.json[1:]']", "job.to=gate.safetensors")
    gate = Gate.load(tmp_path / "gate.safetensors")
    assert gate.made["facts"] == 1
    assert gate.made["prompts"] == 2 * (len(shipped_questions(1, 0)) + 2)
    assert f"threshold {gate.threshold:.3f}" in said
    assert "none of the forms and names was seen in training" in said
    said = call(tmp_path, "gate", *model, "job.maps=gate.safetensors", "job.false_hits=0.5", "job.to=again.safetensors")
    again = Gate.load(tmp_path / "again.safetensors")
    assert all(torch.equal(one, other) for one, other in zip(again.maps, gate.maps, strict=True))
    assert again.threshold < gate.threshold


def test_a_gate_serves_the_same_model_in_another_precision(lm: LanguageModel) -> None:
    gate = GateTraining(**SMALL).gate(lm)
    half = tiny.build("llama")
    half.model.to(torch.bfloat16)
    half = LanguageModel(half.model, half.tokenizer, half.name)
    found = GateTraining(**SMALL).tried(half, gate)
    assert (found.fingerprint, found.model) == (half.fingerprint, gate.model)
    assert found.fingerprint != gate.fingerprint
    assert found.threshold == pytest.approx(gate.threshold, abs=0.05)
    assert found.threshold != gate.threshold
    assert all(torch.equal(one, other) for one, other in zip(found.maps, gate.maps, strict=True))
    half.name = "another"
    with pytest.raises(WrongModelError, match="the gate is tiny-llama's, and not one of another in another precision"):
        GateTraining(**SMALL).tried(half, gate)


def test_settings_that_cannot_be() -> None:
    with pytest.raises(SettingsError, match=r"layers=\[\]"):
        GateTraining(layers=())
