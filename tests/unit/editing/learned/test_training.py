import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from editors_parts import FACTS, bits, same_bits
from learned_parts import LAYERS, TRAINED_ON, assert_same, build, cut_after, drawn
from torch import Tensor

from corrigenda import LanguageModel
from corrigenda.errors import WrongModelError
from corrigenda.forward.recording import forward_logits
from editing.learned import training
from editing.learned.hypernetwork import kept_network
from editing.learned.learned import Learned
from editing.learned.malmen import Malmen
from editing.learned.material import Material
from editing.learned.mend import Mend
from editing.learned.training import HypernetworkTraining

pytestmark = [pytest.mark.filterwarnings("ignore:.*the edit disturbs"), pytest.mark.usefixtures("own_cache")]
MEND, MALMEN = (editor(layers=LAYERS, refuse_norm=1e9) for editor in (Mend, Malmen))
SMALL: dict[str, Any] = {"steps": 6, "every": 2, "rank": 4, "edits": 2, "lr": 1e-3, "step": 0.1}


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_what_is_trained_on_is_what_the_edits_do(family: str) -> None:
    """Rows with updates of their own: each is what the model says with that fact's edit applied."""
    lm = build(family)
    trained = drawn(lm, MEND)
    trained.save(kept_network(lm, "mend"))
    material = Material.of(lm, MEND, TRAINED_ON, most_kept=2, seed=0)
    rows = [material.kept[0][1], material.asked[1][0], material.asked[2][0]]
    with torch.no_grad():
        updates = MEND.updates(trained.network, material.tokens([0, 1, 2]), torch.arange(3))
        found, owner = material.upper.logits(rows, updates, torch.arange(3), behind=True)
        plain, _ = material.upper.logits(rows, {}, torch.arange(3), behind=True)
    for number, (fact, row) in enumerate(zip(TRAINED_ON, rows, strict=False)):
        batch = lm.batch([row.ids.tolist()])
        assert not torch.allclose(found[owner == number], plain[owner == number], atol=1e-2)
        torch.testing.assert_close(
            plain[owner == number], forward_logits(lm, batch)[0, row.prompt - 1 :], atol=1e-4, rtol=1e-4
        )
        with MEND.edit(lm, [fact]).applied(lm):
            expected = forward_logits(lm, batch)[0, row.prompt - 1 :]
        torch.testing.assert_close(found[owner == number], expected, atol=1e-4, rtol=1e-4)


def test_a_subject_is_trained_on_or_held_out_in_every_spelling() -> None:
    facts = [
        dataclasses.replace(TRAINED_ON[0], subject=subject, id=subject, paraphrases=())
        for subject in ("Thomas' tower", "Thomas’ tower", "Ben")
    ]
    for seed in range(3):
        asked = HypernetworkTraining(**SMALL, held_out=0.5, seed=seed)
        held = training._Training(asked, "mend", MEND.task(build(), facts, asked))._held
        assert held in ([0, 1], [2])


def test_the_losses_by_hand() -> None:
    lm = build()
    asked = HypernetworkTraining(**SMALL, held_out=0.5, edit_weight=0.3)
    trained = asked.network(lm, MEND, TRAINED_ON)
    dataclasses.replace(trained, facts=()).save(kept_network(lm, "mend"))
    best = min(trained.made["curve"], key=lambda point: point["loss"])
    material = Material.of(lm, MEND, TRAINED_ON, asked.most_kept, asked.seed)
    held = training._Training(asked, "mend", MEND.task(lm, TRAINED_ON, asked))._held
    edits, kls = [], []
    for number in held:
        asked_row, kept_row = material.asked[number][0], material.kept[number][0]
        before = said(lm, kept_row, behind=True)
        edit = MEND.edit(lm, [TRAINED_ON[number]])
        with edit.applied(lm):
            targets = asked_row.ids[asked_row.prompt :]
            edits.append(-said(lm, asked_row).gather(1, targets[:, None]).mean())
            after = said(lm, kept_row, behind=True)
        kls.append((before.exp() * (before - after)).sum(1).mean())
    assert best["edit"] == pytest.approx(float(sum(edits) / len(edits)), rel=1e-3)
    assert best["kl"] == pytest.approx(float(sum(kls) / len(kls)), rel=1e-2)
    assert best["loss"] == pytest.approx(0.3 * best["edit"] + best["kl"])


