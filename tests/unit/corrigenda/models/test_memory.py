import pytest
import tiny
import torch
from batch_parts import a_batch, last_logits
from by_hooks import entering

from corrigenda.forward.recording import forward_logits

LAYER = 2


@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_output_is_coefficients_times_values(family: str) -> None:
    """FFN(x) = m V + b, by hand from the views, and m from the keys (and the gate)."""
    lm = tiny.build(family)
    memory = lm.memory(LAYER)
    key_module, value_module = lm.architecture.keys(LAYER), lm.architecture.values(LAYER)
    with entering(key_module) as inputs, memory.capture() as seen:
        forward_logits(lm, a_batch(lm))
    bias = getattr(value_module, "bias", None)
    expected = seen.coefficients @ memory.values + (0 if bias is None else bias)
    torch.testing.assert_close(seen.output, expected, atol=1e-4, rtol=1e-4)

    x = inputs[0].view(*seen.output.shape[:2], -1)
    key_bias = getattr(key_module, "bias", None)
    sums = x @ memory.keys.T + (0 if key_bias is None else key_bias)
    if memory.gates is not None:
        activation = torch.nn.functional.gelu if "gemma" in family else torch.nn.functional.silu
        options = {"approximate": "tanh"} if "gemma" in family else {}
        torch.testing.assert_close(
            seen.coefficients, activation(x @ memory.gates.T, **options) * sums, atol=1e-3, rtol=1e-3
        )
    elif family == "opt":
        torch.testing.assert_close(seen.coefficients, sums.relu(), atol=1e-4, rtol=1e-4)
    else:
        torch.testing.assert_close(seen.coefficients, torch.nn.functional.gelu(sums), atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("family", [*tiny.CONFIGS, *tiny.ENCODER_DECODERS])
def test_a_value_delta_is_written_and_equals_adding_its_output(family: str) -> None:
    lm = tiny.build(family)
    memory, draw = lm.memory(LAYER), torch.Generator().manual_seed(0)
    before, delta = memory.weight.clone(), torch.randn(memory.d_ffn, memory.d_model, generator=draw) * 0.1
    with memory.capture() as seen:
        unchanged = last_logits(lm)
    with memory.add(seen.coefficients @ delta):
        added = last_logits(lm)
    memory.add_to_values(delta)
    written = last_logits(lm)
    torch.testing.assert_close(added, written, atol=1e-3, rtol=1e-3)
    assert (written - unchanged).abs().max() > 1e-2
    assert torch.equal(memory.weight, before + (delta if memory.transposed else delta.T))
    assert memory.transposed == (family == "gpt2")
    assert memory.keys.shape == memory.values.shape == (memory.d_ffn, tiny.WIDTH)


@pytest.mark.parametrize("family", ["llama", "opt", "gpt2"])
def test_scaling_some_neurons_at_some_positions(family: str) -> None:
    lm = tiny.build(family)
    memory = lm.memory(LAYER)
    mask = torch.zeros(3, 6, dtype=torch.bool)
    mask[0, 1] = mask[2, 5] = True
    with memory.capture() as plain:
        last_logits(lm)
    neurons = plain.coefficients[0, 1].abs().topk(2).indices  # with a ReLU most of the others are zero anyway
    factor = torch.tensor([[2.0, 0.0], [5.0, 1.0]])  # one row a chosen position, one column a neuron
    with memory.scale(factor, mask, neurons), memory.capture() as scaled:
        last_logits(lm)
    expected = plain.coefficients.clone()
    expected[0, 1, neurons] *= factor[0]
    expected[2, 5, neurons] *= factor[1]
    assert torch.equal(scaled.coefficients, expected)
    added = (expected - plain.coefficients) @ memory.values
    torch.testing.assert_close(scaled.output, plain.output + added, atol=1e-4, rtol=1e-4)
    assert not torch.equal(scaled.coefficients, plain.coefficients)


@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_replace_at_chosen_positions(family: str) -> None:
    lm = tiny.build(family)
    memory = lm.memory(LAYER)
    at = torch.tensor([4, 0, 3])
    value = torch.arange(3.0)[:, None].expand(3, tiny.WIDTH)
    with memory.capture() as plain:
        last_logits(lm)
    with memory.replace(value, at), memory.capture() as replaced:
        last_logits(lm)
    expected = plain.output.clone()
    expected[torch.arange(3), at] = value
    assert torch.equal(replaced.output, expected)


@pytest.mark.parametrize("family", ["llama", "falcon"])
def test_what_is_put_in_is_not_written_to(family: str) -> None:
    lm = tiny.build(family)
    output = torch.randn(3, 6, tiny.WIDTH, generator=torch.Generator().manual_seed(0), requires_grad=True)
    before = output.detach().clone()
    with lm.memory(LAYER).replace(output):
        last_logits(lm).sum().backward()
    assert torch.equal(output, before)
    assert output.grad is not None
    assert bool(output.grad.any())


def test_wrong_shape() -> None:
    memory = tiny.build("gpt2").memory(0)
    with pytest.raises(ValueError, match=r"\(2, 2\).*layer 0.*\(128, 32\)"):
        memory.add_to_values(torch.zeros(2, 2))
