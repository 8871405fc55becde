import dataclasses
import warnings
from pathlib import Path
from typing import Literal

import pytest
import tiny
import torch
from editors_parts import bits, same_bits
from edits_parts import random_update
from rome_parts import (
    FACTS,
    LAYER,
    PREFIXES,
    ROME,
    SETTINGS,
    Patch,
    build,
    difference,
    given_moment,
    plain,
    solve,
    some_moment,
)
from torch import Tensor

from corrigenda import ContextEdit, Edit, Fact, LanguageModel, Origin
from corrigenda.disturbance import DisturbanceWarning
from corrigenda.moments.text import Text
from editing import EditRefusedError
from editing.locate_then_edit.prompt_run import run_prompts
from editing.locate_then_edit.prompts import build_prompts
from editing.shared.contexts import contexts
from editing.shared.frames import NO_FRAMES, Frames

moment = pytest.fixture(given_moment, autouse=True)


lm = pytest.fixture(tiny.steep)


@pytest.mark.parametrize("layer", [0, tiny.DEPTH - 1])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_solution_at_the_first_and_the_last_layer(family: str, layer: int) -> None:
    lm = build(family)
    fact = Fact("Danielle Darrieux", "the mother tongue of {}", "Italy", "French")
    rome = dataclasses.replace(ROME, layer=layer)
    key, value = plain(lm, fact, rome)
    rewrites, values = solve(lm, [fact], rome)
    assert difference(rewrites.mean_keys[0], key) < 1e-3
    assert difference(values.values[0], value) < 1e-3
    assert difference(values.values, rewrites.old_values) > 0.1


@pytest.mark.parametrize(
    "changes",
    [
        {"kl_factor": 3.0},
        {"kl_factor": 3.0, "kl_position": "last", "kl_prompt": "in the city {} was with the"},
        {"weight_decay": 20.0},
        {"clamp_norm_factor": 0.05},
    ],
)
def test_every_term_of_the_loss(changes: dict) -> None:
    """Terms that hardly matter at their default weight, weighed so that they do."""
    lm = build("qwen2")
    rome = dataclasses.replace(ROME, value=dataclasses.replace(SETTINGS, **changes))
    _, values = solve(lm, FACTS[:1], rome)
    assert difference(values.values[0], plain(lm, FACTS[0], rome)[1]) < 1e-3
    assert difference(values.values[0], solve(lm, FACTS[:1])[1].values[0]) > 1e-2


@pytest.mark.parametrize("clamp_norm", ["median", "bare"])
def test_bound_holds(lm: LanguageModel, clamp_norm: Literal["median", "bare"]) -> None:
    rome = dataclasses.replace(ROME, value=dataclasses.replace(SETTINGS, clamp_norm_factor=0.05, clamp_norm=clamp_norm))
    rewrites, values = solve(lm, FACTS, rome)
    delta = (values.values - rewrites.old_values).norm(dim=1)
    prompts = rewrites.prompts
    outputs = run_prompts(lm, prompts, [LAYER]).ffn_outputs(LAYER)[prompts.rewriting]
    middle = outputs.norm(dim=1).view(len(FACTS), len(PREFIXES)).sort(1).values[:, 1]  # of three
    norms = middle if clamp_norm == "median" else rewrites.old_values.norm(dim=1)
    torch.testing.assert_close(delta, 0.05 * norms, rtol=1e-3, atol=0)
    assert float((middle - rewrites.old_values.norm(dim=1)).abs().min()) > 0


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_a_bare_prompt_that_k_star_does_not_speak_for_is_answered_too(family: str) -> None:
    """With a constraint of its own, the bare prompt's key gets v* as k* does; without one it does not."""
    lm = build(family)
    rewrites, values = solve(lm, FACTS[:2])
    memory = lm.memory(LAYER)
    with ROME.edit(lm, FACTS[:2]).applied(lm):
        assert difference(memory.read(rewrites.bare_keys), values.values) > 0.01
    edit = dataclasses.replace(ROME, bare_agreement=1.0).edit(lm, FACTS[:2])
    assert all(figures["bare_agreement"] <= 1.001 for figures in edit.origin.report)
    with edit.applied(lm):
        assert difference(memory.read(rewrites.bare_keys), values.values) < 1e-3
        assert difference(memory.read(rewrites.mean_keys), values.values) < 1e-3


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_at_the_relation_key_and_value_are_those_of_its_last_token(family: str) -> None:
    lm = build(family)
    rome = dataclasses.replace(ROME, position="relation", value=dataclasses.replace(SETTINGS, kl_factor=3.0))
    key, value = plain(lm, FACTS[1], rome)
    rewrites, values = solve(lm, FACTS[1:2], rome)
    assert difference(rewrites.mean_keys[0], key) < 1e-3
    assert difference(values.values[0], value) < 1e-3
    alone = dataclasses.replace(rome, prefixes=("",))
    _, values = solve(lm, FACTS[1:2], alone)
    edit = alone.edit(lm, FACTS[1:2])
    with edit.applied(lm), lm.memory(LAYER).capture() as seen, torch.no_grad():
        lm.model(input_ids=torch.tensor([lm.tokens(FACTS[1].statement)]))
    assert difference(seen.output[0, -1], values.values[0]) < 1e-3
    subject = dataclasses.replace(alone, position="subject").edit(lm, FACTS[1:2])
    assert difference(edit.delta(LAYER).flatten(), subject.delta(LAYER).flatten()) > 0.1


