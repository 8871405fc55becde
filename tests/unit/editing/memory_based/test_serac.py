import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from editors_parts import FACTS, TOWER, bits, same_bits
from learned_parts import TRAINED_ON, assert_same, cut_after
from torch import Tensor

from corrigenda import EditRefusedError, LanguageModel, LowRankEdit, Origin
from corrigenda.edits.gate import Gate
from corrigenda.errors import WrongModelError
from corrigenda.forward.recording import forward_logits
from editing import HypernetworkTraining, Serac
from editing.learned import training
from editing.learned.counterfactual import CounterfactualNetwork
from editing.learned.hypernetwork import TrainedNetwork, kept_network

SMALL: dict[str, Any] = {"steps": 6, "every": 2, "edits": 2, "lr": 1e-2}
COSINE = 0.9


pytestmark = pytest.mark.usefixtures("own_cache")


lm = pytest.fixture(tiny.steep)


@pytest.fixture
def gate(lm: LanguageModel) -> Gate:
    return Gate(lm.name, lm.fingerprint, (1,), torch.full((tiny.WIDTH,), 0.1), (torch.eye(tiny.WIDTH),), COSINE)


@pytest.fixture
def editor(gate: Gate, tmp_path: Path) -> Serac:
    gate.save(tmp_path / "gate.safetensors")
    return Serac(layers=(1, 3), rank=2, template="{statement} {target} . ", gate=str(tmp_path / "gate.safetensors"))


def trained(lm: LanguageModel, editor: Serac, **settings: Any) -> TrainedNetwork[CounterfactualNetwork]:
    """A trained network, kept where the editor looks for it, as one that has seen none of the facts."""
    found = HypernetworkTraining(**SMALL | settings).network(lm, editor, TRAINED_ON)
    dataclasses.replace(found, facts=()).save(kept_network(lm, "serac"))
    return found


def said(lm: LanguageModel, ids: list[int], n: int) -> Tensor:
    """Probabilities of the next token after the last n tokens, (n, vocabulary)."""
    return forward_logits(lm, lm.batch([ids]))[0, len(ids) - n : len(ids)].softmax(-1).detach()


def test_the_losses_by_hand(lm: LanguageModel, gate: Gate, editor: Serac) -> None:
    """Of held-out facts: mixed as probabilities, the statement's row by the model with V + A B as its values."""
    asked = HypernetworkTraining(**SMALL, held_out=0.5, edit_weight=0.3)
    network = trained(lm, editor, held_out=0.5, edit_weight=0.3)
    point = min(network.made["curve"], key=lambda one: one["loss"])
    task = editor.task(lm, TRAINED_ON, asked)
    state = network.network.state_dict()
    scope = state["log_scale"].exp() * (torch.eye(tiny.WIDTH) + state["map"])
    factors = {layer: (state["left"][n], state["right"][n]) for n, layer in enumerate((1, 3))}
    assert float(state["right"].abs().max()) > 1e-3
    change = LowRankEdit.of(lm, Origin(lm.name, lm.fingerprint, "by hand"), factors)

    def vector(ids: list[int]) -> Tensor:
        return gate.of_prompts(lm, lm.batch([ids]))[0] @ scope

    def mixed(number: int, ids: list[int], prompt: int, n: int) -> tuple[Tensor, Tensor]:
        fact = TRAINED_ON[number]
        apart = vector(ids[:prompt]) - vector(lm.tokens(fact.statement))
        s = float((-apart.square().sum()).exp())
        base = said(lm, ids, n)
        with change.applied(lm):
            behind = said(lm, [*lm.tokens(f"{fact.statement} {fact.target_new} ."), *ids], n)
        return base, (1 - s) * base + s * behind

    edits, kls = [], []
    held = training._Training(asked, "serac", task)._held
    for number in held:
        asked_row, kept_row = task.asked[number][0].bare, task.kept[number][0].bare
        ids, n = asked_row.ids.tolist(), len(asked_row.ids) - asked_row.prompt
        _, after = mixed(number, ids, asked_row.prompt, n + 1)
        edits.append(float(-after[:-1].gather(1, asked_row.ids[-n:, None]).log().mean()))
        ids = kept_row.ids.tolist()
        before, after = mixed(number, ids, kept_row.prompt, len(ids) - kept_row.prompt + 1)
        kls.append(float((before * (before / after).log()).sum(1).mean()))
    assert len(held) == 2
    assert point["edit"] == pytest.approx(sum(edits) / len(edits), rel=1e-3)
    assert point["kl"] == pytest.approx(sum(kls) / len(kls), rel=1e-2)
    assert point["loss"] == pytest.approx(0.3 * point["edit"] + point["kl"])


