import math

import pytest
import tiny
import torch
from by_hooks import entering
from malformed_parts import refused
from torch import Tensor

from corrigenda import LanguageModel, UnsupportedModelError
from corrigenda.forward.recording import forward_logits
from corrigenda.knowledge.cross_attention import CrossAttention, Match
from corrigenda.knowledge.retrieval import answer_with, measure_retrieval, nearest_entries
from corrigenda.knowledge.unfolding import unfold

LAYERS = (1, 3)


def seen(lm: LanguageModel, layer: int) -> tuple[Tensor, Tensor]:
    """What enters a layer's keys in a real forward, and what leaves its values."""
    with entering(lm.architecture.keys(layer)) as inputs, lm.memory(layer).capture() as found:
        forward_logits(lm, lm.batch([[5, 6, 7, 8, 9], [10, 11, 12, 13, 14]]))
    return inputs[0].reshape(found.output.shape).detach(), found.output.detach()


def off(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


def an_attention(gated: bool, d_model: int = 5, d_k: int = 3, d_e: int = 7, n: int = 11) -> CrossAttention:
    draw = torch.Generator().manual_seed(3)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    matches = [Match(matrix(d_model, d_k), matrix(d_e, d_k), matrix(d_e)) for _ in range(1 + gated)]
    return CrossAttention(matrix(n, d_e), matches[0], matrix(d_e, d_model), matrix(d_model), torch.relu, *matches[1:])


@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_unfolded_and_folded_equal_the_ffn(family: str) -> None:
    lm = tiny.build(family)
    unfolded = unfold(lm, LAYERS)
    assert list(unfolded) == list(LAYERS)
    assert unfolded[1].entries is unfolded[3].entries
    for layer, attention in unfolded.items():
        hidden, output = seen(lm, layer)
        assert off(attention(hidden), output) < 1e-5
        assert off(attention.fold()(hidden), output) < 1e-5
        folded, memory = attention.fold(), lm.memory(layer)
        torch.testing.assert_close(folded.values, memory.values, rtol=0, atol=0)
        torch.testing.assert_close(folded.first[0].T, memory.keys if memory.gates is None else memory.gates)
        if memory.gates is not None:
            torch.testing.assert_close(folded.factor[0].T, memory.keys)


def test_a_layer_with_fewer_neurons_shares_the_entries(lm: LanguageModel) -> None:
    mlp = lm.architecture.block(1).mlp
    for name in ("up_proj", "gate_proj", "down_proj"):
        weight = getattr(mlp, name).weight
        weight = weight[:, :20] if name == "down_proj" else weight[:20]
        narrow = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        narrow.weight = torch.nn.Parameter(weight)
        setattr(mlp, name, narrow)
    unfolded = unfold(lm, LAYERS)
    for layer in LAYERS:
        hidden, output = seen(lm, layer)
        assert off(unfolded[layer](hidden), output) < 1e-5


def test_thresholds_of_a_gated_ffn_with_biases(lm: LanguageModel) -> None:
    mlp, draw = lm.architecture.block(2).mlp, torch.Generator().manual_seed(1)
    for module in (mlp.up_proj, mlp.gate_proj, mlp.down_proj):
        module.bias = torch.nn.Parameter(torch.randn(module.out_features, generator=draw))
    hidden = torch.randn(9, tiny.WIDTH, generator=draw)
    attention = unfold(lm, [2])[2]
    with torch.no_grad():
        assert off(attention(hidden), mlp(hidden)) < 1e-5
        assert off(attention.fold()(hidden), mlp(hidden)) < 1e-5


@pytest.mark.parametrize("gated", [False, True])
def test_the_formula_entry_by_entry(gated: bool) -> None:
    attention = an_attention(gated)
    hidden = torch.randn(4, 5, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    expected = []
    for h in hidden:
        answer = attention.bias
        for e in attention.entries:
            scores = [
                float((h @ match.query) @ (e @ match.key)) / math.sqrt(3) + float(e @ match.threshold)
                for match in (attention.match, attention.factor)
                if match is not None
            ]
            answer = answer + max(scores[0], 0.0) * math.prod(scores[1:]) * (e @ attention.value)
        expected.append(answer)
    torch.testing.assert_close(attention(hidden), torch.stack(expected))
    torch.testing.assert_close(attention.fold()(hidden), torch.stack(expected))


@pytest.mark.parametrize("gated", [False, True])
def test_a_part_of_the_entries_answers(gated: bool) -> None:
    attention = an_attention(gated)
    ffn = attention.fold()
    hidden = torch.randn(70, 5, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    chosen = nearest_entries(ffn, hidden, 4)
    assert torch.equal(chosen, ffn.scores(hidden).argsort(dim=1, descending=True)[:, :4])
    mask = torch.zeros(70, 11, dtype=torch.float64).scatter(1, chosen, 1.0)
    expected = (attention.coefficients(hidden) * mask) @ ffn.values + attention.bias
    torch.testing.assert_close(answer_with(ffn, hidden, chosen), expected)


def test_error_falls_to_nothing_and_costs_are_counted() -> None:
    ffn = an_attention(gated=False).fold()
    hidden = torch.randn(6, 5, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    by_score = measure_retrieval(ffn, hidden, [1, 4, 11], search=10)
    assert by_score[-1].error < 1e-12 < by_score[1].error < by_score[0].error
    # 6 queries, width 5, 2 matrices; 11 entries, or 4 and a search of 10 multiplications each.
    assert (by_score[1].full, by_score[1].part, by_score[1].search) == (660, 300, 60)
    assert by_score[1].ratio == 2.2
    assert measure_retrieval(ffn, hidden, [4])[0].search == 6 * 11 * 5
    # ReLU leaves only entries above zero: once all of these are seen, more change nothing.
    most = int((ffn.scores(hidden) > 0).sum(1).max())
    assert measure_retrieval(ffn, hidden, [most])[0].error < 1e-12

    # Scores alone say little of a gated layer's answers.
    gated = an_attention(gated=True).fold()
    [ranked], [best] = measure_retrieval(gated, hidden, [3]), measure_retrieval(gated, hidden, [3], by="contribution")
    assert best.error < ranked.error
    assert ranked.full == 990


def test_what_cannot_be_is_said() -> None:
    attention = an_attention(gated=False)
    ffn, hidden = attention.fold(), torch.ones(2, 5, dtype=torch.float64)
    refused(ValueError, "k=12 is more than the 11 entries", nearest_entries, ffn, hidden, 12)
    refused(ValueError, "k=0 must be at least 1", nearest_entries, ffn, hidden, 0)
    refused(ValueError, "by='norm' must be one of score, contribution", nearest_entries, ffn, hidden, 1, by="norm")
    with pytest.raises(ValueError, match="value reads entries of 6 numbers, and these have 7"):
        CrossAttention(attention.entries, attention.match, attention.value[:6], None, torch.relu)
    lm = tiny.build("gpt2")
    refused(ValueError, "at least one layer", unfold, lm, [])
    refused(IndexError, "layer 9", unfold, lm, [9])
    lm.architecture.block(1).mlp.act = torch.nn.Linear(2, 2)
    refused(UnsupportedModelError, r"activation of layer 1.*none", unfold, lm, [1])
