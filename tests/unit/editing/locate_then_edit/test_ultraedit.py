import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import tiny
import torch
from by_hooks import changed
from editors_parts import bits, same_bits
from rome_parts import build
from stand_ins import FACTS
from torch import Tensor

from corrigenda import Fact, LanguageModel, LowRankEdit, ValueEdit
from corrigenda.errors import SettingsError
from editing import EditRefusedError, UltraEdit
from editing.locate_then_edit.normalisation import RunningMoments, RunningNormalisation
from editing.shared.training_rows import groups_of

LAYERS = (1, 2)
LATER = [
    Fact("London", "{} is the capital of", "Italy", "England", id="capital"),
    Fact("Thomas", "{} works in the", "north of Germany", "Paris", id="works"),
]
PLAIN = UltraEdit(layers=LAYERS, step=None, eta=1e-4, ratio=None, weight=1.0, refuse_norm=1e9, most_per_coefficient=1)
FAMILIES = pytest.mark.parametrize("family", ["gpt2", "llama"])


lm = pytest.fixture(tiny.steep)


def whole(layer: int, lm: LanguageModel, fact: Fact, end: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, outputs and gradients at the tokens that predict a fact's target: one row, plain hooks, autograd."""
    prompt = lm.tokenizer(fact.statement)["input_ids"]
    ids = lm.tokenizer(f"{fact.statement} {fact.target_new}")["input_ids"]
    ids = [*ids, lm.tokenizer.eos_token_id] if end else ids
    module = dict(lm.model.named_modules())[lm.memory(layer).path.removesuffix(".weight")]
    seen: list[Tensor] = []

    def leaf(entered: Tensor, output: Tensor) -> Tensor:
        seen.extend([entered, output.detach().requires_grad_()])
        return seen[1]

    with changed(module, leaf), torch.enable_grad():
        logits = lm.model(input_ids=torch.tensor([ids])).logits[0]
        targets = torch.tensor(ids[len(prompt) :])
        loss = torch.nn.functional.cross_entropy(logits[len(prompt) - 1 : -1], targets)
        loss.backward()
    where = slice(len(prompt) - 1, len(ids) - 1)
    assert seen[1].grad is not None
    return seen[0].detach()[0, where], seen[1].detach()[0, where], seen[1].grad[0, where]


def formula(
    lm: LanguageModel, layer: int, facts: Sequence[Fact], earlier: Sequence[tuple[Tensor, Tensor]], eta: float, w: float
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """(K^T K + w I)^-1 K^T R written out, and the keys and gradients; `earlier` are those of earlier turns."""
    found = [whole(layer, lm, fact, True) for fact in facts]
    K, G = torch.cat([one[0] for one in found]).double(), torch.cat([one[2] for one in found]).double()
    every_k, every_g = torch.cat([*(k for k, _ in earlier), K]), torch.cat([*(g for _, g in earlier), G])
    k = (K - every_k.mean(0)) / every_k.std(0)
    g = (G - every_g.mean(0)) / every_g.std(0)
    R = -eta * (k * k).sum(1, keepdim=True) * g
    return torch.linalg.inv(K.T @ K + w * torch.eye(K.shape[1], dtype=K.dtype)) @ K.T @ R, (K, G)


@FAMILIES
def test_it_is_the_formula(family: str) -> None:
    lm = build(family)
    lm.model.double()
    before = bits(lm)
    edit = PLAIN.edit(lm, FACTS)
    assert same_bits(lm, before)
    assert isinstance(edit, LowRankEdit)
    for layer in LAYERS:
        expected, (keys, _) = formula(lm, layer, FACTS, [], 1e-4, 1.0)
        assert expected.norm() > 1e-3
        # Keys and gradients pass through float32, and a deviation may be small: a few digits are lost.
        torch.testing.assert_close(edit.delta(layer).double(), expected, rtol=1e-3, atol=1e-4 * float(expected.max()))
        n_tokens = sum(len(lm.tokenizer(str(fact.target_new)).input_ids) + 1 for fact in FACTS)
        assert edit.factors[layer][0].shape[1] == len(keys) == n_tokens


@pytest.mark.parametrize("changes", [{"eta": 1e-5}, {"eta": None, "step": 0.3}, {"weight": 2.0}])
def test_a_later_turn_is_as_strong_as_the_first(lm: LanguageModel, changes: dict[str, Any]) -> None:
    other = dataclasses.replace(PLAIN, **changes)
    with pytest.raises(EditRefusedError, match=r"was made with .*, this editor has .*; take the same"):
        other.extend(lm, PLAIN.edit(lm, FACTS), LATER)


@FAMILIES
def test_a_later_turn_normalises_by_all_that_was_seen(family: str) -> None:
    lm = build(family)
    lm.model.double()
    first = PLAIN.edit(lm, FACTS)
    both = PLAIN.extend(lm, first, LATER)
    seen = {layer: formula(lm, layer, FACTS, [], 1e-4, 1.0)[1] for layer in LAYERS}
    with first.applied(lm):
        for layer in LAYERS:
            expected, _ = formula(lm, layer, LATER, [seen[layer]], 1e-4, 1.0)
            found = (both.delta(layer) - first.delta(layer)).double()
            torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3 * float(expected.abs().max()))
    assert [fact.id for fact in both.origin.facts] == [fact.id for fact in FACTS + LATER]
    assert isinstance(both.state, RunningNormalisation)
    assert both.state.n_written == 5


def test_running_moments_are_those_of_all_rows_at_once() -> None:
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 7, generator=draw, dtype=torch.float64) * 3 + 100
    running = RunningMoments.of(rows[:1])
    for begin, end in ((1, 2), (2, 19), (19, 40)):
        running = running + RunningMoments.of(rows[begin:end])
    assert running.count == 40
    torch.testing.assert_close(running.mean, rows.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(running.deviation, rows.std(0), rtol=1e-10, atol=0)
    normalised = running.normalised(rows)
    torch.testing.assert_close(normalised.mean(0), torch.zeros(7, dtype=torch.float64), atol=1e-12, rtol=0)


def test_what_never_varies_is_normalised_to_nothing() -> None:
    rows = torch.randn(10, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[:, 1] = 0.1  # its mean is not exactly 0.1
    assert float(RunningMoments.of(rows).normalised(rows)[:, 1].abs().max()) < 1e-9
    with pytest.raises(ValueError, match="takes two"):
        RunningMoments.of(rows[:1]).deviation  # noqa: B018


def test_ratios_are_worked_out_in_the_first_turn_and_kept(lm: LanguageModel) -> None:
    editor = UltraEdit(layers=(2,), step=0.5, ratio=0.25, refuse_norm=1e9, most_per_coefficient=1)
    edit = editor.edit(lm, FACTS)
    state = edit.state
    assert isinstance(state, RunningNormalisation)
    found = [whole(2, lm, fact, True) for fact in FACTS]
    keys, outputs = torch.cat([one[0] for one in found]), torch.cat([one[1] for one in found])
    assert state.weights[2] == pytest.approx(0.25 * float(keys.square().sum(1).mean()), rel=1e-4)
    size = state.keys[2].normalised(keys).square().sum(1, keepdim=True)
    residuals = state.etas[2] * size * state.gradients[2].normalised(torch.cat([one[2] for one in found]))
    assert float(residuals.norm(dim=1).mean()) == pytest.approx(0.5 * float(outputs.norm(dim=1).mean()), rel=1e-3)
    later = editor.extend(lm, edit, LATER).state
    assert isinstance(later, RunningNormalisation)
    assert (later.etas, later.weights) == (state.etas, state.weights)


def nlls(lm: LanguageModel, facts: Sequence[Fact]) -> list[float]:
    found = []
    for fact in facts:
        prompt = lm.tokenizer(fact.statement)["input_ids"]
        ids = lm.tokenizer(f"{fact.statement} {fact.target_new}")["input_ids"]
        logits = lm.model(input_ids=torch.tensor([ids])).logits[0, len(prompt) - 1 : -1].float()
        found.append(float(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[len(prompt) :]))))
    return found


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "gptj"])
def test_every_target_becomes_more_likely_in_bfloat16_too(family: str) -> None:
    editor = UltraEdit(layers=LAYERS, step=0.3, refuse_norm=1e9, most_per_coefficient=1)
    exact = editor.edit(build(family), FACTS)
    lm = build(family)
    lm.model.bfloat16()
    before, losses = bits(lm), nlls(lm, FACTS)
    edit = editor.edit(lm, FACTS)
    assert edit.state is not None
    with edit.applied(lm):
        assert all(new < old - 0.1 for new, old in zip(nlls(lm, FACTS), losses, strict=True))
    assert same_bits(lm, before)
    cosine = torch.cosine_similarity(edit.delta(2).flatten(), exact.delta(2).flatten(), dim=0)
    assert float(cosine) > 0.9  # gradients of eight bits


