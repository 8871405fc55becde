"""`wise_paper` is the paper's algorithm: its formulas by hand, on a tiny model.

Wang et al. 2024, "WISE: Rethinking the Knowledge Memory for Lifelong Model Editing of Large Language Models".
"""

import dataclasses
import math
from typing import Any

import pytest
import torch
from by_hooks import adding, coefficients
from editors_parts import shipped
from torch import Tensor
from wise_parts import FACTS, THOMAS

from corrigenda import LanguageModel
from corrigenda.forward.recording import record
from corrigenda.moments.text import Text
from corrigenda.prompts import encode_target
from editing import Unrelated, Wise
from editing.memory_based.wise.merging import subspace

LAYER = 2


def paper(**changes: Any) -> Wise:
    """The paper's, at a layer of the tiny model, with a single unrelated prompt."""
    unrelated = Unrelated(Text(tokens=12, length=12), prompts=False)
    return dataclasses.replace(shipped("wise_paper"), layer=LAYER, unrelated=unrelated, **changes)


def activation(m: Tensor, delta: Tensor) -> Tensor:
    """Delta_act (eq. 3): the mean over the prompt's tokens of || A(x) (W_v' - W_v) ||_2; its gradient at 0 is 0."""
    return ((m @ delta).square().sum(-1) + 1e-30).sqrt().mean()


def ti_merged(first: Tensor, second: Tensor) -> Tensor:
    """Ti-Merge of two shards, entry by entry: the sign of the sum, and the mean of those that have it."""
    merged = torch.zeros(first.shape)
    for i in range(first.shape[0]):
        for j in range(first.shape[1]):
            pair = [float(first[i, j]), float(second[i, j])]
            sign = math.copysign(1, sum(pair))
            agree = [value for value in pair if value * sign > 0]
            merged[i, j] = sum(agree) / len(agree) if agree else 0.0
    return merged


def test_the_paper_s_numbers() -> None:
    editor = shipped("wise_paper")
    assert (editor.alpha, editor.beta, editor.gamma) == (5.0, 20.0, 10.0)
    assert (editor.rho, editor.shards, editor.lr, editor.steps, editor.momentum) == (0.2, 2, 1.0, 70, 0.0)
    assert (editor.merge, editor.variant, editor.masks, editor.threshold) == (
        "ties",
        "merge",
        "independent",
        "smallest",
    )
    assert editor.rows_per_fact == 1
    assert editor.replay == editor.remembered == editor.other_subjects == editor.hard_negatives == 0
    assert not editor.whiten
    assert not editor.with_others
    assert round(editor.depth * 32) == 27