def test_at_the_relation_a_prompt_that_ends_with_its_subject_is_refused(lm: LanguageModel) -> None:
    rome = dataclasses.replace(ROME, position="relation")
    ends = Fact("Danielle Darrieux", "the mother tongue of {}", "Italy", "French")
    with pytest.raises(EditRefusedError, match="'the mother tongue of Danielle Darrieux' ends with its subject"):
        rome.edit(lm, [ends])
    with pytest.warns(UserWarning, match="take position=subject"):
        both = rome.edit(lm, [FACTS[0], ends])
    torch.testing.assert_close(both.delta(LAYER), rome.edit(lm, FACTS[:1]).delta(LAYER))


def test_at_the_relation_a_frame_that_ends_with_the_subject_is_left_out(lm: LanguageModel) -> None:
    framed = dataclasses.replace(FACTS[1], frames=("the mother tongue of {}",))
    rome = dataclasses.replace(ROME, position="relation", frames=Frames(1))
    plain = dataclasses.replace(rome, frames=NO_FRAMES)
    torch.testing.assert_close(
        rome.edit(lm, [framed]).delta(LAYER), plain.edit(lm, FACTS[1:2]).delta(LAYER), rtol=1e-4, atol=1e-5
    )


def test_a_fact_whose_frame_is_refused_is_refused_alone(lm: LanguageModel) -> None:
    long = dataclasses.replace(FACTS[1], frames=("the mother tongue of {} is" + " red green" * 40,))
    rome = dataclasses.replace(ROME, frames=Frames(1))
    with pytest.warns(UserWarning, match=f"the edit of fact {long.id!r} is refused: .* reads at most 64"):
        both = rome.edit(lm, [FACTS[0], long])
    torch.testing.assert_close(both.delta(LAYER), rome.edit(lm, FACTS[:1]).delta(LAYER))


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_update_is_the_smallest_in_the_metric_of_the_second_moment(family: str, number: int, moment: Patch) -> None:
    """min tr(D^T C D) subject to K D = R, by least squares in float64 in coordinates where C is the identity."""
    lm = build(family)
    rewrites, values = solve(lm, FACTS[:number])
    keys = rewrites.mean_keys.double()
    residuals = values.values.double() - lm.memory(LAYER).read(rewrites.mean_keys).double()
    matrix = some_moment(lm, LAYER) + ROME.ridge * torch.eye(keys.shape[1], dtype=torch.float64)
    root = torch.linalg.cholesky(matrix)
    seen_from_root = torch.linalg.solve_triangular(root, keys.T, upper=False).T
    smallest = torch.linalg.lstsq(seen_from_root, residuals, driver="gelsd").solution
    expected = torch.linalg.solve_triangular(root.T, smallest, upper=True)
    found = ROME.edit(lm, FACTS[:number]).delta(LAYER).double()
    torch.testing.assert_close(found, expected, atol=1e-3 * float(expected.abs().max()), rtol=0)
    # A change that answers the keys as well but goes another way is larger.
    aside = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    aside -= torch.linalg.pinv(keys) @ (keys @ aside)
    for size in (0.01, -0.01):
        other = found + size * aside * found.norm() / aside.norm()
        assert torch.trace(other.T @ matrix @ other) > torch.trace(found.T @ matrix @ found)


