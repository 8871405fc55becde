import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from editors_parts import bits, same_bits
from torch import Tensor

from corrigenda import Edit, Fact, LanguageModel
from corrigenda.edits.experts import ExpertsEdit
from corrigenda.errors import UnsupportedModelError
from corrigenda.forward.recording import forward_logits
from corrigenda.models.experts import MixtureMemory
from corrigenda.moments.experts import ExpertMoments, tokens_for
from corrigenda.moments.text import Text
from editing import AlphaEdit, Emmet, Memit, Rome, UltraEdit, ValueSettings
from editing.locate_then_edit.closed_form import ClosedForm
from editing.locate_then_edit.prompt_run import run_prompts
from editing.locate_then_edit.prompts import build_prompts
from editing.locate_then_edit.targets import old_values, solve_target_values

LAYER = 2
VALUE = ValueSettings(steps=15, lr=0.3, weight_decay=0.0, kl_factor=0.0)
FACTS = [
    Fact("the Eiffel tower", "{} is located in the city of", "Rome", "Paris", id="tower"),
    Fact("Danielle Darrieux", "the mother tongue of {} is", "English", "French", id="tongue"),
    Fact("Big Ben", "in the city with {} Thomas plays the", "guitar", "piano", id="plays"),
]
COMMON: dict[str, Any] = {
    "layers": (LAYER,),
    "site": "ffn",
    "prefixes": ("",),
    "value": VALUE,
    "text": Text(tokens=400, length=20),
    "tokens_per_coefficient": 0,
    "ridge": 1e-2,
    "refuse_norm": 1e9,
    "most_per_coefficient": 1.0,
    "alike": 1.0,
}
MEMIT = Memit(ratio=0.1, **COMMON)
EMMET = Emmet(eps=0.1, **COMMON)
ROME = Rome(
    layer=LAYER,
    prefixes=("",),
    value=VALUE,
    text=Text(tokens=200, length=20),
    tokens_per_coefficient=0,
    ridge=1e-3,
    flag_norm=1e9,
    refuse_norm=1e9,
)
pytestmark = pytest.mark.filterwarnings("ignore:.*rank-deficient")


def build(family: str) -> LanguageModel:
    return tiny.build(family, scale=4.0)


def width_of(lm: LanguageModel) -> int:
    memory = lm.memory(LAYER)
    assert isinstance(memory, MixtureMemory)
    return memory.n_experts * lm.memory(LAYER, 0).d_ffn


def problem(lm: LanguageModel, facts: Sequence[Fact]) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and residuals of whole forwards, and C with a block for each expert summed over the text, in float64."""
    run = run_prompts(lm, build_prompts(lm, facts, ("",), VALUE.kl_prompt, VALUE.kl_position), [LAYER])
    width, d_ffn = width_of(lm), lm.memory(LAYER, 0).d_ffn
    keys = run.keys(LAYER)[run.prompts.rewriting, :width].double()
    residuals = solve_target_values(lm, run, LAYER, VALUE, "ffn").values - old_values(run, LAYER, "ffn")
    C, tokens = torch.zeros(width, width, dtype=torch.float64), 0
    for ids in MEMIT.text.sequences(lm):
        tokens += len(ids)
        for expert in range(width // d_ffn):
            with lm.memory(LAYER, expert).capture() as seen:
                lm.model(input_ids=torch.tensor([ids]))
            rows = seen.shares[0].double()  # w m
            C[expert * d_ffn :][:d_ffn, expert * d_ffn :][:, :d_ffn] += rows.T @ rows
    return keys, residuals.double(), C / tokens


def by_hand(lm: LanguageModel, editor: ClosedForm, facts: Sequence[Fact]) -> Tensor:
    """The update of the values of all experts one under another, dense."""
    K, R, C = problem(lm, facts)
    ridge = editor.ridge * C.trace() / len(C) * torch.eye(len(C), dtype=torch.float64)
    if isinstance(editor, Emmet):
        gram = K @ torch.linalg.solve(C + ridge, K.T)
        gram = gram + editor.eps * gram.diagonal().mean() * torch.eye(len(K), dtype=torch.float64)
        return torch.linalg.solve(C + ridge, K.T) @ torch.linalg.solve(gram, R)
    assert isinstance(editor, Memit)
    assert editor.ratio is not None
    weight = editor.ratio * 100 * K.square().sum(1).mean() / C.trace()
    return torch.linalg.solve(weight * (C + ridge) + K.T @ K, K.T @ R)


def whole(lm: LanguageModel, edit: Edit) -> Tensor:
    """An edit's change of the values of all experts, one under another."""
    assert isinstance(edit, ExpertsEdit)
    zeros = torch.zeros(lm.memory(LAYER, 0).values.shape)
    n_experts = width_of(lm) // len(zeros)
    return torch.cat([edit.delta((LAYER, e)) if (LAYER, e) in edit.factors else zeros for e in range(n_experts)])