def said(lm: LanguageModel, row: Any, behind: bool = False) -> Tensor:
    """Log-probabilities after a row's prompt and each token of its answer, but the last unless `behind`."""
    found = forward_logits(lm, lm.batch([row.ids.tolist()]))[0].log_softmax(-1)
    return found[row.prompt - 1 : len(row.ids) if behind else -1].detach()


def test_a_network_knows_whether_the_end_token_was_a_part_of_its_targets() -> None:
    lm, ended = build(), dataclasses.replace(MEND, end_token=False)
    trained = HypernetworkTraining(**SMALL | {"steps": 0}).network(lm, ended, TRAINED_ON)
    dataclasses.replace(trained, facts=()).save(kept_network(lm, "mend"))
    ended.edit(lm, FACTS[:1])
    with pytest.raises(WrongModelError, match="trained with end_token=false, and is asked for with end_token=true: "):
        MEND.edit(lm, FACTS[:1])


@pytest.mark.parametrize("editor", [MEND, MALMEN], ids=lambda editor: editor.name)
def test_the_loss_falls_on_what_it_is_trained_on(editor: Learned) -> None:
    lm = build()
    asked = HypernetworkTraining(
        steps=40, every=20, rank=8, edits=1, facts=3, lr=1e-2, rate_lr=0.1, edit_weight=1.0, step=0.1
    )
    before = bits(lm)
    curve = asked.network(lm, editor, TRAINED_ON).made["curve"]
    assert curve[2]["training_loss"] < 0.9 * curve[1]["training_loss"]
    assert same_bits(lm, before)


def test_cut_short_it_goes_on_to_the_same_bits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lm = build()
    whole = HypernetworkTraining(**SMALL).network(lm, MEND, TRAINED_ON)
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "another"))
    learned = cut_after(5, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        HypernetworkTraining(**SMALL).network(lm, MEND, TRAINED_ON)
    learned.insert(0, -1)  # from here on it is never cut
    again = HypernetworkTraining(**SMALL).network(lm, MEND, TRAINED_ON)
    assert learned == [-1, 0, 1, 2, 3, 4, 4, 5]  # from the state of step 4, the last that was kept
    assert_same(again, whole)
    more = HypernetworkTraining(**SMALL | {"steps": 8}).network(lm, MEND, TRAINED_ON)
    assert learned[8:] == [6, 7]
    assert [point["step"] for point in more.made["curve"]] == [0, 2, 4, 6, 8]
    HypernetworkTraining(**SMALL | {"lr": 2e-3}).network(lm, MEND, TRAINED_ON)
    assert learned[10:] == list(range(6))  # another training


def test_facts_that_cannot_be_trained_on() -> None:
    lm, asked = build(), HypernetworkTraining(**SMALL)
    with pytest.raises(ValueError, match="none of the 3 facts can be trained on: each needs prompts that shall stay"):
        asked.network(lm, MEND, FACTS)
    with pytest.raises(ValueError, match="facts about two subjects at least"):
        asked.network(lm, MEND, TRAINED_ON[:1])
    long = dataclasses.replace(TRAINED_ON[0], prompt="{} is" + " red green" * 40, id="long", subject="Rome")
    with pytest.warns(UserWarning, match="2 of 4 facts are left out of the training"):
        asked.network(lm, MEND, [*TRAINED_ON[:2], FACTS[2], long])
    with (
        dataclasses.replace(MEND, untrained=True).edit(lm, FACTS[:1]).applied(lm),
        pytest.raises(ValueError, match="revert its edits first"),
    ):
        asked.network(lm, MEND, TRAINED_ON)
