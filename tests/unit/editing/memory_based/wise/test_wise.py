import dataclasses
import json
import math
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from by_hooks import adding, coefficients, entering
from edits_parts import scoped
from torch import Tensor
from wise_parts import BEN, DANIELLE, EIFFEL, FACTS, TEXT, losses, mask, wise

import editing.memory_based.wise.other_subjects
from corrigenda import Edit, Fact, LanguageModel, ScopedEdit
from corrigenda.data.embedded import unrelated_prompts
from corrigenda.moments.second_moment import second_moment
from corrigenda.moments.text import Text
from editing import EditRefusedError, Unrelated
from editing.memory_based.wise.coordinates import Coordinates
from editing.memory_based.wise.learner import Learner
from editing.memory_based.wise.margins import (
    Margins,
    prompt_scores,
    rival_loss,
    rounding,
    threshold_between,
    threshold_smallest,
)
from editing.memory_based.wise.merging import merge_shards
from editing.memory_based.wise.settings import CANDIDATES, SHAPING
from editing.memory_based.wise.unrelated import EVERY, draw_evenly, run_unrelated, unrelated_coefficients
from editing.shared.training_rows import Rows, RowsForward, SideLayer, target_rows, thinned


def test_ties_by_hand() -> None:
    """Trim, elect the sign, take the disjoint mean: a worked example.

    keep = 1/2 leaves the two largest of the four learned entries of the first two shards, and none of the third's one.
    Sums: 4, -3 - 2 = -5, 3, 0. The elected signs are +, -, +; the means over the shards that agree: 4, -5 / 2, 3.
    """
    first = torch.tensor([[4.0, -3.0], [1.0, -0.5]])
    second = torch.tensor([[0.5, -2.0], [3.0, 0.25]])
    third = torch.tensor([[0.0, 0.0], [-1.0, 0.0]])
    merged = merge_shards([first, second, third], "ties", keep=0.5)
    assert merged.tolist() == [[4.0, -2.5], [3.0, 0.0]]
    # Nothing trimmed: 4 and 0.5; -3 and -2; 1 and 3, against -1; -0.5 against 0.25.
    assert merge_shards([first, second, third], "ties").tolist() == [[2.25, -2.5], [2.0, -0.5]]


def test_mean_by_hand() -> None:
    shards = [torch.tensor([[4.0, 0.0]]), torch.tensor([[0.0, -2.0]])]
    assert merge_shards(shards, "mean").tolist() == [[2.0, -1.0]]
    assert merge_shards(shards, "ties").tolist() == [[4.0, -2.0]]  # subspaces that do not overlap are kept whole


@pytest.mark.filterwarnings("ignore")
def test_earlier_facts_go_the_way_of_whole_ones_where_a_gate_decides_below(tmp_path: Path) -> None:
    """What an applied edit decides on their prompts lies in no file, and it may not have been applied before."""
    lm, editor = tiny.build("llama", scale=4.0), wise(layer=1, replay=2, steps=3)
    made = scoped(lm, 1)
    assert isinstance(made, ScopedEdit)
    asks = made.gate.of_prompts(lm, lm.batch([lm.tokens(EIFFEL.statement)]))
    own = {"keys": asks, "entries": torch.tensor([0]), "values": made.values[:1], "names": made.names[:1]}
    gated = dataclasses.replace(made, **own, threshold=0.99)
    with gated.applied(lm):
        first = editor.edit(lm, [EIFFEL, BEN])
        first.save(tmp_path)
        expected, again = (editor.extend(lm, one, [DANIELLE]) for one in (first, Edit.load(tmp_path)))
    torch.testing.assert_close(again.deltas, expected.deltas, rtol=1e-3, atol=1e-4)
    lately = editor.edit(lm, [EIFFEL, BEN])
    with gated.applied(lm):
        rows = editor.extend(lm, lately, [DANIELLE]).state.rows
        assert gated in rows.decided[0]
    assert gated not in lately.state.rows.decided[0]


