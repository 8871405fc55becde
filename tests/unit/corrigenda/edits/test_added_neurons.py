"""Added neurons: the layer's own f, what is added, and a network that is as wide; by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch
from edits_parts import added_neurons, drawn, low_rank, origin
from malformed_parts import refused
from side_memory_parts import LAYER, PROMPTS
from torch import Tensor

from corrigenda import AddedNeuronsEdit, EditRefusedError, LanguageModel, WrongModelError, load
from corrigenda.errors import UnsupportedModelError
from corrigenda.forward.partial import PartialForward
from corrigenda.forward.recording import forward_logits, record


def made(lm: LanguageModel, n: int = 3) -> AddedNeuronsEdit:
    memory = lm.memory(LAYER)
    d = memory.d_model
    ups = drawn(2, n if memory.gates is not None else 0, d)
    return AddedNeuronsEdit(
        origin(lm), LAYER, memory.path, drawn(1, n, d), ups, drawn(4, n), 3 * drawn(3, n, d) / d**0.5
    )


@pytest.mark.parametrize("family", tiny.DECODER_KINDS)
def test_the_network_is_wider(family: str) -> None:
    """The layer's answer is that of a network with its neurons and the added ones, side by side, in float64."""
    lm = tiny.build(family)
    edit, memory, inputs = made(lm), lm.memory(LAYER), []
    batch = lm.batch([lm.tokens(prompt) for prompt in PROMPTS])
    before = forward_logits(lm, batch)
    with memory.respond(lambda x, _output: inputs.append(x)):
        forward_logits(lm, batch)
    with edit.applied(lm), memory.capture() as seen:
        after = forward_logits(lm, batch)
    x, bias = inputs[0].double(), getattr(memory._keys, "bias", None)
    biases = torch.cat([torch.zeros(memory.d_ffn) if bias is None else bias.detach(), edit.biases]).double()
    keys = torch.cat([memory.keys if memory.gates is None else memory.gates, edit.keys]).double()
    m = memory.activate(x @ keys.T + biases)
    if memory.gates is not None:
        m = m * (x @ torch.cat([memory.keys, edit.ups]).double().T)
    expected = m @ torch.cat([memory.values, edit.values]).double()
    expected = expected if memory.bias is None else expected + memory.bias
    for row, prompt in enumerate(PROMPTS):
        n = len(lm.tokens(prompt))
        torch.testing.assert_close(seen.output[row, :n].double(), expected[row, :n], rtol=1e-4, atol=1e-4)
    assert float((after - before).abs().max()) > 1e-2
    assert torch.equal(forward_logits(lm, batch), before)


def two(lm: LanguageModel) -> tuple[AddedNeuronsEdit, AddedNeuronsEdit]:
    """Three neurons at a layer, and two more at another."""
    first = made(lm)
    other = made(lm, 2)
    edits = (first, replace(other, layer=0, module=lm.memory(0).path))
    free = lm.memory(LAYER).has_key_bias
    return edits if free else tuple(replace(edit, biases=torch.zeros(len(edit.biases))) for edit in edits)  # type: ignore[return-value]


@pytest.mark.parametrize(
    "family", ["bert", "falcon", "gemma2", "glm", "gpt2", "gpt_neo", "gptj", "llama", "opt", "phi3", "qwen2"]
)
def test_a_wider_model_is_written(family: str, tmp_path: Path) -> None:
    """What transformers reads from the folder has the edited model's logits, and d_ffn + 3 neurons in every layer."""
    lm = tiny.build(family)
    batch = lm.batch([lm.tokens(prompt) for prompt in PROMPTS])
    plain = forward_logits(lm, batch)
    first, other = two(lm)
    with first.applied(lm), other.applied(lm):
        edited = forward_logits(lm, batch)
        lm.save_pretrained(tmp_path)
    assert torch.equal(forward_logits(lm, batch), plain)
    read = load(tmp_path)
    assert [read.memory(layer).d_ffn for layer in range(lm.n_layers)] == [lm.memory(0).d_ffn + 3] * lm.n_layers
    for row, logits in enumerate(forward_logits(read, batch)):
        n = len(lm.tokens(PROMPTS[row]))
        torch.testing.assert_close(logits[:n], edited[row, :n], rtol=1e-4, atol=1e-4)
    assert float((edited - plain).abs().max()) > 1e-2