@pytest.mark.parametrize("steps", [1, 4])
def test_steps_by_hand(lm: LanguageModel, steps: int) -> None:
    """Gradient descent on -log P(y_e | x_e) + L_a (eq. 5) within the mask (eq. 7), through whole forwards.

    The margins are those of a model whose activations are as small as this one's; so is the learning rate.
    """
    margins = {"alpha": 1e-4, "beta": 2.0, "gamma": 1.0}
    editor = paper(steps=steps, lr=0.05, **margins)
    prompt = lm.tokens(THOMAS.statement)
    target = encode_target(lm.tokenizer, THOMAS.statement, str(THOMAS.target_new))
    [[irrelevant]] = editor.unrelated.sequences(lm).values()
    m_e, m_i = coefficients(lm, LAYER, prompt)[1:], coefficients(lm, LAYER, irrelevant)[1:]
    values = lm.memory(LAYER).values
    mask = subspace(0.2, "independent", editor.seed, 0, values.shape)
    delta = torch.zeros(values.shape, requires_grad=True)
    for step in range(steps + 1):
        with adding(lm, LAYER, delta):
            logs = lm.model(input_ids=torch.tensor([prompt + target])).logits[0].log_softmax(-1)
        nll = -logs[range(len(prompt) - 1, len(prompt + target) - 1), target].mean()
        d_e, d_i = activation(m_e, delta), activation(m_i, delta)
        zero = torch.zeros(())
        loss_a = torch.maximum(zero, d_i - 1e-4) + torch.maximum(zero, 2 - d_e) + torch.maximum(zero, 1 - (d_e - d_i))
        if step == steps:
            break
        [gradient] = torch.autograd.grad(nll + loss_a, delta)
        with torch.no_grad():
            delta -= 0.05 * mask * gradient
    edit = editor.edit(lm, [THOMAS])
    report = edit.origin.report[0]
    assert report["steps"] == steps
    assert report["loss"] == pytest.approx(nll.item(), rel=1e-3)
    assert report["score"] == pytest.approx(d_e.item(), rel=1e-3)
    assert report["unrelated_score"] == pytest.approx(d_i.item(), rel=1e-3)
    expected = delta.detach()
    torch.testing.assert_close(edit.deltas[0], expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
    # All three terms of L_a are at work; without them the memory is another one.
    assert d_i.item() > 1e-4
    assert d_e.item() < 2
    without = dataclasses.replace(editor, weight=0.0).edit(lm, [THOMAS])
    if steps > 1:
        assert float((without.deltas[0] - expected).norm()) > 0.05 * float(expected.norm())


def test_margins_are_scaled_together(lm: LanguageModel) -> None:
    """`margin_scale` keeps the ratios of the paper's 5, 20 and 10, and reaches the loss; alone it is refused."""
    state = paper(steps=1, margin_scale=0.1).edit(lm, [THOMAS]).state
    assert dataclasses.astuple(state.margins) == pytest.approx((0.5, 2.0, 1.0))
    with pytest.raises(ValueError, match=r"margin_scale=2\.0 multiplies alpha, beta and gamma where they are given"):
        Wise(margin_scale=2.0)


def test_each_entry_is_bounded(lm: LanguageModel) -> None:
    """`max_entry` cuts each entry off, and leaves the others: with all steps but the last within the bound, by hand."""
    free = paper(steps=1, lr=5.0, margin_scale=0.1).edit(lm, [THOMAS]).deltas
    bound = float(free.abs().quantile(0.99))
    cut = paper(steps=1, lr=5.0, margin_scale=0.1, max_entry=bound).edit(lm, [THOMAS]).deltas
    assert float(free.abs().max()) > 1.5 * bound
    torch.testing.assert_close(cut, free.clamp(-bound, bound), rtol=0, atol=0)


def test_masks_are_drawn_for_each_shard_by_itself() -> None:
    """A share rho of the entries each; k of them share rho^k (theorem 2.1)."""
    shape = torch.Size((300, 300))
    masks = [subspace(0.2, "independent", 0, shard, shape) for shard in range(3)]
    for mask in masks:
        assert float(mask.float().mean()) == pytest.approx(0.2, abs=0.01)
    assert float((masks[0] & masks[1]).float().mean()) == pytest.approx(0.04, abs=0.005)
    assert float((masks[0] & masks[1] & masks[2]).float().mean()) == pytest.approx(0.008, abs=0.003)
    assert torch.equal(masks[1], subspace(0.2, "independent", 0, 1, shape))
    assert not torch.equal(masks[0], subspace(0.2, "independent", 1, 0, shape))


def test_merging_and_epsilon_by_hand(lm: LanguageModel) -> None:
    """Ti-Merge of the shards' W_v' - W_v, and epsilon at the smallest activation of the edited prompts."""
    editor = paper(steps=5, lr=0.05, edits_per_shard=2, alpha=0.05, beta=2.0, gamma=1.0)
    edit = editor.edit(lm, FACTS)
    first, second = edit.state.shards
    for shard, theta in enumerate((first, second)):
        mask = subspace(0.2, "independent", editor.seed, shard, theta.shape)
        assert not bool(theta[~mask].any())
        assert bool(theta.any())
    merged = ti_merged(first, second)
    torch.testing.assert_close(edit.deltas[0], merged)
    scores = [float(activation(coefficients(lm, LAYER, lm.tokens(fact.statement))[1:], merged)) for fact in FACTS]
    # Less a rounding: only what lies above epsilon is answered, and the lowest fact is to be.
    assert float(edit.epsilons[0]) == pytest.approx(min(scores), rel=2e-4)
    assert float(edit.epsilons[0]) < min(scores)
    with edit.applied(lm):
        facts = record(lm, lm.batch([lm.tokens(fact.statement) for fact in FACTS]), [])
    assert facts.routes.decided[edit].tolist() == [0, 0, 0, 0]


def test_retrieval_and_epsilon_of_each_edit_by_hand(lm: LanguageModel) -> None:
    """WISE-Retrieve: each side memory is merged of k shards. Algorithm 1: epsilon is of each edit, when it is made."""
    numbers = {"steps": 5, "lr": 0.05, "alpha": 0.05, "beta": 2.0, "gamma": 1.0, "edits_per_shard": 1}
    edit = paper(variant="retrieve", threshold="edits", **numbers).edit(lm, FACTS)
    shards = edit.state.shards
    torch.testing.assert_close(edit.deltas, torch.stack([ti_merged(*shards[:2]), ti_merged(*shards[2:])]))
    made = [
        float(activation(coefficients(lm, LAYER, lm.tokens(fact.statement))[1:], shard))
        for fact, shard in zip(FACTS, shards, strict=True)
    ]
    expected = [min(made[:2]), min(made[2:])]
    assert edit.epsilons.tolist() == pytest.approx(expected, rel=2e-4)
    # By the merged memories the facts' scores are others.
    assert paper(variant="retrieve", **numbers).edit(lm, FACTS).epsilons.tolist() != pytest.approx(expected, rel=0.01)
    # Two facts in one shard: the first one's score is what it was before the second was learned.
    numbers["edits_per_shard"] = 2
    first, both = (paper(threshold="edits", **numbers).edit(lm, facts) for facts in (FACTS[:1], FACTS[:2]))
    m = coefficients(lm, LAYER, lm.tokens(FACTS[0].statement))[1:]
    before, after = (float(activation(m, one.deltas[0])) for one in (first, both))
    second = float(activation(coefficients(lm, LAYER, lm.tokens(FACTS[1].statement))[1:], both.deltas[0]))
    assert float(both.epsilons[0]) == pytest.approx(min(before, second), rel=2e-4)
    assert before != pytest.approx(after, rel=0.01)


def test_shards_that_share_entries_cannot_be_learned_in_place() -> None:
    with pytest.raises(ValueError, match="share entries"):
        paper(with_others=True)