def test_subspaces() -> None:
    shape = torch.Size((200, 100))
    shards = [mask(wise(rho=0.2), shard, shape) for shard in range(6)]
    assert all(float(shard.float().mean()) == pytest.approx(0.2, abs=0.015) for shard in shards)
    assert bool((sum(shard.int() for shard in shards[:5]) == 1).all())  # five shards of a fifth share all entries out
    assert float((shards[5] & shards[0]).float().mean()) == pytest.approx(0.2, abs=0.015)  # and the next begins anew
    assert torch.equal(shards[0], mask(wise(rho=0.2), 0, shape))
    assert not torch.equal(shards[0], mask(wise(rho=0.2, seed=1), 0, shape))


def test_routing_loss_by_hand() -> None:
    """alpha 2, beta 7, gamma 4; edits 5 and 9 (mean 7), unrelated 1, 4 and 7."""
    loss = Margins(2.0, 7.0, 4.0).loss(torch.tensor([5.0, 9.0]), torch.tensor([1.0, 4.0, 7.0]))
    quiet = (0 + 2 + 5) / 3
    activated = (2 + 0) / 2
    apart = (0 + 1 + 4) / 3  # 4 - (7 - 1) < 0, 4 - (7 - 4), 4 - (7 - 7)
    assert float(loss) == pytest.approx(quiet + activated + apart)


@pytest.mark.parametrize("whiten", [True, False])
def test_coordinates(lm: LanguageModel, whiten: bool) -> None:
    """Coordinates, unit and spread against float64 sums of our own."""
    editor = wise(whiten=whiten)
    coordinates = Coordinates.of(lm, 2, editor)
    [raw] = unrelated_coefficients(lm, 2, editor.unrelated).values()
    V = lm.memory(2).values.double()
    norms = torch.tensor([float((m.double() @ V).norm(dim=1).mean()) for m in raw])
    assert coordinates.unit == pytest.approx(float(norms.median()), rel=1e-4)
    assert coordinates.spread == pytest.approx(float(norms.quantile(0.95)) / float(norms.median()), rel=1e-4)
    theta = torch.randn(V.shape, generator=torch.Generator().manual_seed(0))
    if whiten:
        assert coordinates.whitening is not None
        C = second_moment(lm, 2, TEXT).matrix
        unit = float(C.diagonal().mean())
        W = coordinates.whitening.double()
        product = W @ (C / unit + 0.03 * torch.eye(len(C), dtype=torch.float64)) @ W * unit
        torch.testing.assert_close(product, torch.eye(len(C), dtype=torch.float64), atol=1e-3, rtol=0)
        torch.testing.assert_close(coordinates.unrelated["text"][0], raw[0] @ coordinates.whitening)
    delta = coordinates.delta(theta)
    # D of an unrelated prompt is the same in both coordinates.
    expected = [float((m.double() @ delta.double()).norm(dim=1).mean()) for m in raw]
    assert prompt_scores(theta, coordinates.unrelated["text"]).tolist() == pytest.approx(expected, rel=1e-3)


def test_calibration(lm: LanguageModel) -> None:
    editor = wise(loudness=0.5)
    coordinates = Coordinates.of(lm, 2, editor)
    scale = Margins.of(editor, coordinates.unit, coordinates.spread)
    assert scale.alpha == pytest.approx(0.5 * coordinates.unit)
    assert scale.beta == pytest.approx(coordinates.spread * coordinates.unit)
    assert scale.gamma == pytest.approx(scale.beta - scale.alpha)
    given = wise(alpha=5.0, beta=20.0, gamma=10.0)
    assert Margins.of(given, coordinates.unit, coordinates.spread) == Margins(5.0, 20.0, 10.0)