def test_it_begins_where_retrieval_hears(lm: LanguageModel, editor: Serac) -> None:
    """s is a half at the gate's cosine; and nothing is added."""
    network = editor.task(lm, TRAINED_ON, HypernetworkTraining()).network([0])
    z = torch.zeros(tiny.WIDTH)
    z[0] = 1
    other = torch.zeros(tiny.WIDTH)
    other[:2] = torch.tensor([COSINE, (1 - COSINE**2) ** 0.5])
    apart = (z - other) @ network.scope.detach()
    assert float((-apart.square().sum()).exp()) == pytest.approx(0.5)
    assert not network.right.any()


def test_scope_and_answers_are_learned(lm: LanguageModel, editor: Serac) -> None:
    """On what it is trained on: both losses fall, and the model is left as it was."""
    before = bits(lm)
    asked = HypernetworkTraining(steps=25, every=25, edits=4, lr=1e-2, edit_weight=1.0)
    task = editor.task(lm, TRAINED_ON, asked)
    learning = training._Training(asked, "serac", task)

    def losses() -> tuple[float, float]:
        each = range(len(TRAINED_ON))
        with torch.no_grad():
            edit, kl = task.judged(learning._network, each, [0] * len(each), [0] * len(each))
        return float(edit), float(kl)

    first = losses()
    for _ in range(asked.steps):
        learning.learn()
    last = losses()
    assert last[0] + last[1] < 0.8 * (first[0] + first[1])
    assert same_bits(lm, before)


def test_cut_short_it_goes_on_to_the_same_bits(
    lm: LanguageModel, editor: Serac, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = trained(lm, editor)
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "another"))
    learned = cut_after(5, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        trained(lm, editor)
    learned.insert(0, -1)  # from here on it is never cut
    assert_same(trained(lm, editor), whole)
    assert learned == [-1, 0, 1, 2, 3, 4, 4, 5]
    trained(lm, dataclasses.replace(editor, template="{target} : {statement} . "))
    assert learned[8:] == list(range(6))  # another training


def test_its_edit_has_what_was_trained(lm: LanguageModel, editor: Serac, gate: Gate) -> None:
    network = trained(lm, editor).network
    edit = editor.edit(lm, FACTS[:2])
    assert edit.texts == tuple(f"{fact.statement} {fact.target_new} . " for fact in FACTS[:2])
    assert (edit.threshold, edit.layers) == (0.5, (1, 3))
    for name in ("scope", "left", "right"):
        assert torch.equal(getattr(edit, name), getattr(network, name))
    own = torch.cat([gate.of_prompts(lm, lm.batch([lm.tokens(fact.statement)])) for fact in FACTS[:2]])
    torch.testing.assert_close(edit.keys, own)
    with edit.applied(lm):
        assert lm.reads(TOWER.statement) == edit.texts[0] + TOWER.statement


def test_what_it_does_not_edit(lm: LanguageModel, editor: Serac, gate: Gate, tmp_path: Path) -> None:
    with pytest.raises(EditRefusedError, match="serac: no network was trained for tiny-llama: train one"):
        editor.edit(lm, FACTS[:1])
    found = HypernetworkTraining(**SMALL).network(lm, editor, TRAINED_ON)
    found.save(kept_network(lm, "serac"))
    with pytest.raises(EditRefusedError, match=r"'tower'.* is among the 4 facts that serac learns from"):
        editor.edit(lm, FACTS[:1])
    dataclasses.replace(found, facts=()).save(kept_network(lm, "serac"))
    dataclasses.replace(gate, maps=(2 * torch.eye(tiny.WIDTH),)).save(tmp_path / "other.safetensors")
    others: tuple[dict[str, Any], ...] = {"gate": str(tmp_path / "other.safetensors")}, {"encoder": "wordllama"}
    for other in others:
        with pytest.raises(WrongModelError, match="the network was trained with encoder=states and another gate"):
            dataclasses.replace(editor, **other).edit(lm, FACTS[:1])
    with pytest.raises(WrongModelError, match=r"trained to read template='.*', and is asked to read 'So \{statement\}"):
        dataclasses.replace(editor, template="So {statement} {target} ").edit(lm, FACTS[:1])
    with pytest.raises(ValueError, match="none of the 3 facts can be trained on"):
        editor.task(lm, FACTS, HypernetworkTraining())