def gap(lm: LanguageModel, fact: Fact) -> float:
    """log P(new) - log P(true)."""
    batch = lm.batch([lm.tokens(fact.statement)])
    said = forward_logits(lm, batch, batch.lengths - 1).log_softmax(-1)[0]
    assert fact.target_true
    return float(said[lm.tokens(fact.target_new or "")[0]] - said[lm.tokens(fact.target_true)[0]])


@pytest.mark.parametrize(("family", "editor"), [*((family, MEMIT) for family in tiny.MIXTURES), ("mixtral", EMMET)])
def test_the_update_is_that_of_the_formula(family: str, editor: ClosedForm) -> None:
    lm = build(family)
    before = bits(lm)
    edit: Any = editor.edit(lm, FACTS)
    assert same_bits(lm, before)
    expected = by_hand(lm, editor, FACTS)
    # Keys and targets are found in float32, by forwards of another shape; the solution is of C with a ridge of 1 %.
    error = (whole(lm, edit).double() - expected).norm() / expected.norm()
    assert float(error) < 2e-3
    written = {expert for _, expert in edit.factors}
    blocks = expected.split(lm.memory(LAYER, 0).d_ffn)
    assert written == {expert for expert, block in enumerate(blocks) if block.any()}


@pytest.mark.parametrize("editor", [ROME, MEMIT], ids=lambda editor: editor.name)
@pytest.mark.parametrize("family", ["mixtral", "gpt_oss", "qwen2_moe", "deepseek_v3"])
def test_it_writes_to_the_experts_that_answer(family: str, editor: Any, tmp_path: Path) -> None:
    lm, facts = build(family), FACTS[:1] if editor is ROME else FACTS
    before, plain = bits(lm), sum(gap(lm, fact) for fact in facts)
    key, output, weights = subject(lm)
    torch.testing.assert_close(lm.memory(LAYER).read(key), output, atol=1e-4, rtol=1e-4)
    edit = editor.edit(lm, facts)
    assert same_bits(lm, before)
    chosen = weights.nonzero()[:, 0].tolist()
    assert len(chosen) == 2
    places = [(LAYER, expert) for expert in chosen]
    assert sorted(edit.factors) == places if editor is ROME else edit.factors.keys() >= set(places)
    with edit.applied(lm):
        assert sum(gap(lm, fact) for fact in facts) > plain
        changed = [name for name, tensor in lm.model.state_dict().items() if not torch.equal(tensor, before[name])]
        assert changed == [lm.memory(LAYER).path]
        # The answer moves by the weighted sum of what each expert's change says.
        moved = sum(key[lm.memory(LAYER).block(e)] @ edit.delta((LAYER, e)) for e in chosen)
        torch.testing.assert_close(subject(lm)[1] - output, moved, atol=1e-3, rtol=1e-3)
        other = ExpertsEdit(edit.origin, {(LAYER, 0): edit.factors[LAYER, chosen[0]]})
        other.apply(lm)
    other.revert(lm)
    assert same_bits(lm, before)
    edit.save(tmp_path / "edit")
    again = Edit.load(tmp_path / "edit")
    assert torch.equal(whole(lm, again), whole(lm, edit))
    assert "expert" in again.describe()


def subject(lm: LanguageModel) -> tuple[Tensor, Tensor, Tensor]:
    """At the first fact's subject's last token: the layer's key, its output, and the experts' weights."""
    memory = lm.memory(LAYER)
    with memory.capture_key(torch.tensor([2])) as seen:
        forward_logits(lm, lm.batch([lm.tokens(FACTS[0].statement)]))
    key = seen.coefficients.detach()[0]
    ends = memory.block(memory.n_experts - 1).stop
    return key, seen.output.detach()[0], key[ends : ends + memory.n_experts]


