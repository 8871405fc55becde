import dataclasses
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from by_hooks import coefficients, leaving
from torch import Tensor
from wise_parts import BEN, DANIELLE, EIFFEL, losses

from corrigenda import CodebookEdit, Edit, Fact, LanguageModel
from corrigenda.edits.codebook import nearest_keys
from corrigenda.forward.recording import forward_logits, record
from corrigenda.moments.text import Text
from editing import EditRefusedError, Grace
from editing.shared.training_rows import target_rows


def grace(**changes: Any) -> Grace:
    return Grace(**({"layer": 2, "radius": 1.0, "steps": 15, "text": Text(tokens=256, length=8)} | changes))


def key(lm: LanguageModel, prompt: str) -> Tensor:
    return coefficients(lm, 2, lm.tokens(prompt))[-1]


def apart(lm: LanguageModel, left: Fact, right: Fact) -> float:
    return float((key(lm, left.statement).double() - key(lm, right.statement).double()).norm())


def loss(lm: LanguageModel, fact: Fact) -> float:
    return float(losses(lm, [fact]))


def test_new_entries(lm: LanguageModel) -> None:
    """Facts that lie farther apart than both radii get entries of their own: key, radius and label."""
    radius = 0.4 * apart(lm, EIFFEL, BEN)
    edit = grace(radius=radius).edit(lm, [EIFFEL, BEN])
    assert [report["rule"] for report in edit.origin.report] == ["new", "new"]
    torch.testing.assert_close(edit.keys[1], key(lm, BEN.statement), atol=1e-5, rtol=1e-4)
    assert edit.radii.tolist() == pytest.approx([radius, radius])
    assert edit.state.labels == ("Rome", "Italy")
    assert edit.state.members == (0, 1)


@pytest.mark.parametrize("factor", [0.7, 1.5])
def test_expanded(lm: LanguageModel, factor: float) -> None:
    """The same answer within epsilon + radius: the ball grows to the new key if it is smaller, and takes no entry."""
    other = dataclasses.replace(BEN, id="", target_new=EIFFEL.target_new)
    distance = apart(lm, EIFFEL, other)
    edit = grace(radius=factor * distance).edit(lm, [EIFFEL, other])
    assert edit.origin.report[1]["rule"] == "expanded"
    assert edit.radii.tolist() == pytest.approx([max(1.0, factor) * distance], rel=1e-4)
    assert edit.state.labels == ("Rome",)
    assert edit.state.members == (0, 0)
    with edit.applied(lm):
        both = lm.batch([lm.tokens(EIFFEL.statement), lm.tokens(BEN.statement)])
        assert record(lm, both, []).routes.decided[edit].tolist() == [0, 0]


def test_a_key_on_the_border_of_its_ball_lies_in_it(lm: LanguageModel) -> None:
    """An expanded ball ends at its farthest key, which rounding moves by what its prompt is run beside."""
    other = dataclasses.replace(BEN, id="", target_new=EIFFEL.target_new)
    edit = grace(radius=0.7 * apart(lm, EIFFEL, other), steps=1).edit(lm, [EIFFEL, other])
    assert edit.origin.report[1]["rule"] == "expanded"
    for moved in (1.0, 1 - 2e-6, 1 + 2e-6):
        nearest, distance = nearest_keys(moved * key(lm, other.statement)[None], edit.keys)
        assert distance <= edit.radii[nearest]


def test_split(lm: LanguageModel) -> None:
    """Another answer within epsilon + radius: both balls get half the distance, and each prompt its own value."""
    distance = apart(lm, EIFFEL, BEN)
    edit = grace(radius=0.8 * distance).edit(lm, [EIFFEL, BEN])
    assert edit.origin.report[1]["rule"] == "split"
    assert edit.radii.tolist() == pytest.approx([distance / 2, distance / 2], rel=1e-4)
    assert float(edit.radii.sum()) < distance * (1 + 1e-6)  # the balls do not overlap
    with edit.applied(lm):
        both = lm.batch([lm.tokens(EIFFEL.statement), lm.tokens(BEN.statement)])
        assert record(lm, both, []).routes.decided[edit].tolist() == [0, 1]