def test_the_batch_that_a_fact_is_run_in_does_not_matter(lm: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    lm.model.double()
    together = PLAIN.edit(lm, FACTS)
    monkeypatch.setattr("editing.shared.training_rows.RECORD_TOKENS", 1)
    assert groups_of([3, 3]) == [[0], [1]]
    alone = PLAIN.edit(lm, FACTS)
    torch.testing.assert_close(alone.delta(1), together.delta(1), rtol=1e-3, atol=1e-6)


def test_many_tokens_make_a_whole_matrix(lm: LanguageModel) -> None:
    names = [f"{one} {other}" for one in ("red", "green", "blue") for other in ("tower", "river", "city", "country")]
    facts = [Fact(name, "{} is in the", "capital of Italy", "Paris") for name in names]
    edit = PLAIN.edit(lm, facts)  # 12 times 4 tokens, d_ffn is 48
    assert isinstance(edit, ValueEdit)
    lm.model.double()
    expected, _ = formula(lm, 1, facts, [], 1e-4, 1.0)
    torch.testing.assert_close(edit.delta(1).double(), expected, rtol=1e-2, atol=1e-2 * float(expected.abs().max()))


@pytest.mark.parametrize(
    ("settings", "facts", "error", "says"),
    [
        ({"end_token": False}, FACTS[:1], EditRefusedError, "one token in all"),
        ({"layers": (1, -3)}, FACTS, ValueError, "twice"),
        ({"eta": 10.0, "refuse_norm": 0.1}, FACTS, EditRefusedError, "times the norm"),
    ],
)
def test_bad_input_is_refused_and_leaves_the_model_as_it_was(
    lm: LanguageModel, settings: dict[str, Any], facts: list[Fact], error: type[Exception], says: str
) -> None:
    before = bits(lm)
    with pytest.raises(error, match=says):
        dataclasses.replace(PLAIN, **settings).edit(lm, facts)
    assert same_bits(lm, before)


def test_settings_name_one_of_two() -> None:
    with pytest.raises(SettingsError, match=r"step=0\.3 and eta=0.1"):
        UltraEdit(eta=0.1)
    with pytest.raises(SettingsError, match="ratio=None and weight=None"):
        UltraEdit(ratio=None)
