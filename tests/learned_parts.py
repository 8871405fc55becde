"""What the tests of editors with trained networks share: facts, networks of random weights, sums by hand."""

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors import safe_open
from torch import Tensor

from corrigenda import Fact, LanguageModel
from corrigenda.facts import Probe
from editing.learned import training
from editing.learned.hypernetwork import Hypernetwork, TrainedNetwork
from editing.learned.learned import Learned
from editing.shared.training_rows import target_rows

LAYERS = (1, 3)
TRAINED_ON = (
    Fact(
        *("the Eiffel tower", "{} is located in the city of", "Rome", "Paris"),
        id="tower",
        paraphrases=("the city with the Eiffel tower is", "the Eiffel tower stands in"),
        neighbourhood=("the river is located in the city of", "the tower in the north stands in"),
        locality=(Probe("Big Ben is located in", "London"),),
    ),
    Fact(
        *("Danielle Darrieux", "the mother tongue of {} is", "English", "French"),
        id="tongue",
        paraphrases=("Danielle Darrieux speaks",),
        neighbourhood=("the mother tongue of Thomas is",),
    ),
    Fact("Big Ben", "on the river {} plays the", "guitar", "piano", id="plays", locality=(Probe("one two", "three"),)),
    Fact("Thomas", "the native language of {} is", "Dutch", "German", id="native", neighbourhood=("Ben speaks",)),
)


def build(family: str = "llama") -> LanguageModel:
    return tiny.build(family, scale=8.0)


def drawn(lm: LanguageModel, editor: Learned, seed: int = 0) -> TrainedNetwork[Hypernetwork]:
    """A network of random weights, none of which is zero."""
    memory, draw = lm.memory(1), torch.Generator().manual_seed(seed)
    network = Hypernetwork(LAYERS, memory.d_ffn, memory.d_model, 3, 2, editor.weighed)
    with torch.no_grad():
        for part in network.state_dict().values():
            part.copy_(0.3 * torch.randn(part.shape, generator=draw))
        network.deviation.abs_().add_(0.5)
        network.log_rates.sub_(3)
    return TrainedNetwork(lm.name, lm.fingerprint, editor.name, editor.end_token, network)


def by_hooks(lm: LanguageModel, fact: Fact) -> dict[int, tuple[Tensor, Tensor]]:
    """By layer u and d at all tokens, by torch's own hooks; their products sum up to the gradient of V."""
    ids, prompt = target_rows(lm, fact)
    seen: dict[int, tuple[Tensor, Tensor]] = {}
    handles = []
    for layer in LAYERS:
        module = lm.model.get_submodule(lm.memory(layer).path.removesuffix(".weight"))
        module.weight.requires_grad_()

        def keep(_: Any, args: tuple[Tensor], output: Tensor, layer: int = layer) -> None:
            output.requires_grad_().retain_grad()
            seen[layer] = (args[0].detach()[0], output)

        handles.append(module.register_forward_hook(keep))
    logits = lm.model(input_ids=torch.tensor([ids])).logits[0]
    targets = torch.tensor(ids[prompt:])
    torch.nn.functional.cross_entropy(logits[prompt - 1 : -1], targets).backward()
    found = {}
    for layer, handle in zip(LAYERS, handles, strict=True):
        handle.remove()
        u, output = seen[layer]
        d = output.grad[0]  # type: ignore[index]
        weight = lm.memory(layer).weight
        whole = weight.grad if lm.memory(layer).transposed else weight.grad.T  # type: ignore[union-attr]
        torch.testing.assert_close(u.T @ d, whole)  # so that these are the rows of the gradient
        weight.requires_grad_(False)
        weight.grad = None
        found[layer] = (u, d)
    return found


def by_hand(network: Hypernetwork, place: int, u: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """The network on one pair, number by number where it is not a product, in float64."""
    state = {name: part.double() for name, part in network.state_dict().items()}
    z = (torch.cat([u, d]).double() - state["mean"]) / state["deviation"]
    for block in range(2):
        own = {name: state[f"blocks.{block}.{name}"] for name in ("A", "B", "bias", "scale", "shift")}
        inner = (z @ own["A"]) @ own["B"] + own["bias"]
        z = torch.stack(
            [z[i] + max(0.0, own["scale"][place][i] * inner[i] + own["shift"][place][i]) for i in range(len(z))]
        )
    return z[: len(u)], z[len(u) :]


def assert_same(one: TrainedNetwork[Any], other: TrainedNetwork[Any]) -> None:
    states = one.network.state_dict(), other.network.state_dict()
    assert all(torch.equal(part, states[1][name]) for name, part in states[0].items())
    assert one.made == other.made


def cut_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Interrupts trainings while the list that it returns, to which each step adds its number, has so many entries."""
    learn, learned = training._Training.learn, list[int]()

    def cut(self: Any) -> None:
        if len(learned) == steps:
            raise KeyboardInterrupt
        learned.append(self.done)
        learn(self)

    monkeypatch.setattr(training._Training, "learn", cut)
    return learned


def steps_kept(folder: Path, editor: str) -> int:
    """The steps of a training that is not at its end, as they are on the disk; -1 where there is none."""
    for path in folder.rglob(f"{editor}-*.safetensors"):
        with safe_open(path, framework="pt") as file:
            return int((file.metadata() or {})["done"])
    return -1


def has_steps(folder: Path, editor: str, steps: int) -> bool:
    return steps_kept(folder, editor) >= steps
