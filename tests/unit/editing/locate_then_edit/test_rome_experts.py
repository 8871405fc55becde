"""ROME in a mixture of experts: it writes to the experts that answer the subject, and the layer answers v*."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch

from corrigenda import Edit, Fact, LanguageModel
from corrigenda.edits.experts import ExpertsEdit
from corrigenda.errors import UnsupportedModelError
from corrigenda.forward.recording import forward_logits
from corrigenda.models.experts import MixtureMemory
from corrigenda.moments.experts import ExpertMoments
from corrigenda.moments.text import Text
from editing import Rome, UltraEdit, ValueSettings

LAYER = 2
FACT = Fact("the Eiffel tower", "{} is located in the city of", "Rome", "Paris")
ROME = Rome(
    layer=LAYER,
    prefixes=("",),
    value=ValueSettings(steps=15, lr=0.3, weight_decay=0.0, kl_factor=0.0),
    text=Text(tokens=200, length=20),
    ridge=1e-3,
    flag_norm=1e9,
    refuse_norm=1e9,
)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))


def probability(lm: LanguageModel) -> float:
    batch = lm.batch([lm.tokens(FACT.prompt.format(FACT.subject))])
    return float(forward_logits(lm, batch, batch.lengths - 1).softmax(-1)[0, lm.tokens("Rome")[0]])


def subject(lm: LanguageModel) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """At the subject's last token: the layer's key, its output, and the experts' weights."""
    batch = lm.batch([lm.tokens(FACT.prompt.format(FACT.subject))])
    at = torch.tensor([2])
    memory = lm.memory(LAYER)
    with memory.capture_key(at) as seen:
        forward_logits(lm, batch)
    key = seen.coefficients.detach()
    ends = memory.block(memory.n_experts - 1).stop
    return key[0], seen.output.detach()[0], key[0, ends : ends + memory.n_experts]


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss", "qwen2_moe", "deepseek_v3"])
def test_it_writes_to_the_experts_that_answer(family: str, tmp_path: Path) -> None:
    lm = tiny.build(family, scale=4.0)
    before = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    plain = probability(lm)
    key, output, weights = subject(lm)
    torch.testing.assert_close(lm.memory(LAYER).read(key), output, atol=1e-4, rtol=1e-4)
    edit = ROME.edit(lm, [FACT])
    assert all(torch.equal(before[name], tensor) for name, tensor in lm.model.state_dict().items())
    assert isinstance(edit, ExpertsEdit)
    chosen = weights.nonzero()[:, 0].tolist()
    assert sorted(edit.factors) == [(LAYER, expert) for expert in chosen]
    assert len(chosen) == 2
    with edit.applied(lm):
        assert probability(lm) > plain  # a random model is hard to move; what was asked for is checked below
        changed = [name for name, tensor in lm.model.state_dict().items() if not torch.equal(tensor, before[name])]
        assert changed == [lm.memory(LAYER).path]
        # The answer moves by the weighted sum of what each expert's change says: what ROME asked for.
        _, now, _ = subject(lm)
        moved = sum(key[lm.memory(LAYER).block(e)] @ edit.delta((LAYER, e)) for e in chosen)
        torch.testing.assert_close(now - output, moved, atol=1e-3, rtol=1e-3)
        with ROME.edit(lm, [FACT]).applied(lm):
            pass
        other = ExpertsEdit(edit.origin, {(LAYER, 0): edit.factors[LAYER, chosen[0]]})
        other.apply(lm)
    other.revert(lm)
    assert all(torch.equal(before[name], tensor) for name, tensor in lm.model.state_dict().items())
    edit.save(tmp_path / "edit")
    again = Edit.load(tmp_path / "edit")
    assert isinstance(again, ExpertsEdit)
    assert all(torch.equal(again.delta(place), edit.delta(place)) for place in edit.factors)
    assert "expert" in again.describe()


def test_the_update_is_the_smallest_one_that_answers() -> None:
    """Against the least-squares problem with all experts' values in one matrix and a block-diagonal C, in float64."""
    lm = tiny.build("mixtral", scale=4.0)
    edit = ROME.edit(lm, [FACT])
    memory = lm.memory(LAYER)
    assert isinstance(memory, MixtureMemory)
    key, _, weights = subject(lm)
    width = memory.block(memory.n_experts - 1).stop
    chosen = weights.nonzero()[:, 0].tolist()
    moments = dict(ExpertMoments(lm, LAYER, ROME.text)._moments(chosen))
    inverse = torch.zeros(width, width, dtype=torch.float64)
    for expert in chosen:
        block = memory.block(expert)
        inverse[block, block] = torch.linalg.inv(moments[expert].matrix + 1e-3 * torch.eye(48, dtype=torch.float64))
    k = key[:width].double()
    total = torch.cat(
        [edit.delta((LAYER, e)) if e in chosen else torch.zeros(48, tiny.WIDTH) for e in range(memory.n_experts)]
    ).double()
    residual = k @ total
    expected = (inverse @ k)[:, None] * residual / (k @ inverse @ k)
    torch.testing.assert_close(total, expected, atol=1e-4, rtol=1e-3)


def test_a_moment_is_of_weighted_coefficients() -> None:
    """E[w^2 m m^T] over all tokens of the text, by hand."""
    lm = tiny.build("mixtral")
    found = dict(ExpertMoments(lm, LAYER, ROME.text)._moments([1]))[1]
    total, tokens = torch.zeros(48, 48, dtype=torch.float64), 0
    for ids in ROME.text.sequences(lm):
        with lm.memory(LAYER, 1).capture() as seen:
            lm.model(input_ids=torch.tensor([ids]))
        rows = (seen.weights[..., None] * seen.coefficients)[0].double()
        total, tokens = total + rows.T @ rows, tokens + len(ids)
    assert found.tokens == tokens
    torch.testing.assert_close(found.matrix, total / tokens, atol=1e-5, rtol=1e-4)


def test_other_editors_say_that_they_cannot() -> None:
    lm = tiny.build("mixtral")
    with pytest.raises(UnsupportedModelError, match=r"mixture of 4 experts.*MEMIT and EMMET write into those"):
        UltraEdit(layers=(LAYER,)).edit(lm, [FACT])