def test_romes_update_is_the_smallest_one_that_answers() -> None:
    """Against the least-squares problem with all experts' values in one matrix and a block-diagonal C, in float64."""
    lm = build("mixtral")
    memory, (key, _, weights) = lm.memory(LAYER), subject(lm)
    chosen, width = weights.nonzero()[:, 0].tolist(), width_of(lm)
    inverse = torch.zeros(width, width, dtype=torch.float64)
    for expert, moment in ExpertMoments(lm, LAYER, ROME.text)._moments(chosen):
        block = memory.block(expert)
        inverse[block, block] = torch.linalg.inv(moment.matrix + 1e-3 * torch.eye(48, dtype=torch.float64))
    k = key[:width].double()
    edit = ROME.edit(lm, FACTS[:1])
    total = whole(lm, edit).double()
    expected = (inverse @ k)[:, None] * (k @ total) / (k @ inverse @ k)
    torch.testing.assert_close(total, expected, atol=1e-4, rtol=1e-3)


def test_several_layers_are_written_from_the_bottom() -> None:
    lm = build("mixtral")
    before = bits(lm)
    two = dataclasses.replace(MEMIT, layers=(1, 2), site="block")
    edit: Any = two.edit(lm, FACTS)
    assert {layer for layer, _ in edit.factors} == {1, 2}
    assert same_bits(lm, before)
    plain = [gap(lm, fact) for fact in FACTS]
    with edit.applied(lm):
        assert sum(gap(lm, fact) for fact in FACTS) > sum(plain)
    assert same_bits(lm, before)


def test_it_goes_on_from_its_own_edit() -> None:
    lm = build("mixtral")
    before = bits(lm)
    editor = dataclasses.replace(MEMIT, ratio=None, weight=3.0, solve_on="unedited")
    first = editor.edit(lm, FACTS[:2])
    both = editor.extend(lm, first, FACTS[2:])
    assert same_bits(lm, before)
    at_once = editor.edit(lm, FACTS)
    torch.testing.assert_close(whole(lm, both), whole(lm, at_once), atol=1e-4, rtol=1e-2)
    with both.applied(lm):
        assert not same_bits(lm, before)
    assert same_bits(lm, before)


def test_more_facts_than_half_of_the_coefficients() -> None:
    lm = build("qwen3_moe")
    words = tiny.WORDS[28:76]
    facts = [Fact(f"{word} tower", "the {} is", "Rome", "Paris", id=word) for word in words]
    assert 2 * len(facts) >= width_of(lm)
    edit = MEMIT.edit(lm, facts)
    expected = by_hand(lm, MEMIT, facts)
    assert float((whole(lm, edit).double() - expected).norm() / expected.norm()) < 2e-3


def test_the_text_is_as_long_as_the_experts_need() -> None:
    lm = build("mixtral")
    assert tokens_for(lm.memory(LAYER), 8) == 2 * 8 * 48
    assert tokens_for(tiny.build("llama").memory(LAYER), 8) == 8 * 48


def test_all_moments_together_are_block_diagonal() -> None:
    """E[w^2 m m^T] over all tokens of the text."""
    lm = build("mixtral")
    moment = ExpertMoments(lm, LAYER, MEMIT.text)
    _, _, C = problem(lm, FACTS[:1])
    torch.testing.assert_close(moment.matrix, C, atol=1e-5, rtol=1e-4)
    assert moment.trace == pytest.approx(float(C.trace()), rel=1e-4)
    assert moment.scale == pytest.approx(float(C.trace()) / len(C), rel=1e-4)
    assert moment.tokens == 400


def test_what_cannot_be_done_is_said() -> None:
    lm = build("deepseek_v3")  # layers 0 and 1 are plain
    with pytest.raises(UnsupportedModelError, match=r"alphaedit: layer 2 of .* is a mixture.*take editor=memit"):
        AlphaEdit(**COMMON).edit(lm, FACTS)
    with pytest.raises(UnsupportedModelError, match=r"layers 1, 2 .* some are mixtures of experts \(2\) and others"):
        dataclasses.replace(MEMIT, layers=(1, 2)).edit(lm, FACTS)
    with pytest.raises(UnsupportedModelError, match="not one key-value memory"):
        MEMIT.keys_and_residuals(lm, FACTS)
    with pytest.raises(UnsupportedModelError, match=r"mixture of 4 experts.*MEMIT and EMMET write into those"):
        UltraEdit(layers=(LAYER,)).edit(lm, FACTS)
