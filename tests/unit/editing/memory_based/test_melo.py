from typing import Any

import pytest
import tiny
import torch
from by_hooks import coefficients
from edits_parts import origin
from torch import Tensor, nn

from corrigenda import BlocksEdit, EditRefusedError, Fact, LanguageModel
from corrigenda.edits.blocks import chosen_blocks
from corrigenda.edits.routed import activated
from corrigenda.forward.recording import forward_logits
from corrigenda.models.routes import MAIN
from editing import Melo
from editing.memory_based.melo import Clusters

BEN = Fact("Big Ben", "{} stands in", "the city of Rome", "London", id="ben")
THOMAS = Fact("Thomas", "the mother tongue of {} is", "French", "English", id="thomas")
RIVER = Fact("river", "the {} in the north is", "green", "blue", id="river")
FACTS = [BEN, THOMAS, RIVER]


def added(clusters: Clusters, *keys: tuple[float, float], label: str = "a", block: int = 0) -> list[str]:
    return [clusters.add(torch.tensor(key), block, label)["rule"] for key in keys]


# -- the rules, r0 = 1


def test_a_member_joins_up_to_r_and_r0() -> None:
    """The centre is the mean of all members, the radius their largest distance to it, at least r0."""
    clusters = Clusters(1.0, None, ())
    assert added(clusters, (0.0, 0.0), (0.5, 0.0), (2.2, 0.0)) == ["new", "joined", "joined"]  # d = 1.95 <= 1 + 1
    assert clusters.centres[0].tolist() == pytest.approx([0.9, 0.0])
    assert clusters.radii == [pytest.approx(1.3, rel=1e-4)]  # of (2.2, 0)
    assert added(clusters, (3.3, 0.0)) == ["new"]  # 2.4 > 1.3 + 1
    assert clusters.radii[1] == 1.0


def test_the_radius_is_at_least_r0() -> None:
    clusters = Clusters(1.0, None, ())
    added(clusters, (0.0, 0.0), (0.5, 0.0))
    assert clusters.radii == [1.0]  # members are 0.25 from the centre


def test_in_16_bits_the_border_is_as_wide_as_rounding() -> None:
    """There a key comes out otherwise by a percent where its prompt runs beside longer ones."""
    key = torch.ones(48)
    for dtype, width in ((torch.float32, 1e-5), (torch.bfloat16, 1.0 / 32)):
        clusters = Clusters(0.1, None, (), dtype)
        for one in (key, key + 0.02):
            clusters.add(one, 0, "a")
        centre = clusters.centres[0]
        assert clusters.radii[0] == pytest.approx(
            max(0.1, float((key - centre).norm()) + width * float((key + 0.02).norm()))
        )
        assert clusters.add(1.01 * centre, 1, "b")["rule"] == ("split" if dtype == torch.float32 else "replaced")


def test_a_member_on_the_border_of_its_cluster_lies_in_it() -> None:
    """Its distance is the radius, and another computation of the same sum rounds it to more."""
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        key, way = torch.randn(2, 48, generator=draw)
        clusters = Clusters(1.0, None, ())
        for step in (0.0, 0.5, 2.2):
            clusters.add(key + step * way / way.norm(), 0, "a")
        names = ("keys", "clusters", "blocks", "centres", "radii")
        placed = dict(zip(names, clusters.tensors(), strict=True))
        assert len(placed["radii"]) == 1
        for moved in (1.0, 1 - 2e-6, 1 + 2e-6):
            assert chosen_blocks(placed, moved * placed["keys"]).tolist() == [0, 0, 0]


def test_conflicts_split_and_members_outside_are_forgotten() -> None:
    """Centre (0.9, 0), radius 1.3; another answer at (2.1, 0), d = 1.2: of the members only (0.5, 0) is within 0.6."""
    clusters = Clusters(1.0, None, ())
    added(clusters, (0.0, 0.0), (0.5, 0.0), (2.2, 0.0))
    assert added(clusters, (2.1, 0.0), label="b", block=1) == ["split"]
    assert clusters.labels == ["a", "b"]
    assert clusters.radii == pytest.approx([0.6, 0.6], rel=1e-4)  # the first is a little less
    assert clusters.radii[0] < clusters.radii[1]
    assert [key.tolist() for key, _ in clusters.members[0]] == [[0.5, 0.0]]
    assert clusters.centres[0].tolist() == pytest.approx([0.9, 0.0])  # stays


def test_the_very_key_is_replaced() -> None:
    clusters = Clusters(1.0, None, ())
    added(clusters, (3.0, 0.0))
    assert added(clusters, (3.0, 0.0), label="b", block=1) == ["replaced"]
    assert (clusters.labels, [block for _, block in clusters.members[0]]) == (["b"], [1])


def test_the_nearest_member_of_the_nearest_cluster_answers() -> None:
    """Where the query lies within that cluster; one without members answers nothing."""
    placed = {
        "keys": torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.6, 0.0]]),
        "clusters": torch.tensor([0, 0, 1]),
        "blocks": torch.tensor([4, 5, 6]),
        "centres": torch.tensor([[1.0, 0.0], [3.0, 0.0], [9.0, 0.0]]),
        "radii": torch.tensor([1.1, 0.5, 1.0]),
    }
    queries = torch.tensor([[0.2, 0.0], [1.9, 0.0], [2.8, 0.0], [2.3, 0.0], [9.0, 0.0], [-0.2, 0.0]])
    assert chosen_blocks(placed, queries).tolist() == [4, 5, 6, MAIN, MAIN, MAIN]