def test_facts_beyond_the_batch_size(lm: LanguageModel) -> None:
    whole, parts = (dataclasses.replace(ROME, batch_size=size).edit(lm, FACTS) for size in (8, 2))
    assert difference(parts.delta(LAYER).flatten(), whole.delta(LAYER).flatten()) < 1e-3
    assert [report["steps"] for report in parts.origin.report] == [8, 8, 8]


def orthogonal(left: Tensor, right: Tensor) -> Tensor:
    """A second moment C, positive definite, with left C^-1 right = 0."""
    left, right = left.double() / left.double().norm(), right.double() / right.double().norm()
    cosine = float(left @ right)
    both = torch.outer(left, right)
    inverse = torch.eye(len(left), dtype=torch.float64) - cosine / (1 + cosine**2) * (both + both.T)
    return torch.linalg.inv(inverse)


def test_denominator_near_zero_is_refused(lm: LanguageModel, moment: Patch) -> None:
    """With the authors' keys: the key the update is made with stands at right angles to the one it is to answer."""
    rewrites, _ = solve(lm, FACTS)
    moment(orthogonal(rewrites.bare_keys[0], rewrites.mean_keys[0]))
    original = dataclasses.replace(ROME, homogeneous_keys=False, ridge=0.0)
    with pytest.warns(UserWarning, match="refused"), pytest.raises(EditRefusedError, match="denominator"):
        original.edit(lm, FACTS[:1])
    # In a batch only that fact is left out.
    with pytest.warns(UserWarning, match=f"{FACTS[0].id}.*refused"):
        edit = original.edit(lm, FACTS)
    assert ["refused" in report for report in edit.origin.report] == [True, False, False]
    assert abs(edit.origin.report[0]["agreement"]) < 0.02 < edit.origin.report[1]["agreement"]
    others = original.edit(lm, FACTS[1:])
    assert difference(edit.delta(LAYER).flatten(), others.delta(LAYER).flatten()) < 1e-3
    # With one key throughout there is nothing to stand at right angles.
    assert ROME.edit(lm, FACTS[:1]).origin.report[0]["agreement"] == pytest.approx(1)


def test_not_finite_is_refused(lm: LanguageModel, tmp_path: Path) -> None:
    word = lm.tokenizer.convert_tokens_to_ids("Danielle")
    lm.model.get_input_embeddings().weight.data[word] = torch.nan
    with pytest.warns(UserWarning, match="not finite"):
        edit = ROME.edit(lm, FACTS)
    assert "not finite" in edit.origin.report[1]["refused"]
    assert ["loss" in report for report in edit.origin.report] == [True, False, True]
    edit.save(tmp_path)
    assert Edit.load(tmp_path).origin.report == edit.origin.report
    assert difference(edit.delta(LAYER).flatten(), ROME.edit(lm, [FACTS[0], FACTS[2]]).delta(LAYER).flatten()) < 1e-3


def test_a_wrecked_model_is_refused() -> None:
    lm = build("gpt2")
    lm.memory(2).weight.data[0, 0] = torch.nan  # above the edited layer: the keys are sound, the loss is not
    with pytest.warns(UserWarning, match="not finite"), pytest.raises(EditRefusedError, match="not finite"):
        ROME.edit(lm, FACTS)


def test_outliers_are_flagged_and_refused(lm: LanguageModel) -> None:
    norms = [report["relative_norm"] for report in ROME.edit(lm, FACTS).origin.report]
    alone = ROME.edit(lm, FACTS[:1])
    assert norms[0] == pytest.approx(alone.norm(LAYER) / float(lm.memory(LAYER).values.norm()), rel=1e-3)
    worst = norms.index(max(norms))
    between = sum(sorted(norms)[-2:]) / 2
    with pytest.warns(UserWarning, match=r"flagged.*\|delta V\|"):
        edit = dataclasses.replace(ROME, flag_norm=between).edit(lm, FACTS)
    assert ["flagged" in report for report in edit.origin.report] == [number == worst for number in range(3)]
    assert edit.factors[LAYER][0].shape[1] == 3  # a flagged fact is edited
    with pytest.warns(UserWarning, match="outlier"):
        edit = dataclasses.replace(ROME, refuse_norm=between).edit(lm, FACTS)
    assert ["refused" in report for report in edit.origin.report] == [number == worst for number in range(3)]
    assert edit.factors[LAYER][0].shape[1] == 2
    with pytest.warns(UserWarning, match="outlier"), pytest.raises(EditRefusedError, match="outlier"):
        dataclasses.replace(ROME, refuse_norm=min(norms) / 2).edit(lm, FACTS)