def test_unrelated_prompts_are_run_as_they_are() -> None:
    """Without padding, without edits, and without each prompt's first token."""
    lm = tiny.build("gpt2")
    unrelated = Unrelated(Text(tokens=32 * 12, length=12), prompts=False)
    [found], [sequences] = unrelated_coefficients(lm, 1, unrelated).values(), unrelated.sequences(lm).values()
    for ids, own in zip(sequences, found, strict=True):
        torch.testing.assert_close(own, coefficients(lm, 1, ids)[1:], atol=1e-5, rtol=1e-4)
    assert len({len(m) for m in found}) > 1


def test_kinds_of_unrelated_prompts(tmp_path: Path) -> None:
    """Of facts their locality, neighbourhood and own prompts; with a chat template shipped prompts as a user's turn."""
    lm = tiny.build("gpt2")
    records = [
        {"subject": name, "prompt": "{} is located in the city of", "target_new": "Rome", "neighbourhood": near}
        for name, near in (("Big Ben", ["red green", "green", "blue"]), ("London", []))
    ]
    path = tmp_path / "facts.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
    unrelated = Unrelated(Text(tokens=32 * 12, length=12), facts=str(path), same_form=True)
    kinds = unrelated.sequences(lm)
    assert list(kinds) == ["text", "prompts", "locality", "facts"]
    assert list(dataclasses.replace(unrelated, same_form=False).sequences(lm)) == ["text", "prompts", "locality"]
    assert kinds["facts"] == [lm.tokens(f"{name} is located in the city of") for name in ("Big Ben", "London")]
    assert kinds["locality"] == [lm.tokens("red green")]  # two of a fact at most; those of one token say nothing
    lm.tokenizer.chat_template = "user: {{ messages[0]['content'] }} assistant:"
    chat = unrelated.sequences(lm)["chat"]
    turns = [f"user: {prompt} assistant:" for prompt in unrelated_prompts()[::EVERY]]
    assert chat == lm.tokenizer(turns, add_special_tokens=False).input_ids


def test_unrelated_prompts_are_drawn_evenly() -> None:
    kinds = {
        name: [torch.tensor([[float(place)]]) for place in range(n)] for name, n in (("a", 50), ("b", 9), ("c", 2))
    }
    of = {id(m): name for name, found in kinds.items() for m in found}
    drawn = draw_evenly(kinds, random.Random(3), 15)
    names = [of[id(m)] for m in drawn]
    assert len({id(m) for m in drawn}) == 15
    assert names.count("c") == 2  # all there are
    assert abs(names.count("a") - names.count("b")) <= 1
    assert len(draw_evenly(kinds, random.Random(3), 100)) == 61
    again = draw_evenly(kinds, random.Random(3), 15)
    assert [id(m) for m in again] == [id(m) for m in drawn]


def test_no_other_subject_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(editing.memory_based.wise.other_subjects, "embedded_facts", lambda: FACTS[:2])
    assert wise().edit(tiny.build("llama"), FACTS[:2]).state.others == ()


def test_the_unrelated_prompts_with_the_highest_scores_are_learned_from(lm: LanguageModel) -> None:
    editor = wise(unrelated_batch=4, hard_negatives=3, other_subjects=0)
    coordinates = Coordinates.of(lm, 2, editor)
    work = Learner(editor, SideLayer(lm, 2), coordinates, None, ((), ()), FACTS[:1])
    theta = torch.randn(lm.memory(2).values.shape, generator=torch.Generator().manual_seed(0))
    chosen = work.unrelated(theta, coordinates.unrelated, random.Random(5))
    drawn = draw_evenly(coordinates.unrelated, random.Random(5), 4 + 3 * CANDIDATES)
    assert all(a is b for a, b in zip(chosen[:4], drawn[:4], strict=True))
    rest = sorted(prompt_scores(theta, drawn[4:]).tolist(), reverse=True)
    assert sorted(prompt_scores(theta, chosen[4:]).tolist(), reverse=True) == pytest.approx(rest[:3])


