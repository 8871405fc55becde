import dataclasses
from pathlib import Path

import pytest
import tiny
import torch
from stand_ins import FACTS, without_text

from corrigenda import ContextEdit, Edit, LanguageModel, Origin
from editing import AfterTreatments, Memit, ValueSettings
from editing.locate_then_edit.after_treatments import anchor_norms, spare_singular, spare_spherical

VALUE = ValueSettings(steps=4, lr=0.2, weight_decay=0.02, early_stop_loss=-1.0)
MEMIT = Memit(layers=(1, 2), prefixes=("", "red green . "), value=VALUE, refuse_norm=1e9, most_per_coefficient=1.0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_text(monkeypatch, tmp_path)


lm = pytest.fixture(tiny.steep)


def test_anchored_targets_by_hand() -> None:
    """v* = (3, 4) and (0, 10), so the anchor is 7.5; of a block's output the rest, (1, 1), stays."""
    values, outputs = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    targets = torch.tensor([[4.0, 5.0], [1.0, 11.0]])
    found, anchor = anchor_norms(targets, outputs, values)
    assert anchor == 7.5
    torch.testing.assert_close(found, torch.tensor([[5.5, 7.0], [1.0, 8.5]]))
    again, kept = anchor_norms(targets, outputs, values, 5.0)
    assert kept == 5.0
    torch.testing.assert_close(again, torch.tensor([[4.0, 5.0], [1.0, 6.0]]))


def test_dominant_singular_directions_are_spared_by_hand() -> None:
    """V = diag(3, 2, 1) with energies 9, 4, 1: a share of 0.6 is the first one, of 0.9 the first two."""
    values = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    delta = torch.arange(1.0, 10.0).reshape(3, 3)
    factors = (delta, torch.eye(3))
    left, right = spare_singular(factors, values, 0.6)
    expected = delta.clone().double()
    expected[0], expected[:, 0] = 0, 0
    torch.testing.assert_close(left @ right, expected)
    left, right = spare_singular(factors, values, 0.9)
    torch.testing.assert_close(left @ right, torch.diag(torch.tensor([0.0, 0.0, 9.0]).double()))
    before = torch.linalg.svd(values.double())
    after = torch.linalg.svd(values.double() + 0.05 * (left @ right))
    torch.testing.assert_close(after.S[:2], before.S[:2])


def test_principal_directions_on_the_sphere_are_damped_by_hand() -> None:
    values = torch.tensor([[1.0, 5.0, 0.1, 0.0], [0.0, 0.0, 0.0, 9.0], [0.0, 0.0, 0.0, 0.0]])
    factors = (torch.tensor([[2.0], [4.0], [6.0]]), torch.ones(1, 4))
    left, right = spare_spherical(factors, values, 0.7, 0.5)
    torch.testing.assert_close(left, torch.tensor([[1.0], [4.0], [6.0]]).double())
    assert right is factors[1]
    left, _ = spare_spherical(factors, values, 0.8, 1.0)
    torch.testing.assert_close(left, torch.tensor([[0.0], [0.0], [6.0]]).double())


def test_in_an_editor_by_brute_force(lm: LanguageModel) -> None:
    plain = {n: lm.memory(n).values.double().clone() for n in (1, 2)}
    editor = dataclasses.replace(MEMIT, after=AfterTreatments(spare_singular=0.5))
    first = editor.edit(lm, FACTS[:2])
    for edit in (first, editor.extend(lm, first, FACTS[2:])):
        for layer, values in plain.items():
            U, S, Wt = torch.linalg.svd(values, full_matrices=False)
            r = int((S.square().cumsum(0) < 0.5 * S.square().sum()).sum()) + 1
            delta = edit.delta(layer).double()
            size = float(delta.norm())
            assert float((U[:, :r].T @ delta).norm()) < 1e-5 * size
            assert float((delta @ Wt[:r].T).norm()) < 1e-5 * size
    sphere = dataclasses.replace(MEMIT, after=AfterTreatments(spare_spherical=1.0, spherical_strength=0.25))
    of_plain = MEMIT.edit(lm, FACTS)
    for layer in (1,):  # the second layer is given what the first one left
        U, _, _ = torch.linalg.svd(plain[layer], full_matrices=False)
        delta = of_plain.delta(layer).double()
        expected = delta - 0.25 * U @ U.T @ delta
        torch.testing.assert_close(sphere.edit(lm, FACTS).delta(layer).double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("site", ["block", "ffn"])
def test_the_anchor_is_kept_when_an_edit_goes_on(lm: LanguageModel, site: str, tmp_path: Path) -> None:
    editor = dataclasses.replace(MEMIT, site=site, after=AfterTreatments(norm_anchor=True))  # type: ignore[arg-type]
    first = editor.edit(lm, FACTS[:2])
    [anchor] = {tuple(one["norm_anchors"].items()) for one in first.origin.report}
    first.save(tmp_path / "first")
    loaded = Edit.load(tmp_path / "first")
    both = editor.extend(lm, loaded, FACTS[2:])
    assert {tuple(one["norm_anchors"].items()) for one in both.origin.report} == {anchor}
    assert not torch.equal(editor.edit(lm, FACTS).delta(1), MEMIT.edit(lm, FACTS).delta(1))


def test_nothing_is_done_by_default() -> None:
    factors = (torch.ones(3, 1), torch.ones(1, 2))
    assert AfterTreatments().of_update(factors, torch.ones(3, 2)) is factors


def test_targets_on_the_unedited_model_depend_on_no_earlier_edit(lm: LanguageModel) -> None:
    editor = dataclasses.replace(MEMIT, solve_on="unedited")
    alone = editor.edit(lm, FACTS[2:]).origin.report[0]
    behind = editor.extend(lm, editor.edit(lm, FACTS[:2]), FACTS[2:]).origin.report[-1]
    assert behind["solved"] == "kept"
    assert behind["loss"] == alone["loss"]
    anew = MEMIT.extend(lm, MEMIT.edit(lm, FACTS[:2]), FACTS[2:]).origin.report[-1]
    assert "solved" not in anew


def test_targets_on_the_unedited_model_are_of_prompts_as_it_reads_them(lm: LanguageModel) -> None:
    """They are kept as those of the model without the text that an edit puts before prompts."""
    editor = dataclasses.replace(MEMIT, solve_on="unedited")
    with ContextEdit(Origin(lm.name, lm.fingerprint, "x"), "Rome is in Italy . ").applied(lm):
        behind_text = editor.edit(lm, FACTS[:1]).origin.report[0]
    anew = dataclasses.replace(editor, keep_targets=False).edit(lm, FACTS[:1]).origin.report[0]
    assert behind_text["loss"] == anew["loss"]