def test_what_cannot_be_written_wider(tmp_path: Path) -> None:
    bloom, llama = tiny.build("bloom"), tiny.build("llama")
    with made(bloom).applied(bloom), pytest.raises(UnsupportedModelError, match="no width of its own"):
        bloom.save_pretrained(tmp_path)
    with made(llama).applied(llama), pytest.raises(UnsupportedModelError, match="the neurons have biases"):
        llama.save_pretrained(tmp_path)
    half = LanguageModel(tiny.build("llama").model.half(), llama.tokenizer, "half")
    edit = replace(two(llama)[0], keys=torch.full_like(two(llama)[0].keys, 1e9))
    with edit.applied(half, strict=False), pytest.raises(EditRefusedError, match="too large for"):
        half.save_pretrained(tmp_path)
    assert not any(tmp_path.iterdir())
    refused(TypeError, "convert_hf_to_gguf", made(llama).to_gguf, tmp_path / "model.gguf")


def test_in_a_partial_forward() -> None:
    lm = tiny.build("gpt2")
    batch = lm.batch([lm.tokens(PROMPTS[0])])
    with made(lm).applied(lm):
        whole = forward_logits(lm, batch, batch.lengths - 1)
        start = PartialForward(lm, record(lm, batch, [LAYER]), LAYER, torch.zeros_like(batch.lengths))
        last = torch.zeros_like(batch.input_ids, dtype=torch.bool)
        last[:, -1] = True
        torch.testing.assert_close(start.logits(last), whole, rtol=1e-4, atol=1e-5)


def test_beside_a_change_of_the_values(lm: LanguageModel) -> None:
    """A weight edit of the same layer changes what its own neurons answer, and not what the added ones do."""
    edit, values = made(lm), low_rank(lm, 3, {LAYER: 2})
    batch = lm.batch([lm.tokens(PROMPTS[0])])
    outputs: list[Tensor] = []
    for some in ((), (edit,), (values,), (edit, values)):
        for one in some:
            one.apply(lm)
        with lm.memory(LAYER).capture() as seen:
            forward_logits(lm, batch)
        outputs.append(seen.output)
        for one in some:
            one.revert(lm)
    torch.testing.assert_close(outputs[3] - outputs[2], outputs[1] - outputs[0], rtol=1e-4, atol=1e-4)


def test_what_is_refused() -> None:
    lm, plain = tiny.build("llama"), tiny.build("gpt2")
    edit = made(lm)
    for changes in ({"biases": torch.zeros(2)}, {"keys": edit.keys[:2]}, {"ups": edit.ups[:1]}):
        refused(ValueError, "added neurons do not fit one another: keys", replace, edit, **changes)
    refused(EditRefusedError, "numbers of 'values' are NaN", replace, edit, values=edit.values * torch.nan)
    refused(WrongModelError, r"gated and 32 wide; .* plain and 32 wide", edit.apply, plain, strict=False)
    refused(WrongModelError, "is of layer 9, tiny-llama has 4", replace(edit, layer=9).apply, lm)
    refused(TypeError, r"added_neurons edit.*low_rank", added_neurons(lm, 1).to_peft, "nowhere")


def test_an_activation_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corrigenda.models.architecture.ACTIVATIONS", ("f",))
    with pytest.raises(UnsupportedModelError, match="activation of layer 2 is not known; LlamaMLP has none of f"):
        tiny.build("llama").memory(LAYER).activate(torch.zeros(1))
