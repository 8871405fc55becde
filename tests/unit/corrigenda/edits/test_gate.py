"""`Gate`: what it reads, its vectors by hand, its file, and that it is one model's."""

import dataclasses
import math
from pathlib import Path

import pytest
import tiny
import torch
from malformed_parts import refused

from corrigenda import LanguageModel, WrongModelError
from corrigenda.edits.gate import Gate
from corrigenda.errors import DamagedFileError

lm = pytest.fixture(tiny.llama, scope="module")


def a_gate(lm: LanguageModel, **changes: object) -> Gate:
    draw, d = torch.Generator().manual_seed(0), lm.memory(0).d_model
    maps = (torch.randn(2, d, 6, generator=draw), *(torch.randn(*s, generator=draw) for s in ((12, 7), (7, 5))))
    mean = torch.randn(2 * d, generator=draw)
    gate = Gate(lm.name, lm.fingerprint, (1, 2), mean, maps, 0.25, {"prompts": 3})
    return dataclasses.replace(gate, **changes)  # type: ignore[arg-type]


def gelu(x: float) -> float:
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def test_vectors_by_hand() -> None:
    mean = torch.tensor([1.0, 0.0, 0.0, -1.0])
    states = torch.tensor([[[2.0, 3.0], [0.5, 1.0]]])  # less the mean: 1, 3 and 0.5, 2
    whitening = torch.tensor([[[2.0], [1.0]], [[4.0], [-1.0]]])  # 1 * 2 + 3 * 1 = 5 and 0.5 * 4 - 2 = 0
    first = torch.tensor([[0.2, -0.2, 0.1], [9.0, 9.0, 9.0]])  # 1, -1, 0.5
    second = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])

    def embedded(*maps: torch.Tensor) -> list[float]:
        return Gate("m", "f", (0, 3), mean, maps, 0.5).embed(states)[0].tolist()

    def unit(*numbers: float) -> list[float]:
        return [number / math.hypot(*numbers) for number in numbers]

    assert embedded(whitening) == pytest.approx([1, 0])
    assert embedded(whitening, first) == pytest.approx(unit(1, -1, 0.5))
    assert embedded(whitening, first, second) == pytest.approx(unit(gelu(1) + gelu(0.5), gelu(-1)))
    flat = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    assert embedded(flat) == pytest.approx(unit(1, 3))
    assert embedded(flat, torch.tensor([[1.0, 0.0], [0.0, -1.0]])) == pytest.approx(unit(gelu(1), -gelu(3)))


@pytest.mark.parametrize("family", tiny.KINDS)
def test_it_reads_what_enters_its_layers_at_the_last_token_of_each_prompt(family: str) -> None:
    lm = tiny.build(family)
    if not lm.architecture.family.causal:
        pytest.skip("no prompt has a last token that has seen all of it")
    gate = a_gate(lm)
    prompts = [lm.tokens("the city of Paris is"), lm.tokens("Rome")]
    alone = []
    for prompt in prompts:
        hidden = lm.model(torch.tensor([prompt]), output_hidden_states=True).hidden_states
        alone.append(torch.stack([hidden[layer][0, -1] for layer in (1, 2)]))
    wanted = gate.embed(torch.stack(alone))
    torch.testing.assert_close(gate.of_prompts(lm, lm.batch(prompts)), wanted, atol=1e-4, rtol=0)
    assert gate.of_prompts(lm, lm.batch(prompts)).norm(dim=1).tolist() == pytest.approx([1, 1])


def test_what_follows_a_prompt_and_padding_before_it_are_not_read() -> None:
    states = {layer: torch.arange(12.0).view(2, 3, 2) + 100 * layer for layer in (1, 2)}
    gate = Gate("m", "f", (2, 1), torch.zeros(4), (torch.eye(4),), 0.5)
    prompt = torch.tensor([[True, True, False], [False, True, True]])
    assert gate.read(states, prompt).tolist() == [[[202, 203], [102, 103]], [[210, 211], [110, 111]]]


def test_it_comes_back_from_its_file(lm: LanguageModel, tmp_path: Path) -> None:
    gate = a_gate(lm)
    gate.save(tmp_path / "new" / "gate.safetensors")
    found = Gate.load(tmp_path / "new" / "gate.safetensors")
    assert found.said() == gate.said()
    assert torch.equal(found.mean, gate.mean)
    for mine, its in zip(found.maps, gate.maps, strict=True):
        assert torch.equal(mine, its.half().float())
    again = Gate.restore(gate.tensors(), gate.said())  # as an edit keeps it: to the bit
    assert all(torch.equal(one, other) for one, other in zip(again.maps, gate.maps, strict=True))


def test_a_file_that_is_missing_or_damaged_is_named(lm: LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "gate.safetensors"
    refused(FileNotFoundError, r"gate\.safetensors: there is no gate; train one", Gate.load, path)
    a_gate(lm).save(path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"{}", whole.replace(b"corrigenda-gate-1", b"corrigenda-gate-9")):
        path.write_bytes(content)
        refused(DamagedFileError, r"gate\.safetensors is damaged, or no gate \(.*\)$", Gate.load, path)


def test_another_model_is_refused_by_name(lm: LanguageModel) -> None:
    other = tiny.build("llama", seed=1)
    with pytest.raises(WrongModelError, match=rf"the gate is {lm.name}'s, .*\(corrigenda gate\)$"):
        a_gate(lm, model=lm.name).of_prompts(other, other.batch([other.tokens("Rome")]))


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": ()},
        {"layers": (1,)},
        {"maps": (torch.eye(3),)},
        {"maps": (torch.zeros(1, 32, 4),)},
        {"mean": torch.zeros(3)},
    ],
)
def test_tensors_that_do_not_fit_are_refused(lm: LanguageModel, changes: dict[str, object]) -> None:
    refused(ValueError, "tensors that do not fit one another", a_gate, lm, **changes)


def test_what_is_not_finite_is_refused(lm: LanguageModel) -> None:
    for changes in ({"threshold": math.nan}, {"mean": a_gate(lm).mean * math.inf}):
        refused(ValueError, "finite", a_gate, lm, **changes)