# -- on a model


def key(lm: LanguageModel, layer: int, prompt: str) -> Tensor:
    return coefficients(lm, layer, lm.tokens(prompt))[-1].float()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_block_is_adam_on_a_low_rank_change(family: str) -> None:
    """By plain training of the whole model with V + A B in place of V, all facts of the group in each step."""
    lm = tiny.build(family)
    edit = Melo(layer=1, steps=3, stop=0.0, radius=1e-3, lr=0.01, per_block=3).edit(lm, FACTS)
    weight, transposed = lm.memory(1).weight, lm.memory(1).transposed
    draw = torch.Generator().manual_seed(0)
    width = lm.memory(1).d_ffn
    left = ((2 * torch.rand(width, 2, generator=draw) - 1) / width**0.5).requires_grad_()
    right = torch.zeros(2, tiny.WIDTH, requires_grad=True)
    optimiser = torch.optim.Adam([left, right], lr=0.01)
    name = next(name for name, one in lm.model.named_parameters() if one is weight)
    for _ in range(3):
        optimiser.zero_grad()
        delta = left @ right
        losses = []
        for fact in FACTS:
            prompt = lm.tokenizer(fact.statement)["input_ids"]
            ids = [*lm.tokenizer(f"{fact.statement} {fact.target_new}")["input_ids"], lm.tokenizer.eos_token_id]
            changed = {name: weight + (delta if transposed else delta.T)}
            logits = torch.func.functional_call(lm.model, changed, kwargs={"input_ids": torch.tensor([ids])}).logits
            losses.append(
                nn.functional.cross_entropy(logits[0, len(prompt) - 1 : -1], torch.tensor(ids[len(prompt) :]))
            )
        torch.stack(losses).mean().backward()
        optimiser.step()
    assert (left @ right).abs().max() > 1e-3
    torch.testing.assert_close(edit.left[0] @ edit.right[0], (left @ right).detach(), atol=1e-5, rtol=1e-3)
    assert edit.left.shape[0] == 1


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_rows_near_a_fact_have_its_block_and_others_are_the_models_own(family: str) -> None:
    """Bit for bit; a row that is answered is what V + A B in place of V says."""
    lm = tiny.build(family)
    edit = Melo(layer=1, steps=5, per_block=2, lr=0.05, radius=1e-4).edit(lm, FACTS)
    assert edit.left.shape[:1] == (2,)
    assert edit.blocks.tolist() == [0, 0, 1]
    for number, fact in enumerate(FACTS):
        torch.testing.assert_close(edit.keys[number], key(lm, 1, fact.statement), atol=1e-5, rtol=1e-5)
    prompts = [*(fact.statement for fact in FACTS), "one two three", "the river is"]
    batch = lm.batch([lm.tokens(prompt) for prompt in prompts])
    plain = forward_logits(lm, batch, batch.lengths - 1)
    with edit.applied(lm), activated(lm) as seen:
        found = forward_logits(lm, batch, batch.lengths - 1)
    assert seen.rows == (True, True, True, False, False)
    assert torch.equal(found[3:], plain[3:])
    for row, block in enumerate(edit.blocks.tolist()):
        memory = lm.memory(1)
        kept = memory.weight.detach().clone()
        memory.add_to_values(edit.left[block] @ edit.right[block])
        expected = forward_logits(lm, lm.batch([lm.tokens(prompts[row])]), None)[0, -1]
        memory.weight.data.copy_(kept)
        torch.testing.assert_close(found[row], expected, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(found[row], plain[row])


def test_facts_are_learned_and_it_goes_on(lm: LanguageModel) -> None:
    lm.architecture.head.weight.data.mul_(10)
    editor = Melo(layer=1, lr=0.05, steps=120, radius=1e-3, per_block=2)
    first = editor.edit(lm, FACTS[:2])
    both = editor.extend(lm, first, [RIVER])
    assert torch.equal(both.left[0], first.left[0])
    with both.applied(lm):
        for fact in FACTS:
            assert lm.generate(fact.statement, 8) == fact.target_new
    with pytest.raises(EditRefusedError, match="has blocks of rank 2, this editor rank=3"):
        Melo(layer=1, rank=3, radius=1e-3).extend(lm, first, [RIVER])


def test_shapes_that_do_not_fit(lm: LanguageModel) -> None:
    memory = lm.memory(1)
    good: dict[str, Any] = {
        "keys": torch.ones(2, 48),
        "clusters": torch.tensor([0, 0]),
        "blocks": torch.tensor([0, 0]),
        "centres": torch.ones(1, 48),
        "radii": torch.ones(1),
        "left": torch.ones(1, 48, 2),
        "right": torch.ones(1, 2, tiny.WIDTH),
    }
    BlocksEdit(origin(lm), 1, memory.path, **good)
    for name, bad in (
        ("clusters", torch.tensor([0, 1])),
        ("blocks", torch.tensor([0, -1])),
        ("radii", torch.tensor([-1.0])),
        ("left", torch.ones(1, 48, 3)),
        ("centres", torch.ones(1, 47)),
    ):
        with pytest.raises(ValueError, match=rf"do not fit one another.*{name} "):
            BlocksEdit(origin(lm), 1, memory.path, **good | {name: bad})
