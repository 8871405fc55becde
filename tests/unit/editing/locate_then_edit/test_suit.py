import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from by_hooks import changed, entering, leaving
from rome_parts import build
from stand_ins import FACTS, identity_moments
from torch import Tensor

import editing.locate_then_edit.suit
from corrigenda import LanguageModel, LowRankEdit
from corrigenda.errors import UnsupportedModelError
from editing import Memit, Suit, SwapSettings
from editing.locate_then_edit.prompt_run import run_prompts
from editing.locate_then_edit.prompts import build_prompts
from editing.locate_then_edit.suit import Swap, name_keys, shared_directions
from editing.locate_then_edit.targets import solve_target_values

PREFIXES = ("", "red green . ")
WEIGHTS = torch.tensor([0.75, 0.25])
NAMES = ["Danielle Darrieux", "the Eiffel tower", "Big Ben", "the river", "the city of London"]
VALUE = SwapSettings(steps=6, lr=0.2, early_stop_loss=-1.0, confident_steps=None)
SUIT = Suit(layers=(1, 2), prefixes=PREFIXES, value=VALUE, energy=0.5, refuse_norm=1e9, most_per_coefficient=1.0)
FAMILIES = pytest.mark.parametrize("family", ["llama", "gpt2"])  # gated, plain


@pytest.fixture(autouse=True)
def of_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Second moments of no text, and few names."""
    identity_moments(monkeypatch, tmp_path)
    monkeypatch.setattr(editing.locate_then_edit.suit, "subjects", lambda: {"some": NAMES[:2], "other": NAMES[2:]})


def whole(lm: LanguageModel, text: str, layer: int, add: Tensor | None = None, at: int = -1) -> tuple[Tensor, ...]:
    """Of a whole forward what enters the values, what leaves the block, and the logits; with a change of the block."""
    block: Any = lm.architecture.block(layer)

    def added(_entered: Tensor, state: Tensor) -> Tensor | None:
        mask = torch.zeros(1, state.shape[1], 1)
        mask[0, at] = 1
        return None if add is None else state + mask * add

    values = block.mlp.down_proj if hasattr(block.mlp, "down_proj") else block.mlp.c_proj
    with entering(values) as keys, leaving(block) as states, changed(block, added):
        logits = lm.model(**lm.tokenizer(text, return_tensors="pt")).logits[0]
    return keys[0][0], states[0][0], logits


def keys_by_hand(lm: LanguageModel, layer: int, texts: Sequence[str], weights: Sequence[float]) -> Tensor:
    """The keys at the last tokens of texts behind the prefixes, weighed."""
    rows = []
    with torch.no_grad():
        for text in texts:
            each = [whole(lm, prefix + text, layer)[0][-1].double() for prefix in PREFIXES]
            rows.append(sum(weight * key for weight, key in zip(weights, each, strict=True)))
    return torch.stack(rows)  # type: ignore[arg-type]


def test_what_is_shared_by_hand() -> None:
    keys = torch.tensor([[3.0, 0, 0, 0], [0, 0, 2.0, 0], [0, 1.0, 0, 0]])  # energies 9, 4, 1 of 14
    for energy, expected in ((0.0, []), (0.6, [0]), (0.65, [0, 2]), (0.95, [0, 2, 1])):
        found = shared_directions(keys, energy)
        assert torch.equal(found.abs(), torch.eye(4, dtype=torch.float64)[expected])


@FAMILIES
def test_keys_without_what_names_share(family: str) -> None:
    """Against whole forwards of each name, and the eigenvectors of the sum of k k^T."""
    lm = build(family)
    key = torch.randn(2, lm.memory(1).d_ffn, generator=torch.Generator().manual_seed(0))
    names = keys_by_hand(lm, 1, NAMES, (0.5, 0.5))
    size, vectors = torch.linalg.eigh(names.T @ names)
    taken, found = 0.0, []
    for number in reversed(range(len(size))):
        if taken >= SUIT.energy * float(size.sum()):
            break
        taken += float(size[number])
        found.append(vectors[:, number])
    assert 1 <= len(found) < len(NAMES)
    expected = key.double() - sum(torch.outer(key.double() @ one, one) for one in found)
    written = SUIT.written_keys(lm, 1, key)
    torch.testing.assert_close(written.double(), expected, atol=1e-3, rtol=1e-3)
    assert float((written - key).norm()) > 0.01


@FAMILIES
def test_keys_of_names(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = build(family)
    found = name_keys(lm, (1, 2), NAMES, PREFIXES, WEIGHTS)
    for layer in (1, 2):
        torch.testing.assert_close(
            found[layer].double(), keys_by_hand(lm, layer, NAMES, (0.75, 0.25)), atol=1e-4, rtol=1e-3
        )
    monkeypatch.setattr(editing.locate_then_edit.suit, "build_prompts", None)
    again = name_keys(lm, (1, 2), NAMES, PREFIXES, WEIGHTS)  # from the disk
    assert all(torch.equal(found[layer], again[layer]) for layer in (1, 2))
    with pytest.raises(TypeError):
        name_keys(lm, (1, 2), NAMES, PREFIXES, WEIGHTS.flip(0))


def test_names_are_asked_of_the_unedited_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = build("llama")
    plain = name_keys(lm, (2,), NAMES, PREFIXES, WEIGHTS)[2]
    edit = Memit(layers=(1,), prefixes=PREFIXES, refuse_norm=1e9, most_per_coefficient=1.0).edit(lm, FACTS)
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "empty"))
    with edit.applied(lm):
        assert torch.equal(name_keys(lm, (2,), NAMES, PREFIXES, WEIGHTS)[2], plain)
        assert list(lm.edits) == [edit]


def swapped_by_hand(lm: LanguageModel, number: int, settings: SwapSettings, layer: int) -> tuple[Tensor, Tensor]:
    """h and h + delta' the long way: whole forwards, and the formula as it is printed."""
    fact = FACTS[number]
    target = str(fact.target_new)
    draw = torch.randn(2, tiny.WIDTH, generator=torch.Generator().manual_seed(0)).requires_grad_()
    optimiser = torch.optim.Adam([draw], lr=settings.lr)

    def last(text: str) -> int:
        return len(lm.tokenizer(text[: text.rindex(fact.subject) + len(fact.subject)])["input_ids"]) - 1

    h = whole(lm, fact.statement, layer)[1][last(fact.statement)].detach()

    def change() -> tuple[Tensor, Tensor, Tensor]:
        w1, w2 = draw[0] / draw[0].norm(), draw[1] / draw[1].norm()
        return w1, w2, (h @ w2 - h @ w1) * w1 + (h @ w1 - h @ w2) * w2

    for _ in range(settings.steps - 1):
        w1, w2, delta = change()
        loss = settings.overlap * (w1 @ w2) ** 2
        for prefix in PREFIXES:
            text = f"{prefix}{fact.statement} {target}"
            wanted = lm.tokenizer(target)["input_ids"]
            log_probs = whole(lm, text, layer, delta, last(prefix + fact.statement))[2].log_softmax(-1)
            for place, token in enumerate(reversed(wanted)):
                loss = loss - log_probs[-2 - place, token] / (len(PREFIXES) * len(wanted))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return h, h + change()[2].detach()


