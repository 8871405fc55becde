import contextlib

import pytest
import tiny
import torch
from batch_parts import last_logits
from by_hooks import entering
from malformed_parts import refused
from torch import Tensor

from corrigenda.errors import UnsupportedModelError
from corrigenda.forward.interventions import Apply, Read, Replace, intervene
from corrigenda.models.experts import MixtureMemory
from corrigenda.models.sites import Site

LAYER, N = 2, 4


def by_hand(family: str, module: torch.nn.Module, expert: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """One expert's coefficients and output in float64, from the fused parameters, as its paper has them."""
    x = x.double()
    if family == "gpt_oss":  # stored as (in, out), gates and keys in turn, with biases and clamps
        sums = x @ module.gate_up_proj[expert].double() + module.gate_up_proj_bias[expert].double()
        gate, up = sums[..., ::2].clamp(max=7.0), sums[..., 1::2].clamp(-7.0, 7.0)
        m = (up + 1) * gate * torch.sigmoid(1.702 * gate)
        return m, m @ module.down_proj[expert].double() + module.down_proj_bias[expert].double()
    gate, up = (x @ module.gate_up_proj[expert].double().T).chunk(2, dim=-1)
    m = torch.nn.functional.silu(gate) * up
    return m, m @ module.down_proj[expert].double().T


@pytest.mark.parametrize("family", tiny.MIXTURES)
@torch.no_grad()
def test_the_layer_is_the_weighted_sum_of_its_experts(family: str) -> None:
    lm = tiny.build(family)
    block = lm.architecture.blocks[LAYER]
    with contextlib.ExitStack() as stack:
        inputs = stack.enter_context(entering(block.mlp))
        each = [stack.enter_context(lm.memory(LAYER, expert).capture()) for expert in range(N)]
        router = stack.enter_context(intervene(lm, Site("router", LAYER), Read()))
        whole = stack.enter_context(lm.memory(LAYER).capture())
        last_logits(lm)
    total = torch.zeros_like(whole.output, dtype=torch.float64)
    for expert, seen in enumerate(each):
        coefficients, output = by_hand(family, block.mlp.experts, expert, inputs[0])
        asked = (seen.weights != 0)[..., None]
        torch.testing.assert_close(seen.coefficients.double(), coefficients * asked, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(seen.output.double(), output * asked, atol=1e-4, rtol=1e-4)
        assert torch.equal(seen.weights, router.value[..., expert])
        memory = lm.memory(LAYER, expert)
        torch.testing.assert_close(seen.output[asked[..., 0]], memory.read(seen.coefficients[asked[..., 0]]))
        total += seen.weights.double()[..., None] * output
    assert router.value.shape == (3, 6, N)
    assert ((router.value != 0).sum(-1) == 2).all()
    assert sum(bool(seen.weights.any()) for seen in each) > 2  # the router does choose
    with contextlib.suppress(UnsupportedModelError), lm.memory(LAYER, "shared").capture() as shared:
        last_logits(lm)
        gate = torch.sigmoid(block.mlp.shared_expert_gate(inputs[0])) if family == "qwen2_moe" else 1.0
        total += gate * shared.output.double()
    torch.testing.assert_close(whole.output.double(), total, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", tiny.MIXTURES)
@torch.no_grad()
def test_views_and_writing(family: str) -> None:
    lm = tiny.build(family)
    memory = lm.memory(LAYER, 1)
    assert memory.keys.shape == memory.values.shape == memory.gates.shape == (memory.d_ffn, tiny.WIDTH)
    both = lm.architecture.blocks[LAYER].mlp.experts.gate_up_proj[1]
    gates, keys = (both[:, ::2].T, both[:, 1::2].T) if family == "gpt_oss" else both.chunk(2)
    assert torch.equal(memory.gates, gates)
    assert torch.equal(memory.keys, keys)
    fused = lm.architecture.blocks[LAYER].mlp.experts.down_proj
    before = fused.clone()
    delta = torch.randn(memory.d_ffn, tiny.WIDTH, generator=torch.Generator().manual_seed(0)) * 0.1
    with memory.capture() as seen:
        plain = last_logits(lm)
    with memory.add(seen.coefficients @ delta):
        added = last_logits(lm)
    memory.add_to_values(delta)
    written = last_logits(lm)
    torch.testing.assert_close(added, written, atol=1e-3, rtol=1e-3)
    assert (written - plain).abs().max() > 1e-3
    assert torch.equal(fused[1], before[1] + (delta if memory.transposed else delta.T))
    assert torch.equal(fused[[0, 2, 3]], before[[0, 2, 3]])


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
@torch.no_grad()
def test_coefficients_and_outputs_are_changed_in_order(family: str) -> None:
    """Scaled coefficients show in the output that is read, and in the logits as scaled values would."""
    lm = tiny.build(family)
    memory = lm.memory(LAYER, 0)
    with memory.capture() as plain:
        unchanged = last_logits(lm)
    with memory.scale(3.0), memory.capture() as scaled:
        changed = last_logits(lm)
    asked = plain.weights != 0
    offset = 0 if memory.bias is None else memory.bias
    torch.testing.assert_close(scaled.output[asked] - offset, 3 * (plain.output[asked] - offset), atol=1e-4, rtol=1e-4)
    memory.values.mul_(3.0)
    torch.testing.assert_close(changed, last_logits(lm), atol=1e-3, rtol=1e-3)
    memory.values.div_(3.0)
    assert (changed - unchanged).abs().max() > 1e-3
    with memory.replace(torch.zeros(tiny.WIDTH)), memory.add(torch.ones(tiny.WIDTH)), memory.capture() as replaced:
        last_logits(lm)
    assert torch.equal(replaced.output, torch.ones_like(replaced.output) * asked[..., None])
    torch.testing.assert_close(last_logits(lm), unchanged)
    assert lm.architecture.require_experts(LAYER).choice is None


@pytest.mark.parametrize("family", tiny.MIXTURES)
@torch.no_grad()
def test_the_router_can_be_changed(family: str) -> None:
    lm = tiny.build(family)
    plain = last_logits(lm)
    router = Site("router", LAYER)
    with intervene(lm, router, Read()) as seen, lm.memory(LAYER).capture() as whole:
        last_logits(lm)
    with intervene(lm, router, Apply(lambda weights: weights.clone())):
        torch.testing.assert_close(last_logits(lm), plain, atol=1e-3, rtol=1e-3)
    without = seen.value.clone()
    without[..., 0] = 0
    with (
        intervene(lm, router, Replace(without)),
        lm.memory(LAYER).capture() as left,
        lm.memory(LAYER, 0).capture() as no,
    ):
        last_logits(lm)
    assert not no.weights.any()
    with lm.memory(LAYER, 0).capture() as first:
        last_logits(lm)
    torch.testing.assert_close(
        whole.output - left.output, first.weights[..., None] * first.output, atol=1e-4, rtol=1e-4
    )


def test_an_expert_without_coefficients_still_answers_its_bias() -> None:
    lm = tiny.build("gpt_oss")
    whole = lm.memory(LAYER)
    assert isinstance(whole, MixtureMemory)
    key = torch.zeros(whole.block(N - 1).stop + N + tiny.WIDTH)
    key[whole.block(N - 1).stop + 1] = 0.25
    bias = lm.memory(LAYER, 1).bias
    assert bias.any()
    assert torch.equal(whole.read(key), 0.25 * bias)


def test_what_a_mixture_has_not() -> None:
    lm = tiny.build("mixtral")
    whole = lm.memory(LAYER)
    with pytest.raises(UnsupportedModelError, match=r"layer 2 is a mixture of 4 experts.*lm.memory\(2, expert=0\)"):
        _ = whole.values
    with whole.capture() as seen:
        last_logits(lm)
    with pytest.raises(UnsupportedModelError, match="mixture of 4 experts"):
        _ = seen.coefficients
    refused(IndexError, "expert 4: layer 2 has experts 0 to 3", lm.memory, LAYER, 4)
    refused(UnsupportedModelError, "no shared expert", lm.memory, LAYER, "shared")
    refused(UnsupportedModelError, r"layer 1 of Llama.* is no mixture of experts", tiny.build("llama").memory, 1, 0)
    refused(ValueError, "the site 'attention' has no experts, got expert=1", Site, "attention", 1, 1)
    deepseek = tiny.build("deepseek_v3")
    assert deepseek.memory(0).values.shape == (48, tiny.WIDTH)  # its first layers are plain ones
    assert deepseek.memory(LAYER, "shared").values.shape == (24, tiny.WIDTH)
