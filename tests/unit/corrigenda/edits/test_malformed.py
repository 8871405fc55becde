"""Malformed edits: in a call, in their files, on values changed by hand; each is answered in one line."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from edits_parts import FACT, Make, codebook, low_rank, origin, scaled
from malformed_parts import Case, changed_json, cut, one_line, refused, written

from corrigenda import (
    CodebookEdit,
    CoefficientEdit,
    Edit,
    EditRefusedError,
    LanguageModel,
    LowRankEdit,
    SideMemoryEdit,
    ValueEdit,
    WrongModelError,
)
from corrigenda.edits.edit import _digest
from corrigenda.system.files import write_tensors
from editing import FineTune

NAN, INF = float("nan"), float("inf")
FFN, WIDTH = 48, tiny.WIDTH


lm = pytest.fixture(tiny.llama, scope="module")


# -- calls


def factors(lm: LanguageModel, left: torch.Tensor, right: torch.Tensor) -> LowRankEdit:
    return LowRankEdit.of(lm, origin(lm), {1: (left, right)})


def poisoned(lm: LanguageModel, value: float) -> LowRankEdit:
    left = torch.ones(FFN, 1)
    left[3] = value
    return factors(lm, left, torch.ones(1, WIDTH))


def whole(lm: LanguageModel, value: float, *layers: int) -> ValueEdit:
    return ValueEdit.of(lm, origin(lm), {layer: torch.full((FFN, WIDTH), value) for layer in layers})


def book(lm: LanguageModel, **parts: torch.Tensor) -> CodebookEdit:
    usual = {"keys": torch.ones(2, FFN), "values": torch.ones(2, WIDTH), "radii": torch.ones(2)}
    return CodebookEdit.of(lm.memory(1), origin(lm), **(usual | parts))


def side(lm: LanguageModel, deltas: torch.Tensor, *epsilons: float) -> SideMemoryEdit:
    return SideMemoryEdit.of(lm.memory(1), origin(lm), deltas, torch.tensor(epsilons))


def scales(lm: LanguageModel, **by_layer: Any) -> CoefficientEdit:
    return CoefficientEdit(origin(lm), {int(name[1:]): value for name, value in by_layer.items()})


def neurons(lm: LanguageModel, factors: dict[tuple[int, Any], float]) -> CoefficientEdit:
    return CoefficientEdit.of(lm, origin(lm), factors)


ONE = torch.ones(1, FFN, WIDTH)
CALLS: dict[str, Case[LanguageModel]] = {
    "low-rank-nan": (lambda lm: poisoned(lm, NAN), EditRefusedError, "low_rank edit is not finite.*'layer 1: A'"),
    "low-rank-minus-inf": (lambda lm: poisoned(lm, -INF), EditRefusedError, "1 of the 48 numbers of 'layer 1: A'"),
    "low-rank-product": (
        lambda lm: factors(lm, torch.full((FFN, 1), 1e15), torch.full((1, WIDTH), 1e15)),
        EditRefusedError,
        "'layer 1: A B'",
    ),
    "low-rank-shapes": (
        lambda lm: factors(lm, torch.ones(48, 2), torch.ones(3, 32)),
        ValueError,
        r"layer 1.*\(48, 2\).*\(3, 32\)",
    ),
    "low-rank-two-names": (
        lambda lm: LowRankEdit.of(lm, origin(lm), {n: (torch.ones(FFN, 1), torch.ones(1, WIDTH)) for n in (3, -1)}),
        ValueError,
        r"a layer is named twice: \[-1, 3\]",
    ),
    "values-nan": (lambda lm: whole(lm, NAN, 1), EditRefusedError, "not finite: 1536 of the 1536 .* 'layer 1: D'"),
    "values-no-layer": (lambda lm: whole(lm, 1.0, 9), IndexError, "layer 9"),
    "values-two-names": (lambda lm: whole(lm, 1.0, 3, -1), ValueError, r"a layer is named twice: \[-1, 3\]"),
    "codebook-keys": (lambda lm: book(lm, keys=torch.full((2, FFN), NAN)), EditRefusedError, "96 .* 'keys'"),
    "codebook-values": (lambda lm: book(lm, values=torch.full((2, WIDTH), INF)), EditRefusedError, "'values'"),
    "codebook-radii": (lambda lm: book(lm, radii=torch.tensor([1.0, INF])), EditRefusedError, "'radii'"),
    "codebook-negative": (lambda lm: book(lm, radii=torch.tensor([1.0, -1.0])), ValueError, "none negative"),
    "side-nan": (lambda lm: side(lm, ONE * NAN, 1.0), EditRefusedError, "side_memory edit.*'deltas'"),
    "side-shape": (lambda lm: side(lm, ONE[0], 1.0), ValueError, "shape"),
    "side-thresholds": (lambda lm: side(lm, ONE, 0.0, 0.0), ValueError, "shape"),
    "side-threshold-nan": (lambda lm: side(lm, ONE, NAN), ValueError, "not negative"),
    "side-threshold-negative": (lambda lm: side(lm, ONE, -1.0), ValueError, "not negative"),
    "coefficient-nan": (lambda lm: neurons(lm, {(1, 2): NAN}), EditRefusedError, "'layer 1: factors'"),
    "coefficient-no-layer": (lambda lm: neurons(lm, {(9, 0): 0.0}), IndexError, "layer 9"),
    "coefficient-no-neuron": (lambda lm: neurons(lm, {(1, 48): 0.0}), IndexError, "neuron 48.*neurons 0 to 47"),
    "coefficient-negative": (lambda lm: neurons(lm, {(1, -1): 0.0}), IndexError, "neurons 0 to 47"),
    "coefficient-text": (lambda lm: neurons(lm, {(1, "2"): 2.0}), TypeError, "be a whole number, not str '2'"),
    "coefficient-two-names": (lambda lm: neurons(lm, {(-1, 4): 0.0, (3, 4): 1.0}), ValueError, "two factors"),
    "coefficient-twice": (lambda lm: scales(lm, _1=(torch.tensor([4, 4]), torch.ones(2))), ValueError, "named twice"),
    "coefficient-lengths": (lambda lm: scales(lm, _1=(torch.tensor([4, 5]), torch.ones(1))), ValueError, "one factor"),
    "coefficient-where": (
        lambda lm: CoefficientEdit(origin(lm), {}, "last"),  # type: ignore[arg-type]
        ValueError,
        "positions='last' must be one of all, predicting",
    ),
    "apply-to-no-layer": (
        lambda lm: scales(lm, _7=(torch.tensor([1]), torch.ones(1))).apply(lm),
        WrongModelError,
        "layer 7",
    ),
    "apply-to-no-neuron": (
        lambda lm: scales(lm, _1=(torch.tensor([99]), torch.ones(1))).apply(lm),
        WrongModelError,
        "99",
    ),
    "finetune-lr": (
        lambda lm: FineTune(layer=1, lr=1e30, steps=3).edit(lm, [FACT]),
        EditRefusedError,
        "not finite: the norm of 'layer 1: D' is infinite",
    ),
    "apply-text": (lambda lm: low_rank(lm, 0).apply("model"), TypeError, "a LanguageModel .*, not to str 'model'"),  # type: ignore[arg-type]
    "apply-transformers": (lambda lm: low_rank(lm, 0).apply(lm.model), TypeError, "not to LlamaForCausalLM"),  # type: ignore[arg-type]
    "revert-text": (lambda lm: low_rank(lm, 0).revert("model"), TypeError, "not to str"),  # type: ignore[arg-type]
    "load-number": (lambda _: Edit.load(3), TypeError, "loaded from a folder, not from int '3'"),  # type: ignore[arg-type]
    "load-nowhere": (lambda _: Edit.load("/no/such/edit"), FileNotFoundError, "/no/such/edit holds no edit"),
    "memory-text": (lambda lm: lm.memory("3"), TypeError, "a layer must be a whole number, not str '3'"),  # type: ignore[arg-type]
    "memory-float": (lambda lm: lm.memory(1.0), TypeError, "not float 1.0"),  # type: ignore[arg-type]
    "memory-true": (lambda lm: lm.memory(True), TypeError, "not bool True"),
    "memory-too-high": (lambda lm: lm.memory(4), IndexError, "layer 4: the model has 4 layers, 0 to 3"),
    "memory-too-low": (lambda lm: lm.memory(-5), IndexError, "layer -5"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_cannot_be(name: str, lm: LanguageModel) -> None:
    """It is answered in a short line, and leaves the model as it was."""
    call, error, message = CALLS[name]
    before = lm.memory(1).values.clone()
    with pytest.raises(error, match=message) as caught:
        call(lm)
    assert len(one_line(caught)) < 400
    assert list(lm.edits) == []
    assert torch.equal(lm.memory(1).values, before)


# -- files

Json = dict[str, Any]


def rehashed(**tensors: torch.Tensor) -> Callable[[Path], None]:
    """Other tensors, with the hashes that fit them."""

    def change(folder: Path) -> None:
        path = folder / "edit.safetensors"
        write_tensors(path, {name[1:].replace("_", "."): tensor for name, tensor in tensors.items()})
        value = json.loads((folder / "edit.json").read_text())
        value["tensors_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        value["description_sha256"] = _digest(value)
        (folder / "edit.json").write_text(json.dumps(value))

    return change


def with_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("no folder")


DIGESTED: dict[str, Callable[[Json], object]] = {
    "another-layer": lambda v: v["settings"].update(modules={"1": "model.layers.2.mlp.down_proj"}),
    "another-fingerprint": lambda v: v["origin"].update(fingerprint="0" * 32),
    "another-target": lambda v: v["origin"]["facts"][0].update(target_new="Berlin"),
    "another-report": lambda v: v["origin"]["report"][0].update(loss=0.0),
    "one-key-more": lambda v: v.update(more=1),
    "another-digest": lambda v: v.update(description_sha256="0"),
    "a-number-for-a-digest": lambda v: v.update(description_sha256=1),
}
"""Changes of what edit.json says that its digest tells."""

BY_HAND: dict[str, tuple[Callable[[Json], object], str]] = {
    "a-kind": (lambda v: v.update(kind="nonsense"), r"'nonsense'.*context, .*low_rank"),
    "no-kind": (lambda v: v.pop("kind"), "damaged.*kind"),
    "a-strange-kind": (lambda v: v.update(kind=[]), "kind"),
    "another-kind": (lambda v: v.update(kind="context"), "damaged.*text"),
    "a-format": (lambda v: v.update(format=99), "format 99.*reads format 1"),
    "no-origin": (lambda v: v.pop("origin"), "damaged.*origin"),
    "no-facts": (lambda v: v["origin"].pop("facts"), "damaged.*facts"),
    "a-broken-fact": (lambda v: v["origin"]["facts"][0].pop("prompt"), "damaged.*prompt"),
    "more-origin": (lambda v: v["origin"].update(more=1), "damaged.*more"),
    "no-settings": (lambda v: v.pop("settings"), "damaged.*settings"),
    "one-layer-more": (lambda v: v["settings"]["modules"].update({"5": "x"}), r"damaged.*5\.A"),
    "no-layer": (lambda v: v["settings"].update(modules={"x": "y"}), "damaged"),
    "modules": (lambda v: v["settings"].update(modules=[1]), "damaged"),
}
"""The same with a digest that fits: nothing but the content tells."""

JSON, TENSORS = r"edit\.json is damaged", r"edit\.safetensors is damaged.*SHA-256"
APPLIED = r"edit\.safetensors cannot be applied.*"
FILES: dict[str, Case[Path]] = {
    **{
        name: (changed_json("edit.json", change), ValueError, f"{JSON}: it was changed since the edit was saved")
        for name, change in DIGESTED.items()
    },
    **{
        name: (
            changed_json("edit.json", lambda v, change=change: (change(v), v.update(description_sha256=_digest(v)))),
            ValueError,
            message,
        )
        for name, (change, message) in BY_HAND.items()
    },
    "no-digest": (changed_json("edit.json", lambda v: v.pop("description_sha256")), ValueError, JSON),
    "nan-tensors": (
        rehashed(_1_A=torch.full((FFN, 1), NAN), _1_B=torch.ones(1, WIDTH)),
        ValueError,
        f"{APPLIED}'layer 1: A'",
    ),
    "inf-tensors": (
        rehashed(_1_A=torch.ones(FFN, 1), _1_B=torch.full((1, WIDTH), INF)),
        ValueError,
        f"{APPLIED}'layer 1: B'",
    ),
    "tensors-that-do-not-multiply": (
        rehashed(_1_A=torch.ones(FFN, 2), _1_B=torch.ones(1, WIDTH)),
        ValueError,
        "damaged.*do not multiply",
    ),
    "no-such-tensor": (rehashed(_2_A=torch.ones(2, 2)), ValueError, r"damaged.*1\.A"),
    "other-tensors": (
        lambda folder: write_tensors(folder / "edit.safetensors", {"1.A": torch.ones(2, 2)}),
        ValueError,
        TENSORS,
    ),
    "cut-tensors": (cut("edit.safetensors", -4), ValueError, TENSORS),
    "no-tensors": (lambda folder: (folder / "edit.safetensors").unlink(), FileNotFoundError, "half an edit"),
    "no-json": (lambda folder: (folder / "edit.json").unlink(), FileNotFoundError, r"no edit\.json"),
    "cut-json": (cut("edit.json", -9), ValueError, JSON),
    "bytes-for-json": (lambda folder: (folder / "edit.json").write_bytes(b"\xff\xfe{}"), ValueError, JSON),
    "list-json": (written("edit.json", "[]"), ValueError, JSON),
    "deep-json": (written("edit.json", "[" * 100_000), ValueError, JSON),
    "a-file": (with_a_file, NotADirectoryError, "is a file; an edit is a folder"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_changed_edit(name: str, lm: LanguageModel, tmp_path: Path) -> None:
    damage, error, message = FILES[name]
    folder = tmp_path / "edit"
    low_rank(lm, 0, {1: 1}).save(folder)
    damage(folder)
    with pytest.raises(error, match=message) as caught:
        Edit.load(folder)
    assert str(folder) in one_line(caught)


@pytest.mark.parametrize("what", ["save", "to_peft", "save below"])
def test_writing_onto_a_file(what: str, lm: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("mine")
    edit, place = low_rank(lm, 0), tmp_path / "here"
    with pytest.raises(FileExistsError, match=r"here is a file, and .* is written as a folder") as caught:
        edit.to_peft(place) if what == "to_peft" else edit.save(place / "below" if what == "save below" else place)
    one_line(caught)
    assert (tmp_path / "here").read_text() == "mine"


# -- values changed by hand


def replaced(module: torch.nn.Module) -> None:
    module.weight = torch.nn.Parameter(torch.zeros_like(module.weight), requires_grad=False)


def one_bit(module: torch.nn.Module) -> None:
    module.weight.data[0, 0] = torch.nextafter(module.weight.data[0, 0], torch.tensor(9.0))


BY_HAND: dict[str, Callable[[Any], object]] = {
    "data": lambda module: module.weight.data.mul_(1.5),
    "no_grad": torch.no_grad()(lambda module: module.weight[0, 0].add_(1)),
    "replaced": replaced,
    "one bit": one_bit,
}


@pytest.mark.parametrize("how", BY_HAND)
@pytest.mark.parametrize("make", [low_rank, codebook, scaled], ids=lambda make: make.__name__)
def test_values_changed_by_hand(how: str, make: Make) -> None:
    lm = tiny.build("llama")
    edit = make(lm, 1)
    BY_HAND[how](lm.architecture.values(1))
    by_hand = lm.memory(1).values.clone()
    refused(WrongModelError, r"layer 1 of tiny-llama were changed by hand.*strict=False", edit.apply, lm)
    with edit.applied(lm, strict=False):
        pass
    assert torch.equal(lm.memory(1).values, by_hand)


def test_values_changed_by_hand_under_an_edit_or_elsewhere() -> None:
    lm = tiny.build("gpt2")
    first, second = low_rank(lm, 1, {1: 1}), low_rank(lm, 2, {1: 1})
    lm.memory(3).weight.data.mul_(2)  # another layer: not looked at
    with first.applied(lm):
        with second.applied(lm):
            pass
        kept = lm.memory(1).weight.data.clone()
        lm.memory(1).weight.data.mul_(2)
        refused(WrongModelError, "layer 1 of tiny-gpt2 were changed by hand", second.apply, lm)
        lm.memory(1).weight.data.copy_(kept)
        second.apply(lm)
        second.revert(lm)
        lm.memory(1).weight.data.mul_(2)
        with pytest.warns(UserWarning, match=r"layer 1 of tiny-gpt2 were changed by hand .* is lost now"):
            second.apply(lm, strict=False)
        second.revert(lm)