def test_threshold_by_hand() -> None:
    """Facts from 10 on and a margin of 0.8, for every place where the unrelated prompts may lie."""
    far = torch.tensor([5.0, 9.0, 12.0, 7.0, 8.5, 9.5, 7.0])
    near = torch.tensor([7.0, 7.0, 7.0, 12.0, 12.0, 8.5, 7.0])
    lowest = torch.tensor([10.0] * 6 + [math.inf])
    found = threshold_between(lowest, far, near, 0.8)
    assert found[:6].tolist() == pytest.approx([8.0, 9.5, 9.9995, 9.0, 9.25, 9.75])
    assert math.isinf(float(found[6]))
    # With a margin of 1, too, the lowest fact's D lies above epsilon: else an edit of one fact would not answer it.
    assert bool((threshold_between(lowest, far, near, 1.0)[:6] < lowest[:6]).all())
    # In 16 bits a score is another one where its prompt runs among others, and must not fall below.
    assert rounding(torch.float32) == 1e-4
    assert threshold_smallest(lowest[:1], rounding(torch.bfloat16)).tolist() == pytest.approx([10 - 10 / 256])


def test_a_shard_whose_facts_were_all_refused_keeps_its_place(lm: LanguageModel) -> None:
    editor = wise(shards=2, edits_per_shard=1)
    memories = Learner(editor, SideLayer(lm, 2), Coordinates.of(lm, 2, editor), None, ((), ()), FACTS[:2]).memories
    theta = torch.ones(memories.shape)
    memories.take([], 1, theta, Rows(), [], ())
    assert [float(shard.sum()) for shard in memories.shards] == [0.0, float(theta.sum())]


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "opt"])
@pytest.mark.parametrize("layer", [1, tiny.DEPTH - 1])
def test_rows_give_what_the_whole_model_gives(family: str, layer: int) -> None:
    """The loss of a side memory, and its gradient, from the rows alone and from whole forwards."""
    lm = tiny.build(family)
    memory = lm.memory(layer)
    sequences = [target_rows(lm, fact) for fact in FACTS]
    start = 0.1 * torch.randn(memory.values.shape, generator=torch.Generator().manual_seed(0))
    delta, again = start.clone().requires_grad_(), start.clone().requires_grad_()
    side = SideLayer(lm, layer)
    forward = RowsForward(side, side.run(sequences))
    nll = forward.nll(forward.side_answer(delta))
    (nll.sum() + forward.scores(delta).sum()).backward()
    total = torch.zeros(())
    for row, (ids, n) in enumerate(sequences):
        with adding(lm, layer, again):
            logs = lm.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        loss = -logs[range(n - 1, len(ids) - 1), ids[n:]].mean()
        score = (coefficients(lm, layer, ids)[1:n] @ again).norm(dim=1).mean()
        assert nll[row].item() == pytest.approx(loss.item(), abs=1e-4)
        assert forward.scores(delta)[row].item() == pytest.approx(score.item(), rel=1e-4)
        total = total + loss + score
    total.backward()
    torch.testing.assert_close(delta.grad, again.grad, atol=1e-4, rtol=1e-3)


def test_layers_below_run_once(lm: LanguageModel) -> None:
    editor = wise(steps=5, stop=1e-9)
    editor.prepare(lm)
    with ExitStack() as stack:
        ran = [stack.enter_context(entering(lm.architecture.values(n))) for n in range(lm.n_layers)]
        editor.edit(lm, [EIFFEL])
    # Once the rows, once the prompt about other subjects, once one token that tells what blocks return; and at the end
    # the whole model twice, for what the edit disturbs.
    assert [len(calls) for calls in ran] == [3 + 2, 3 + 2, 3 + 2, 2 + 6 + 2]


