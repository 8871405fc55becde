"""What runs on a CPU does the same on a GPU: golden values, every editor, and the most used editors at 16 bits.

The library's own tensors (moments, targets, edits, bases) lie on the CPU, the model on the GPU. To look at these tests
themselves without one: ``CORRIGENDA_TEST_DEVICE=cpu python -m pytest tests/gpu``.
"""

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from editors_parts import FACTS, LAYER, NAMES, bits, editor, said, same_bits
from golden import store
from golden.all import MAKERS, made

from corrigenda import Edit, LanguageModel, LowRankEdit, Origin
from editing import EDITORS

DEVICE = os.environ.get("CORRIGENDA_TEST_DEVICE", "cuda")
GOLDEN = [name for name in MAKERS if name.startswith(("editors/", "locators/"))]
GOLDEN += ["metrics", "protocols", "steering", "verification", "knowledge", "exports"]
TIMES = 10.0
"""How many of the golden values' tolerances: other kernels sum in another order, and editors take that further."""
CLOSE = 0.01
"""The most that a change of weights, made on both devices, may differ, relative to its norm."""
HALF = ("rome", "memit", "alphaedit", "emmet", "grace_wide", "finetune", "lora", "wise_whitened", "scoped")

pytestmark = [
    pytest.mark.skipif(DEVICE.startswith("cuda") and not torch.cuda.is_available(), reason="torch finds no GPU here"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True)
def on_the_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Models are made on the device, and what one device worked out is not kept for the other."""
    monkeypatch.setattr(tiny, "DEVICE", DEVICE)
    monkeypatch.setenv("CORRIGENDA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def build(family: str) -> LanguageModel:
    return tiny.build(family, scale=8.0)


def by_hand(lm: LanguageModel, layer: int) -> LowRankEdit:
    draw, memory = torch.Generator().manual_seed(layer), lm.memory(layer)
    factors = torch.randn(memory.d_ffn, 2, generator=draw), 0.1 * torch.randn(2, memory.d_model, generator=draw)
    return LowRankEdit.of(lm, Origin(lm.name, lm.fingerprint, "by hand"), {layer: factors})


def effect(edit: Any) -> dict[str, torch.Tensor]:
    """What an edit consists of: of factors their product, which alone is the same however they are turned.

    Left out are a gate and the keys that it makes: training it carries rounding as far as a third of their norm.
    """
    changed = getattr(edit, "changed", None)
    if changed is not None:
        return {f"delta of {place}": edit.delta(place) for place in changed}
    tensors: dict[str, torch.Tensor] = edit._tensors()
    gate = any(name.startswith("gate.") for name in tensors)
    return {name: one for name, one in tensors.items() if not (gate and name.startswith(("gate.", "keys")))}


def decisions(value: Any) -> Any:
    """A report without its floating-point numbers."""
    if isinstance(value, dict):
        return {key: decisions(part) for key, part in value.items() if not isinstance(part, float)}
    if isinstance(value, (list, tuple)):
        return [decisions(part) for part in value if not isinstance(part, float)]
    return value


def far(here: torch.Tensor, there: torch.Tensor) -> float:
    here, there = here.double().cpu(), there.double().cpu()
    if here.shape != there.shape:
        return float("inf")
    unlike = ~(here == there)  # infinite thresholds equal themselves
    return float((here - there)[unlike].norm() / there[unlike].norm().clamp(min=1e-6))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_values(name: str) -> None:
    if found := store.differences(name, made(name), TIMES):
        pytest.fail(f"{len(found)} values differ on {DEVICE}:\n" + "\n".join(found[:20]), pytrace=False)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("name", NAMES)
def test_an_editor(name: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = build(family)
    assert lm.device.type == torch.device(DEVICE).type
    before, plain = bits(lm), said(lm)
    here = editor(name).edit(lm, FACTS[:2])
    assert same_bits(lm, before), f"{name}: editing changed the model"
    assert all(tensor.device.type == "cpu" for tensor in here._tensors().values()), f"{name}: holds tensors on {DEVICE}"

    with monkeypatch.context() as patch:
        patch.setattr(tiny, "DEVICE", "cpu")
        patch.setenv("CORRIGENDA_CACHE", str(tmp_path / "of_the_cpu"))
        cpu = build(family)
        there = editor(name).edit(cpu, FACTS[:2])
    assert here.kind == there.kind
    assert here.touched == there.touched, f"{name}: touches {here.touched} here, {there.touched} on the CPU"
    assert decisions(here.origin.report) == decisions(there.origin.report), f"{name}: reports differ"
    ours, theirs = effect(here), effect(there)
    assert ours.keys() == theirs.keys()
    gaps = {key: round(gap, 4) for key, tensor in ours.items() if (gap := far(tensor, theirs[key])) > CLOSE}
    assert not gaps, f"{name}: differs from the CPU's by (share of its norm): {gaps}"

    with here.applied(lm):
        edited = said(lm)
        again = said(lm)
        assert bool(edited.isfinite().all()), f"{name}: what the model says is not finite"
        assert torch.equal(edited, again), f"{name}: the same forward twice says two things"
    assert same_bits(lm, before), f"{name}: the revert left other bits"
    assert torch.equal(said(lm), plain), f"{name}: the model says something else after the revert"
    with there.applied(cpu):
        expected = said(cpu)
    assert far(edited, expected) < CLOSE, f"{name}: says otherwise than on the CPU, by {far(edited, expected):.3g}"
    with there.applied(lm):
        assert far(said(lm), expected) < CLOSE, f"{name}: the CPU's edit does something else here"
    here.save(tmp_path / "edit")
    loaded = Edit.load(tmp_path / "edit")
    with loaded.applied(lm):
        assert torch.equal(said(lm), edited), f"{name}: another edit from the disk"
    edits = [by_hand(lm, LAYER), loaded, by_hand(lm, 0)]
    for order in itertools.permutations(edits):
        for edit in edits:
            edit.apply(lm)
        for edit in order:
            edit.revert(lm)
        assert same_bits(lm, before), f"{name}: a stack left other bits"


@pytest.mark.parametrize("name", [name for name in NAMES if hasattr(EDITORS[name], "extend")])
def test_an_editor_goes_on(name: str, tmp_path: Path) -> None:
    lm, chosen = build("llama"), editor(name)
    before = bits(lm)
    first = chosen.edit(lm, FACTS[:2])
    first.save(tmp_path / "edit")
    for begun in (first, Edit.load(tmp_path / "edit")):
        both = chosen.extend(lm, begun, FACTS[2:])
        with both.applied(lm):
            assert bool(said(lm).isfinite().all()), f"{name}: what the model says is not finite"
        assert same_bits(lm, before), f"{name}: the revert left other bits"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("name", HALF)
def test_an_editor_at_16_bits(name: str, family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    lm = tiny.build(family)
    lm.model.to(dtype)
    before, plain = bits(lm), said(lm)
    edit = editor(name).edit(lm, FACTS[:2])
    assert same_bits(lm, before), f"{name}: editing changed the model"
    assert all(bool(tensor.isfinite().all()) for tensor in effect(edit).values() if tensor.is_floating_point())
    with edit.applied(lm):
        edited = said(lm)
        assert edited.dtype == plain.dtype
        assert bool(edited.isfinite().all()), f"{name}: what the model says is not finite"
    assert same_bits(lm, before), f"{name}: the revert left other bits"
    assert torch.equal(said(lm), plain), f"{name}: the model says something else after the revert"
    edit.save(tmp_path / "edit")
    with Edit.load(tmp_path / "edit").applied(lm):
        assert torch.equal(said(lm), edited), f"{name}: another edit from the disk"