def test_the_flag_is_of_the_edit_that_is_given(lm: LanguageModel) -> None:
    one = dataclasses.replace(ROME, bare_agreement=1.0)
    first, whole = (editor.edit(lm, FACTS[:1]).origin.report[0]["relative_norm"] for editor in (ROME, one))
    assert first < whole
    with pytest.warns(UserWarning, match="flagged.*second constraint"):
        edit = dataclasses.replace(one, flag_norm=(first + whole) / 2).edit(lm, FACTS[:1])
    assert "flagged" in edit.origin.report[0]
    assert edit.origin.report[0]["relative_norm"] == pytest.approx(whole)


def test_the_subject_is_where_the_prompt_has_it(lm: LanguageModel) -> None:
    fact = Fact("Rome", "{} is in the country of Italy , where Rome is", "red")
    prompts = build_prompts(lm, [fact], ["", "red green "], "{} and Rome", "subject")
    assert prompts.subject.tolist() == [2, 0]  # without a prefix it would end at the very first token
    assert prompts.batch.lengths[1] == 1


def test_sound_edits_say_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DisturbanceWarning)  # a random model has no facts: all its texts are alike
        edit = ROME.edit(build("llama"), FACTS)
    assert all(not {"flagged", "refused"} & report.keys() for report in edit.origin.report)


@pytest.mark.parametrize("layer", [0, LAYER, 2])
def test_on_top_of_another_edit(lm: LanguageModel, layer: int) -> None:
    untouched = bits(lm)
    without, memory = solve(lm, FACTS)[1].values, lm.memory(LAYER)
    with random_update(lm, 0.5, layer).applied(lm):
        rewrites, values = solve(lm, FACTS)
        key, value = plain(lm, FACTS[0], ROME)
        assert difference(rewrites.mean_keys[0], key) < 1e-3
        assert difference(values.values[0], value) < 1e-3
        assert difference(values.values, without) > 0.01
        between = bits(lm)
        second = ROME.edit(lm, FACTS)
        assert same_bits(lm, between)
        with second.applied(lm):
            assert difference(memory.read(rewrites.mean_keys), values.values) < 1e-3
    assert same_bits(lm, untouched)


def test_under_a_context(lm: LanguageModel) -> None:
    text = "in the north the Eiffel tower stands on the river . "
    settings = dataclasses.replace(SETTINGS, kl_factor=0.0)  # the context stands before the KL's prompt too
    rome = dataclasses.replace(ROME, value=settings)
    as_prefix = dataclasses.replace(rome, prefixes=tuple(text + prefix for prefix in PREFIXES))
    expected_rewrites, expected = solve(lm, FACTS, as_prefix)
    with ContextEdit(Origin(lm.name, lm.fingerprint, "test"), text).applied(lm):
        rewrites, values = solve(lm, FACTS, rome)
    n = int(rewrites.prompts.rewriting.sum())
    assert rewrites.prompts.subject[:n].tolist() == expected_rewrites.prompts.subject[:n].tolist()
    assert int(rewrites.prompts.subject[0]) == 11 + 2  # the context's eleven words, then "the Eiffel tower"
    torch.testing.assert_close(rewrites.mean_keys, expected_rewrites.mean_keys, atol=1e-4, rtol=1e-3)
    assert difference(values.values, expected.values) < 1e-3
    assert difference(values.values[0], plain(lm, FACTS[0], as_prefix)[1]) < 1e-3


def test_contexts_are_sampled_from_the_unedited_model(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name, edit in (("plain", None), ("edited", random_update(lm, 0.5, 0))):
        monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / name))
        if edit is not None:
            edit.apply(lm)
        found.append(contexts(lm, ((5, 3), (8, 3)), Text("self")))
    assert len(lm.edits) == 1
    assert found[0] == found[1]
    assert found[0][0] == ""
    assert len(found[0]) == 7
    assert all(prefix.endswith(". ") for prefix in found[0][1:])