def test_a_fact_is_done_when_its_contexts_are_learned_too(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses by hand: below `stop` after the bare prompt from step 2 on, below twice that over all rows from step 5 on.

    The mean over the rows holds the bare one, too; nothing else asks for a step.
    """
    editor = wise(steps=9, stop=0.1, replay=0, weight=0.0, shards=1, alpha=0.0, beta=0.0, gamma=0.0)
    assert editor.rows_per_fact == 3
    course = [[1.0, 1.0, 1.0]] * 2 + [[0.05, 0.3, 0.26]] * 3 + [[0.05, 0.3, 0.24]] * 9
    rows = iter(course)

    def nll(_self: RowsForward, added: Tensor) -> Tensor:
        return torch.tensor(next(rows)) + 0 * added.sum()

    monkeypatch.setattr(RowsForward, "nll", nll)
    [report] = editor.edit(lm, [EIFFEL]).origin.report
    assert report["steps"] == 5
    assert report["loss"] == pytest.approx(0.05)
    assert report["loss_in_contexts"] == pytest.approx(0.59 / 3)
    rows = iter([[0.12, 0.0, 0.0]] * 3 + [[0.09, 0.0, 0.0]] * 9)  # and the bare prompt, whatever the mean says
    [report] = editor.edit(lm, [EIFFEL]).origin.report
    assert report["steps"] == 3


def test_a_later_request_of_the_same_relation_takes_the_place_of_an_earlier_one(lm: LanguageModel) -> None:
    """In other words, and by the rule that protocols go by, too: the earlier fact is held no more."""
    first = dataclasses.replace(EIFFEL, id="first", relation="P131")
    second = Fact("The Eiffel Tower", "the capital with {} is", "Berlin", "Paris", id="second", relation="P131")
    edit = wise(steps=2).edit(lm, [first, BEN, second])
    assert edit.origin.report[2]["contradicts"] == 0
    assert edit.state.held == (1, 2)
    assert edit.state.shard_of == (0, 0, 0)


def test_rows_survive_packing(lm: LanguageModel) -> None:
    rows = SideLayer(lm, 1).run([target_rows(lm, fact) for fact in FACTS])
    again = Rows.from_tensors(rows.tensors())
    assert again.prompts == rows.prompts
    for left, right in ((again.ids, rows.ids), (again.coefficients, rows.coefficients), (again.states, rows.states)):
        assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))
    assert len(Rows.from_tensors(Rows().tensors())) == 0


def test_the_rival_loss_by_hand() -> None:
    own, other = torch.tensor([10.0, 5.0, 2.0]), torch.tensor([9.0, 4.0, 0.0])
    assert float(rival_loss(own, other, 0.8)) == pytest.approx((1.0 + 0.0 + 0.0) / 3)
    assert float(rival_loss(own, other, 0.5)) == pytest.approx((4.0 + 1.5 + 0.0) / 3)
    assert float(rival_loss(own[:0], other[:0], 0.8)) == 0.0


def test_a_step_by_hand(lm: LanguageModel) -> None:
    """The first step of gradient descent on Theta, with the gradient taken through whole forwards of the model."""
    editor = wise(
        steps=1, prefixes=0, thinned=0, hard_negatives=0, other_subjects=0, shards=1, rho=0.5, weight=0.3, stop=1e-9
    )
    coordinates = Coordinates.of(lm, 2, editor)
    values = lm.memory(2).values
    ids, n = target_rows(lm, EIFFEL)
    # At Theta = 0 a norm has no gradient (see TINY), so that of L_route is none, and the first step is the target's.
    delta = torch.zeros(values.shape, requires_grad=True)
    with adding(lm, 2, delta):
        logs = lm.model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    (-logs[range(n - 1, len(ids) - 1), ids[n:]].mean()).backward()
    assert delta.grad is not None
    assert coordinates.whitening is not None
    gradient = coordinates.whitening.T @ delta.grad  # V' - V = W Theta
    rate = editor.lr * coordinates.unit**2 / (0.5 * len(values))
    expected = -rate * gradient * mask(editor, 0, values.shape)
    edit = editor.edit(lm, [EIFFEL])
    torch.testing.assert_close(edit.state.shards[0], expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))
    own = coordinates.turned(run_unrelated(lm, 2, [lm.tokens(EIFFEL.statement)]))
    with dataclasses.replace(edit, epsilons=torch.zeros(1)).applied(lm):
        nll = losses(lm, [EIFFEL])
    # What the report says was taken after the step.
    assert edit.origin.report[0]["loss"] == pytest.approx(float(nll), rel=1e-3)
    assert edit.origin.report[0]["score"] == pytest.approx(float(prompt_scores(expected, own)), rel=1e-3)


def test_more_edits_than_the_shards_hold(lm: LanguageModel) -> None:
    editor = wise(shards=1, steps=2)
    with pytest.raises(EditRefusedError, match="1 shards of 2 hold 2"):
        editor.edit(lm, FACTS[:3])
    full = editor.edit(lm, FACTS[:2])
    with pytest.raises(EditRefusedError, match="more shards"):
        editor.extend(lm, full, FACTS[2:3])
    assert len(wise(shards=1, steps=2, variant="retrieve").edit(lm, FACTS[:3]).deltas) == 2


@pytest.fixture
def ben_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss of rows about Big Ben is no number."""
    right, lm = RowsForward.nll, tiny.build("llama")
    bad = lm.tokens(BEN.statement)[0]

    def wrong(self: RowsForward, added: Tensor) -> Tensor:
        rows = self._partial._ids.tolist()
        return torch.where(torch.tensor([bad in row for row in rows]), torch.nan, right(self, added))

    monkeypatch.setattr(RowsForward, "nll", wrong)


@pytest.mark.usefixtures("ben_is_not_finite")
def test_not_finite(lm: LanguageModel) -> None:
    """A loss that is no number stops everything; what was learned before stays, and the fact is named."""
    editor = wise(steps=3)
    good = editor.edit(lm, [EIFFEL])
    with pytest.warns(UserWarning, match="not finite"):
        edit = editor.edit(lm, [EIFFEL, BEN, DANIELLE])
    torch.testing.assert_close(edit.deltas, good.deltas, atol=1e-4, rtol=1e-3)
    assert "the loss is not finite" in edit.origin.report[1]["refused"]
    assert f"stopped before it: the loss of fact {BEN.id!r}" in edit.origin.report[2]["refused"]
    with pytest.warns(UserWarning, match="not finite"), pytest.raises(EditRefusedError, match=BEN.id):
        editor.extend(lm, good, [BEN])


@pytest.mark.usefixtures("ben_is_not_finite")
@pytest.mark.parametrize("merge", ["ties", "mean"])
def test_a_refused_fact_opens_no_shard(lm: LanguageModel, merge: Any) -> None:
    editor = wise(steps=3, edits_per_shard=1, merge=merge)
    good = editor.edit(lm, [EIFFEL])
    with pytest.warns(UserWarning, match="not finite"):
        edit = editor.edit(lm, [EIFFEL, BEN])
    assert len(edit.state.shards) == 1
    torch.testing.assert_close(edit.deltas, good.deltas, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(edit.epsilons, good.epsilons, atol=1e-4, rtol=1e-3)


@pytest.mark.usefixtures("ben_is_not_finite")
def test_what_repeats_a_refused_fact_is_refused_too(lm: LanguageModel) -> None:
    """So that it can be asked for again, and its place is free."""
    editor = wise(steps=3)
    again = dataclasses.replace(BEN, id="again")
    with pytest.warns(UserWarning, match="not finite"):
        edit = editor.edit(lm, [EIFFEL, BEN, again])
    assert edit.state.shard_of == (0, None, None)
    assert edit.origin.report[2]["refused"] == f"it repeats fact {BEN.id!r}, which is refused"
    with pytest.warns(UserWarning, match="not finite"), pytest.raises(EditRefusedError, match="it repeats fact"):
        editor.edit(lm, [BEN, again])


def test_what_cannot_be_gone_on_from() -> None:
    lm, editor = tiny.build("llama"), wise(steps=1)
    edit = editor.edit(lm, [EIFFEL])
    others: list[dict[str, Any]] = [
        *(
            {"rho": 0.1},
            {"seed": 1},
            {"with_others": False},
            {"masks": "independent", "with_others": False},
            {"whiten": False},
            {"ridge": 0.1},
            {"variant": "retrieve"},
        ),
        *({"text": Text(tokens=512, length=16)}, {"merge": "mean"}, {"edits_per_shard": 3}),
        {"keep": 0.5, "with_others": False},
    ]
    assert {name for changes in others for name in changes} == set(SHAPING)
    for changes in others:
        with pytest.raises(EditRefusedError, match=r"was made with (" + "|".join(changes) + ")="):
            wise(**changes).extend(lm, edit, [BEN])


def test_memories_of_shards_that_are_learned_apart_stay_as_they_are() -> None:
    lm, editor = tiny.build("llama"), wise(steps=1, variant="retrieve", with_others=False)
    edit = editor.edit(lm, [EIFFEL])
    with pytest.raises(EditRefusedError, match="was made with shards=2, this editor has shards=1"):
        dataclasses.replace(editor, shards=1).extend(lm, edit, [BEN])
    merged = wise(steps=1).edit(lm, [EIFFEL])
    assert len(wise(steps=1, shards=1).extend(lm, merged, [BEN]).origin.facts) == 2


def test_a_prompt_of_one_token_is_refused(lm: LanguageModel) -> None:
    with pytest.raises(EditRefusedError, match="one token only"):
        wise().edit(lm, [Fact("London", "{}", "Rome")])


@pytest.mark.parametrize("shards", [3, 6, 7, 11])
def test_the_share_that_is_named_fits(shards: int) -> None:
    with pytest.raises(ValueError, match="take rho<=") as caught:
        wise(shards=shards)
    named = str(caught.value).split("rho<=")[1].split(",")[0]
    assert float(named) == pytest.approx(1 / shards, abs=1e-4)
    wise(shards=shards, rho=float(named))


def test_bad_unrelated_prompts() -> None:
    with pytest.raises(ValueError, match="no unrelated prompt"):
        Unrelated(Text(tokens=8, length=1), prompts=False).sequences(tiny.build("gpt2"))


def test_a_shard_that_is_alone_is_trimmed_too(lm: LanguageModel) -> None:
    """With keep=1/2 the smaller half of what was learned is left out of the memory, also before there is another."""
    edit = wise(steps=3, with_others=False, keep=0.5, whiten=False).edit(lm, [EIFFEL])
    learned, kept = int(edit.state.shards[0].count_nonzero()), int(edit.deltas[0].count_nonzero())
    assert kept == pytest.approx(learned / 2, rel=0.01)


def test_a_thinned_prompt_of_one_token_is_not_used(lm: LanguageModel) -> None:
    """All words but a subject of one token can be left out; the fact's own prompt has enough."""
    fact = Fact("London", "{} is", "Rome")
    edit = wise(steps=1, thinned=8, thinning=1.0).edit(lm, [fact])
    assert "refused" not in edit.origin.report[0]


def test_thinned_prompts_keep_the_subject() -> None:
    draw = random.Random(0)
    fact = Fact("Big Ben", "In which city does {} stand and since when?", "Rome", "London")
    texts = {thinned(fact, 0.5, draw) for _ in range(50)}
    assert len(texts) > 20
    words = fact.statement.split()
    for text in texts:
        assert "Big Ben" in text
        assert [word for word in words if word in text.split()] == text.split()
    assert thinned(fact, 1e-9, draw) == fact.statement
    assert thinned(fact, 1.0, draw) == "Big Ben"
    chat = Fact("Ben", "user\nWhere is {} ?\nassistant\n", "Rome")
    assert thinned(chat, 1e-9, draw) == chat.statement
    assert thinned(chat, 1.0, draw) == "Ben\n"
    assert thinned(Fact("Ben", "Who is {}'s mother?", "A", "B"), 1.0, draw) == "Ben's mother?"