def test_radius_of_a_new_ball(lm: LanguageModel) -> None:
    """A share of the median distance between the keys of unrelated texts."""
    editor = grace(radius=None, relative_radius=0.01)
    edit = editor.edit(lm, [EIFFEL])
    keys = [coefficients(lm, 2, ids)[-1] for ids in editor.text.sequences(lm)]
    distances = sorted(float((a - b).norm()) for i, a in enumerate(keys) for b in keys[:i])
    assert float(edit.radii[0]) == pytest.approx(0.01 * distances[(len(distances) - 1) // 2], rel=1e-3)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_values_are_learned(family: str) -> None:
    """In every family the loss that the edited model shows is the one that was reported, and far below the old one."""
    lm = tiny.build(family)
    old, other = [loss(lm, fact) for fact in (EIFFEL, BEN)], loss(lm, DANIELLE)
    edit = grace(radius=1e-3).edit(lm, [EIFFEL, BEN])
    with edit.applied(lm):
        for fact, report, before in zip((EIFFEL, BEN), edit.origin.report, old, strict=True):
            assert loss(lm, fact) == pytest.approx(report["loss"], abs=1e-3)
            assert loss(lm, fact) < before - 0.1
        assert loss(lm, DANIELLE) == pytest.approx(other, abs=1e-6)


def test_the_best_value_is_kept(lm: LanguageModel) -> None:
    """Steps far too large make a learned value worse: what is kept is the one with the smallest loss that was met."""
    learned = grace(radius=1e-3, steps=30, stop=0.0).edit(lm, [EIFFEL])
    edit = grace(radius=1e-3, lr=30.0, steps=3, stop=0.0).extend(lm, learned, [EIFFEL])
    report = edit.origin.report[-1]
    losses = report["step_losses"]
    assert losses[-1] > min(losses) + 0.5  # without this the test would not see which one is kept
    with edit.applied(lm):
        assert loss(lm, EIFFEL) == pytest.approx(min(losses), abs=1e-3)
    assert report["loss"] == min(losses)


# -- where the value stands in


def positions_changed(lm: LanguageModel, edit: CodebookEdit, ids: list[int], prompt: int) -> list[bool]:
    """At which tokens of a text the FFN's output is the entry's value."""
    with edit.applied(lm), lm.memory(2).capture() as seen:
        forward_logits(lm, lm.batch([ids], [prompt]))
    return [torch.allclose(output, edit.values[0], atol=1e-6) for output in seen.output[0]]


def test_wider_balls_than_the_rules_left(lm: LanguageModel, tmp_path: Path) -> None:
    """Two balls that touch half way: widened, each answers what lies beyond its half, and the nearer entry is asked."""
    distance = apart(lm, EIFFEL, BEN)
    wide = grace(radius=10 * distance, widen=3.0, name="grace_wide")
    edit = wide.edit(lm, [EIFFEL, BEN])
    plain = grace(radius=10 * distance).edit(lm, [EIFFEL, BEN])
    assert (edit.origin.editor, plain.origin.editor) == ("grace_wide", "grace")
    torch.testing.assert_close(edit.radii, plain.radii)  # the rules do not see it
    assert 0.5 * distance < apart(lm, EIFFEL, DANIELLE) < 1.5 * distance
    for made, answers in ((edit, True), (plain, False)):
        with made.applied(lm):
            routes = record(lm, lm.batch([lm.tokens(DANIELLE.statement)]), []).routes
            assert routes is not None
            assert (int(routes.decided[made][0]) >= 0) is answers
    edit.save(tmp_path / "edit")
    loaded = Edit.load(tmp_path / "edit")
    assert isinstance(loaded, CodebookEdit)
    assert loaded.widen == 3.0
    more, same = wide.extend(lm, loaded, [DANIELLE]), grace(radius=10 * distance).extend(lm, plain, [DANIELLE])
    torch.testing.assert_close(more.radii, same.radii)
    with pytest.raises(ValueError, match=r"widen=0\.0 must be a positive number"):
        dataclasses.replace(edit, widen=0.0)


@pytest.mark.parametrize("replace", ["onwards", "last", "prompt", "all"])
def test_where_the_value_stands_in(lm: LanguageModel, replace: Any, tmp_path: Path) -> None:
    """By hand, over a prompt of n tokens and a target; what is learned is what is applied, also after saving."""
    old = loss(lm, EIFFEL)
    edit = grace(radius=1e-3, replace=replace).edit(lm, [EIFFEL])
    ids, n = target_rows(lm, EIFFEL)
    later = len(ids) - n
    assert later >= 2
    assert (
        positions_changed(lm, edit, ids, n)
        == {
            "onwards": [False] * (n - 1) + [True] * (1 + later),
            "last": [False] * (n - 1) + [True] + [False] * later,
            "prompt": [True] * (n - 1) + [False] * (1 + later),
            "all": [True] * (n + later),
        }[replace]
    )
    [report] = edit.origin.report
    edit.save(tmp_path)
    loaded = Edit.load(tmp_path)
    assert isinstance(loaded, CodebookEdit)
    assert loaded.replace == replace
    with loaded.applied(lm):
        assert loss(lm, EIFFEL) == pytest.approx(report["loss"], abs=1e-3)
        assert loss(lm, EIFFEL) < old - 0.1
    other = "last" if replace == "onwards" else "onwards"
    with pytest.raises(EditRefusedError, match=f"made with replace='{replace}', this editor has replace='{other}'"):
        grace(radius=1e-3, replace=other).extend(lm, loaded, [BEN])


def test_where_a_generated_token_is_left_alone(lm: LanguageModel) -> None:
    """With `last` the tokens that follow a prompt are the model's own FFN's, step by step as in one forward."""
    edit = grace(radius=1e-3, replace="last").edit(lm, [EIFFEL])
    ids = lm.tokens(EIFFEL.statement)
    with edit.applied(lm), leaving(lm.architecture.values(2)) as outputs:  # in this order, to see what the edit puts in
        lm.generate(EIFFEL.statement, max_new_tokens=3)
    changed = [torch.allclose(row, edit.values[0], atol=1e-6) for output in outputs for row in output[0]]
    assert changed == [False] * (len(ids) - 1) + [True] + [False] * 2


def test_an_unknown_place_is_refused() -> None:
    edit = grace(radius=1e-3, steps=1).edit(tiny.build("llama"), [EIFFEL])
    with pytest.raises(ValueError, match="replace='first' must be one of onwards, last, prompt, all"):
        dataclasses.replace(edit, replace="first")
    with pytest.raises(ValueError, match="Grace: replace='first' must be"):
        grace(replace="first")


def test_contradiction_and_repetition(lm: LanguageModel) -> None:
    """The very same prompt: nothing to split. The later answer replaces the earlier one, the same one stays."""
    later = dataclasses.replace(EIFFEL, id="", target_new="Berlin")
    edit = grace().edit(lm, [EIFFEL, later, later])
    assert [report["rule"] for report in edit.origin.report] == ["new", "replaced", "expanded"]
    assert edit.origin.report[1]["contradicts"] == 0
    assert edit.origin.report[2]["repeats"] == 1
    assert edit.state.labels == ("Berlin",)
    with edit.applied(lm):
        assert loss(lm, later) < loss(lm, EIFFEL)
