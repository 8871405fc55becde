import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from by_hooks import adding, coefficients
from editors_parts import FACTS, PLAYS, TEXT, TONGUE, TOWER
from torch import Tensor

from corrigenda import Edit, EditRefusedError, Fact, LanguageModel, MaskedMemoryEdit
from corrigenda.edits.routed import activated
from corrigenda.forward.recording import forward_logits
from corrigenda.prompts import encode_target
from editing import Memoir
from editing.shared.contexts import contexts
from editing.shared.training_rows import RowsForward

LAYER = 2


def memoir(**changes: Any) -> Memoir:
    settings = {"layer": LAYER, "active": 0.25, "prefix_lengths": ((3, 2),), "text": TEXT, "background": TEXT}
    return Memoir(**(settings | changes))


def features(lm: LanguageModel, ids: list[int]) -> Tensor:
    """The mean of what enters the values' module without the first token, in float64."""
    return coefficients(lm, LAYER, ids)[1:].double().mean(0)


def nll(lm: LanguageModel, text: str, fact: Fact, rows: Tensor, added: Tensor) -> Tensor:
    """-log P(new object) a token after a text, with (m * M) W added at all tokens but the first; differentiable."""
    ids, target = lm.tokens(text), encode_target(lm.tokenizer, text, str(fact.target_new))
    with adding(lm, LAYER, torch.zeros(lm.memory(LAYER).values.shape).index_add(0, rows, added)):
        logits = lm.model(input_ids=torch.tensor([ids + target[:-1]])).logits[0, len(ids) - 1 :]
    return -logits.log_softmax(-1)[range(len(target)), target].mean()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_fact_is_learned_by_the_rule(family: str) -> None:
    """Three steps of gradient descent with a clipped gradient, on the rows of the mask, by autograd of our own."""
    lm = tiny.build(family, scale=4.0)
    editor = memoir(steps=3, lr=0.7, clip=0.05, stop=0.0)
    edit = editor.edit(lm, [TONGUE])
    background = torch.stack([features(lm, ids) for ids in TEXT.sequences(lm)]).mean(0)
    torch.testing.assert_close(edit.background.double(), background, rtol=1e-4, atol=1e-6)
    order = (features(lm, lm.tokens(TONGUE.statement)) - background).abs().argsort(descending=True)
    k = round(0.25 * len(order))
    rows = edit.permutation[order[:k]].sort().values
    assert torch.equal(edit.masks[0].nonzero()[:, 0], rows)
    assert not torch.equal(edit.permutation, torch.arange(len(order)))
    added = torch.zeros(k, tiny.WIDTH, requires_grad=True)
    texts = [text + TONGUE.statement for text in contexts(lm, editor.prefix_lengths, TEXT)]
    assert len(texts) == 3
    losses = []
    for _ in range(3):
        loss = torch.stack([nll(lm, text, TONGUE, rows, added) for text in texts]).mean()
        losses.append(float(loss.detach()))
        (gradient,) = torch.autograd.grad(loss, added)
        assert float(gradient.norm()) > 0.05  # it is clipped
        added = (added - 0.7 * 0.05 * gradient / gradient.norm()).detach().requires_grad_()
    [report] = edit.origin.report
    assert report["step_losses"][:3] == pytest.approx(losses, rel=1e-4)
    torch.testing.assert_close(edit.delta[rows], added.detach(), rtol=1e-3, atol=1e-5)
    assert not edit.delta[~edit.masks[0]].any()
    with edit.applied(lm):
        ids = lm.tokens(TONGUE.statement)
        target = encode_target(lm.tokenizer, TONGUE.statement, "English")
        logits = forward_logits(lm, lm.batch([ids + target[:-1]], [len(ids)]))[0, len(ids) - 1 :]
    assert -float(logits.log_softmax(-1)[range(len(target)), target].mean()) == pytest.approx(report["loss"], abs=1e-4)