@FAMILIES
@pytest.mark.parametrize("overlap", [0.3, 30.0])
def test_values_against_whole_forwards(family: str, overlap: float) -> None:
    lm, settings = build(family), dataclasses.replace(VALUE, overlap=overlap)
    run = run_prompts(lm, build_prompts(lm, FACTS[:2], PREFIXES, "{} is a", "subject"), [1])
    solved = solve_target_values(lm, run, 1, settings, "block")
    for number in range(2):
        h, expected = swapped_by_hand(lm, number, settings, 1)
        assert float((solved.values[number] - expected).norm() / (expected - h).norm()) < 1e-2
        assert float((expected - h).norm() / h.norm()) > 0.01


@FAMILIES
@torch.no_grad()
def test_the_divergence_is_from_the_model_without_a_change(family: str) -> None:
    """By whole forwards, at the first step, where the two directions are random and the change is not zero."""
    lm, settings = build(family), dataclasses.replace(VALUE, steps=1, kl_factor=1.0)
    run = run_prompts(lm, build_prompts(lm, FACTS[:1], PREFIXES, "{} is a", "subject"), [1])
    solved = solve_target_values(lm, run, 1, settings, "block")
    h, changed = swapped_by_hand(lm, 0, settings, 1)
    now, before = (whole(lm, FACTS[0].subject, 1, add)[2][-1].log_softmax(-1) for add in (changed - h, None))
    divergence = float((now.exp() * (now - before)).sum())
    assert divergence > 1e-4
    assert float(solved.kl[0]) == pytest.approx(divergence, rel=1e-3)


@torch.no_grad()
def test_two_directions_are_swapped() -> None:
    """By hand: at right angles the state gets of each direction what it had of the other, and keeps its norm."""
    h = torch.tensor([[[3.0, 1.0, 5.0]]])
    swap = Swap(h, torch.tensor([[[100.0]]]), lr=0.1, weight_decay=0.0, overlap=2.0)
    swap.parameter.copy_(torch.tensor([[[[7.0, 0, 0], [0, 0.5, 0]]]]))
    assert torch.equal(h + swap.delta(), torch.tensor([[[1.0, 3.0, 5.0]]]))
    assert float(swap.penalty(swap.delta())) == 0
    swap.parameter.copy_(torch.tensor([[[[2.0, 0, 0], [3.0, 4.0, 0]]]]))  # w1.w2 = 0.6; h.w1 = 3, h.w2 = 2.6
    torch.testing.assert_close(swap.delta(), torch.tensor([[[-0.4 * 0.4, 0.4 * 0.8, 0]]]))
    assert float(swap.penalty(swap.delta())) == pytest.approx(2 * 0.36)
    swap.bound = torch.tensor([[[0.1]]])
    torch.testing.assert_close(swap.delta(), 0.1 * torch.tensor([[[-0.4, 0.8, 0]]]) / 0.8**0.5)


@FAMILIES
def test_without_shared_directions_it_is_memit(family: str) -> None:
    lm = build(family)
    same = {
        name: getattr(SUIT, name) for name in ("layers", "prefixes", "refuse_norm", "most_per_coefficient", "value")
    }
    memit, suit = Memit(**same).edit(lm, FACTS), dataclasses.replace(SUIT, energy=0.0).edit(lm, FACTS)
    other = SUIT.edit(lm, FACTS)
    assert isinstance(memit, LowRankEdit)
    assert isinstance(suit, LowRankEdit)
    for layer in (1, 2):
        assert torch.equal(suit.delta(layer), memit.delta(layer))
        assert not torch.allclose(other.delta(layer), memit.delta(layer), rtol=1e-2)


def test_a_mixture_is_refused() -> None:
    lm = tiny.build("mixtral")
    with pytest.raises(UnsupportedModelError, match=r"suit: layer 1 of .* is a mixture of experts.*take editor=memit"):
        SUIT.edit(lm, FACTS)