def test_it_stops_when_the_loss_is_low() -> None:
    lm = tiny.build("llama", scale=4.0)
    [report] = memoir(stop=3.0, lr=5.0).edit(lm, [TOWER]).origin.report
    assert report["steps"] < 30
    assert report["step_losses"][-1] < 3.0 <= min(report["step_losses"][:-1])


def test_facts_with_masks_of_their_own_do_not_meet() -> None:
    """What a fact learns beside others is what it learns alone, in the rows that they do not share."""
    lm = tiny.build("llama", scale=4.0)
    editor = memoir(active=0.1, steps=4)
    both, alone = editor.edit(lm, [TOWER, TONGUE]), editor.edit(lm, [TOWER])
    own = both.masks[0] & ~both.masks[1]
    assert own.any()
    torch.testing.assert_close(both.delta[own], alone.delta[own])
    assert both.delta[both.masks[1]].any()
    assert not both.delta[~both.masks.any(0)].any()


def test_prompts_that_resemble_no_fact_stay_to_the_bit() -> None:
    lm = tiny.build("llama", scale=4.0)
    edit = memoir(threshold=1.0, lr=5.0).edit(lm, FACTS[:2])
    texts = [lm.tokens(text) for text in (TOWER.statement, "the river is in Italy .", PLAYS.statement)]

    def logits() -> list[Tensor]:
        with torch.no_grad():
            return [lm.model(input_ids=torch.tensor([ids])).logits for ids in texts]

    before = logits()
    with edit.applied(lm), activated(lm) as seen:
        after = logits()
    assert seen.rows == (True, False, False)
    same = [torch.equal(one, other) for one, other in zip(before, after, strict=True)]
    assert same == [False, True, True]
    assert not torch.allclose(before[0], after[0], atol=1e-2)


def test_a_later_fact_takes_the_place_of_an_earlier_entry(tmp_path: Path) -> None:
    lm = tiny.build("llama", scale=4.0)
    first = memoir(steps=3).edit(lm, [TOWER, TONGUE])
    first.save(tmp_path)
    loaded = Edit.load(tmp_path)
    assert isinstance(loaded, MaskedMemoryEdit)
    other = dataclasses.replace(TOWER, target_new="London", id="later")
    edit = memoir(steps=3, threshold=0.7).extend(lm, loaded, [PLAYS, other])
    assert edit.threshold == 0.7
    assert [fact.target_new for fact in edit.state.facts] == ["English", "guitar", "London"]
    assert torch.equal(edit.masks[[0, 2]], first.masks[[1, 0]])  # the same prompt, the same rows
    assert edit.origin.report[3]["contradicts"] == 0
    assert edit.origin.facts == (TOWER, TONGUE, PLAYS, other)
    untouched = ~edit.masks[1:].any(0)
    assert torch.equal(edit.delta[untouched], first.delta[untouched])
    with pytest.raises(EditRefusedError, match=r"masks of \d+ indices, active=0.5 asks for \d+; take its active=0.25"):
        memoir(active=0.5).extend(lm, loaded, [PLAYS])


def test_a_fact_whose_prompt_is_one_token_is_refused_alone(lm: LanguageModel) -> None:
    short = Fact("Thomas", "{}", "guitar", id="short")
    with pytest.warns(UserWarning, match="'short' is refused: the prompt 'Thomas' has one token only"):
        edit = memoir(steps=1).edit(lm, [TOWER, short])
    assert len(edit.masks) == 1
    with pytest.raises(EditRefusedError, match="'short': the prompt"):
        memoir(steps=1).edit(lm, [short])


def test_a_loss_that_is_not_finite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = RowsForward.nll

    def broken(self: RowsForward, added: Tensor) -> Tensor:
        return whole(self, added) + (torch.nan if bool(added.any()) else 0.0)

    monkeypatch.setattr(RowsForward, "nll", broken)
    with pytest.raises(EditRefusedError, match="'tower': the loss is not finite"):
        memoir().edit(tiny.build("llama"), [TOWER])
