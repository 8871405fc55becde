"""Edits come and go bit for bit, survive the disk, and refuse what they were not made for."""

from __future__ import annotations

import itertools
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import tiny
import torch
from safetensors.torch import load_file
from torch import Tensor

from corrigenda import (
    ContextEdit,
    Edit,
    Fact,
    LanguageModel,
    LowRankEdit,
    Origin,
    ValueEdit,
    WrongModelError,
)
from corrigenda.forward.recording import forward_logits
from corrigenda.system import files

FACT = Fact("Eiffel Tower", "the {} is located in", target_new="Rome", target_true="Paris")
TEXT = "the Eiffel Tower is located in Rome . "


def origin(lm: LanguageModel, *facts: Fact) -> Origin:
    return Origin(lm.name, lm.fingerprint, "by hand", {"rate": 0.5}, facts, tuple({"loss": 0.25} for _ in facts))


def low_rank(lm: LanguageModel, ranks: dict[int, int], seed: int = 0) -> LowRankEdit:
    """Random factors of the given rank for each layer, large enough to matter."""
    draw = torch.Generator().manual_seed(seed)
    factors = {}
    for layer, rank in ranks.items():
        shape = lm.memory(layer).values.shape
        left, right = torch.randn(shape[0], rank, generator=draw), torch.randn(rank, shape[1], generator=draw)
        factors[layer] = (left * 0.3, right * 0.3)
    return LowRankEdit.of(lm, origin(lm, FACT), factors)


def build(family: str, dtype: torch.dtype = torch.float32) -> LanguageModel:
    lm = tiny.build(family)
    lm.model.to(dtype)
    return lm


def weights(lm: LanguageModel) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}


def assert_same(lm: LanguageModel, expected: dict[str, Tensor]) -> None:
    for name, tensor in lm.model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


def logits(model: Any) -> Tensor:
    """(row, position, vocabulary), by the model alone."""
    ids = torch.tensor([[5, 6, 7, 8, 9], [10, 11, 12, 13, 14]])
    with torch.no_grad():
        return model(input_ids=ids).logits


@pytest.fixture
def lm() -> LanguageModel:
    return tiny.build("llama")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", ["llama", "gpt2"])  # a Linear and a Conv1D
def test_every_order(family: str, dtype: torch.dtype) -> None:
    """Three edits on the same and on other layers, applied and reverted in every order.

    What is left has the bits of a fresh model with those edits, in their order.
    """
    lm = build(family, dtype)
    before = weights(lm)
    edits = [low_rank(lm, {1: 2, 2: 1}, seed=1), low_rank(lm, {1: 1}, seed=2), low_rank(lm, {1: 3, 3: 2}, seed=3)]
    edits[1].factors[1][0].mul_(1e3)  # what is much larger would eat up low bits if edits were subtracted again
    fresh: dict[tuple[LowRankEdit, ...], dict[str, Tensor]] = {(): before}
    for some in (*itertools.permutations(edits, 1), *itertools.permutations(edits, 2), *itertools.permutations(edits)):
        other = build(family, dtype)
        for edit in some:
            edit.apply(other)
        fresh[some] = weights(other)

    for there, back in itertools.product(itertools.permutations(edits), repeat=2):
        applied: list[LowRankEdit] = []
        for edit in there:
            edit.apply(lm)
            applied.append(edit)
            assert list(lm.edits) == applied
            assert_same(lm, fresh[tuple(applied)])
        for edit in back:
            edit.revert(lm)
            applied.remove(edit)
            assert_same(lm, fresh[tuple(applied)])
        assert_same(lm, before)
    assert not lm.edits.untouched  # nothing is kept that is not needed


@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_delta_lands_in_the_values(family: str) -> None:
    lm = tiny.build(family)
    before, values = weights(lm), lm.memory(2).values.clone()
    edit = low_rank(lm, {2: 2})
    with edit.applied(lm):
        assert torch.equal(lm.memory(2).values, values + edit.delta(2))
        changed = [name for name, tensor in lm.model.state_dict().items() if not torch.equal(tensor, before[name])]
        assert changed == [f"{edit.modules[2]}.weight"]
    assert_same(lm, before)
    assert edit.norm(2) == pytest.approx(float((edit.factors[2][0] @ edit.factors[2][1]).double().norm()), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_edits_add_up(dtype: torch.dtype) -> None:
    """Together they add the sum of their deltas, taken in float64 and rounded once."""
    lm = build("llama", dtype)
    values = lm.memory(1).values.double()
    edits = [low_rank(lm, {1: rank}, seed=rank) for rank in (1, 2, 3)]
    for edit in edits:
        edit.apply(lm)
        values += edit.factors[1][0].double() @ edit.factors[1][1].double()
    torch.testing.assert_close(lm.memory(1).values, values.to(dtype))


def test_applied_reverts_after_an_error(lm: LanguageModel) -> None:
    before, edit = weights(lm), low_rank(lm, {1: 1})

    def fail(same: LanguageModel) -> None:
        assert same is lm
        assert edit in lm.edits
        assert not torch.equal(lm.memory(1).weight, before["model.layers.1.mlp.down_proj.weight"])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), edit.applied(lm) as edited:
        fail(edited)
    assert list(lm.edits) == []
    assert_same(lm, before)


def test_an_edit_that_fails_half_way_is_not_applied(lm: LanguageModel) -> None:
    """Layer 2 lies offloaded; layer 1, done before it, is put back."""
    edit, before = low_rank(lm, {1: 1, 2: 1}), lm.memory(1).values.clone()
    module = lm.architecture.values(2)
    module.weight = torch.nn.Parameter(module.weight.to("meta"), requires_grad=False)
    with pytest.raises(ValueError, match=r"layers\.2\..* is offloaded"):
        edit.apply(lm)
    assert list(lm.edits) == []
    assert torch.equal(lm.memory(1).values, before)


def test_twice_and_not_at_all(lm: LanguageModel) -> None:
    edit, other = low_rank(lm, {1: 1}), low_rank(lm, {1: 1})
    with edit.applied(lm):
        once = weights(lm)
        with pytest.raises(ValueError, match="applied already"):
            edit.apply(lm)
        with pytest.raises(ValueError, match="not applied"):
            other.revert(lm)  # equal, but another edit
        assert_same(lm, once)
    with pytest.raises(ValueError, match="not applied"):
        edit.revert(lm)


def test_suspended(lm: LanguageModel) -> None:
    before = weights(lm)
    first, second = low_rank(lm, {1: 1}, seed=1), low_rank(lm, {1: 1, 2: 1}, seed=2)
    edits: list[Edit] = [first, ContextEdit(origin(lm), TEXT), second]
    for edit in edits:
        edit.apply(lm)
    edited = weights(lm)
    with lm.edits.suspended():
        assert list(lm.edits) == []
        assert lm.reads("the") == "the"
        assert_same(lm, before)
    assert list(lm.edits) == edits
    assert lm.reads("the") == TEXT + "the"
    assert_same(lm, edited)
    with pytest.raises(ZeroDivisionError), lm.edits.suspended():
        _ = 1 / 0
    assert list(lm.edits) == edits
    assert_same(lm, edited)


def test_layers_counted_from_the_end(lm: LanguageModel) -> None:
    """Layer -1 and layer 3 are one layer, also to the store of untouched values."""
    before = weights(lm)
    last, same = low_rank(lm, {-1: 1}, seed=1), low_rank(lm, {3: 1}, seed=2)
    assert list(last.factors) == list(last.modules) == [3]
    for edit in (last, same):
        edit.apply(lm)
    for edit in (last, same):
        edit.revert(lm)
    assert_same(lm, before)


def test_a_layer_named_twice(lm: LanguageModel) -> None:
    width = lm.memory(3).values.shape
    pair = (torch.ones(width[0], 1), torch.ones(1, width[1]))
    with pytest.raises(ValueError, match=r"a layer is named twice: \[-1, 3\]"):
        LowRankEdit.of(lm, origin(lm), {3: pair, -1: pair})
    with pytest.raises(ValueError, match=r"a layer is named twice: \[-1, 3\]"):
        ValueEdit.of(lm, origin(lm), {3: torch.ones(width), -1: torch.ones(width)})


def test_a_whole_change_is_its_own_and_finite(lm: LanguageModel) -> None:
    change = torch.ones(lm.memory(1).values.shape)
    edit = ValueEdit.of(lm, origin(lm), {1: change})
    change[0, 0] = float("nan")
    assert float(edit.delta(1)[0, 0]) == 1.0
    with pytest.raises(ValueError, match=r"not finite: 1 of the 1536 numbers of 'layer 1: D'"):
        ValueEdit.of(lm, origin(lm), {1: change})


def test_context_is_read(lm: LanguageModel) -> None:
    before = weights(lm)
    first, second = ContextEdit(origin(lm), TEXT), ContextEdit(origin(lm), "Ben plays piano . ")
    prompt = "the Eiffel Tower is located in"
    plain, batch = lm.tokens(prompt), lm.batch([lm.tokens(prompt)])
    alone = forward_logits(lm, batch, batch.lengths - 1)
    with first.applied(lm), second.applied(lm):
        assert lm.reads(prompt) == f"{TEXT}Ben plays piano . {prompt}"
        assert lm.tokens(prompt)[-len(plain) :] == plain
        assert len(lm.tokens(prompt)) > len(plain)
        batch = lm.batch([lm.tokens(prompt)])
        assert not torch.allclose(forward_logits(lm, batch, batch.lengths - 1), alone, atol=1e-2)
        told = lm.generate(prompt, 5)
        first.revert(lm)
        assert lm.reads(prompt) == f"Ben plays piano . {prompt}"
        first.apply(lm)
    assert lm.tokens(prompt) == plain
    assert lm.generate(f"{TEXT}Ben plays piano . {prompt}", 5) == told
    assert_same(lm, before)


def test_other_weights(lm: LanguageModel) -> None:
    other = tiny.build("llama", seed=1)
    before, edit = weights(other), low_rank(lm, {1: 1})
    values = other.memory(1).values.clone()
    with pytest.raises(WrongModelError, match=rf"{lm.fingerprint[:12]}.*{other.fingerprint[:12]}.*strict=False"):
        edit.apply(other)
    assert_same(other, before)
    with edit.applied(other, strict=False):
        assert torch.equal(other.memory(1).values, values + edit.delta(1))


@pytest.mark.parametrize("layer", [1, 7, -1])
@pytest.mark.parametrize("strict", [True, False])
def test_other_shapes(layer: int, strict: bool, lm: LanguageModel) -> None:
    """Another width of the FFN, and a layer that there is not: refused whatever `strict` says."""
    other = tiny.build("gpt2")
    before = weights(other)
    d_ffn = 48 if layer == 1 else 128
    factors = {layer: (torch.ones(d_ffn, 1), torch.ones(1, tiny.WIDTH))}
    edit = LowRankEdit(origin(other if layer != 1 else lm), factors, {layer: "anywhere"}, transposed=True)
    with pytest.raises(WrongModelError, match=f"layer {layer}" if not strict or layer != 1 else "made on"):
        edit.apply(other, strict=strict)
    assert list(other.edits) == []
    assert_same(other, before)


def test_factors_that_do_not_multiply(lm: LanguageModel) -> None:
    with pytest.raises(ValueError, match=r"layer 1.*\(48, 2\).*\(3, 32\)"):
        LowRankEdit.of(lm, origin(lm), {1: (torch.ones(48, 2), torch.ones(3, 32))})


def test_context_survives_the_disk(lm: LanguageModel, tmp_path: Path) -> None:
    edit = ContextEdit(origin(lm, FACT), 'Said "Привет",\nand more. ')
    edit.save(tmp_path)
    again = Edit.load(tmp_path)
    assert isinstance(again, ContextEdit)
    assert (again.text, again.origin) == (edit.text, edit.origin)


def test_saved_over_an_older_one(lm: LanguageModel, tmp_path: Path) -> None:
    low_rank(lm, {0: 3}).save(tmp_path)
    ContextEdit(origin(lm), TEXT).save(tmp_path)
    assert isinstance(Edit.load(tmp_path), ContextEdit)


def test_nothing_is_pickled(lm: LanguageModel, tmp_path: Path) -> None:
    low_rank(lm, {0: 3, 2: 1}).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edit.json", "edit.safetensors"]
    assert sorted(load_file(tmp_path / "edit.safetensors")) == ["0.A", "0.B", "2.A", "2.B"]
    assert json.loads((tmp_path / "edit.json").read_text())["origin"]["facts"][0]["target_new"] == "Rome"


Json = dict[str, Any]


def damaged(change: Callable[[Json], object]) -> Callable[[Path], None]:
    """A change to what edit.json holds."""

    def damage(folder: Path) -> None:
        value = json.loads((folder / "edit.json").read_text())
        value.pop("description_sha256")  # as saved by earlier versions: nothing but the content tells
        change(value)
        (folder / "edit.json").write_text(json.dumps(value))

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "cut tensors": (
        lambda folder: (folder / "edit.safetensors").write_bytes((folder / "edit.safetensors").read_bytes()[:-4]),
        ValueError,
        r"edit\.safetensors is damaged.*SHA-256",
    ),
    "other tensors": (
        lambda folder: files.write_tensors(folder / "edit.safetensors", {"0.A": torch.ones(2, 2)}),
        ValueError,
        r"edit\.safetensors is damaged",
    ),
    "no tensors": (lambda folder: (folder / "edit.safetensors").unlink(), FileNotFoundError, "half an edit"),
    "no description": (lambda folder: (folder / "edit.json").unlink(), FileNotFoundError, r"no edit\.json"),
    "cut description": (
        lambda folder: (folder / "edit.json").write_text((folder / "edit.json").read_text()[:-9]),
        ValueError,
        r"edit\.json is damaged",
    ),
    "not text": (lambda folder: (folder / "edit.json").write_bytes(b"\xff\xfe{}"), ValueError, "damaged"),
    "a list": (lambda folder: (folder / "edit.json").write_text("[]"), ValueError, "damaged"),
    "a kind": (damaged(lambda v: v.update(kind="nonsense")), ValueError, r"'nonsense'.*context, .*low_rank"),
    "no kind": (damaged(lambda v: v.pop("kind")), ValueError, "damaged.*kind"),
    "a strange kind": (damaged(lambda v: v.update(kind=[])), ValueError, "kind"),
    "another kind": (damaged(lambda v: v.update(kind="context")), ValueError, "damaged.*text"),
    "a format": (damaged(lambda v: v.update(format=99)), ValueError, "format 99.*reads format 1"),
    "no origin": (damaged(lambda v: v.pop("origin")), ValueError, "damaged.*origin"),
    "no facts": (damaged(lambda v: v["origin"].pop("facts")), ValueError, "damaged.*facts"),
    "a broken fact": (damaged(lambda v: v["origin"]["facts"][0].pop("prompt")), ValueError, "damaged.*prompt"),
    "more origin": (damaged(lambda v: v["origin"].update(more=1)), ValueError, "damaged.*more"),
    "no settings": (damaged(lambda v: v.pop("settings")), ValueError, "damaged.*settings"),
    "another layer": (damaged(lambda v: v["settings"]["modules"].update({"5": "x"})), ValueError, r"damaged.*5\.A"),
    "no layer": (damaged(lambda v: v["settings"].update(modules={"x": "y"})), ValueError, "damaged"),
    "modules": (damaged(lambda v: v["settings"].update(modules=[1])), ValueError, "damaged"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_files(name: str, lm: LanguageModel, tmp_path: Path) -> None:
    damage, error, message = DAMAGES[name]
    low_rank(lm, {0: 3, 2: 1}).save(tmp_path)
    damage(tmp_path)
    with pytest.raises(error, match=message) as caught:
        Edit.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no edit"):
        Edit.load(tmp_path / "nothing")


WRITERS: dict[str, Callable[[Path, int], None]] = {
    "text": lambda path, n: files.write_text(path, "ж" * n),
    "json": lambda path, n: files.write_json(path, {"n": n}),
    "tensors": lambda path, n: files.write_tensors(path, {"t": torch.full((5,), float(n))}),
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_failed_write_leaves_the_old_file(
    kind: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new folder" / "file"
    WRITERS[kind](path, 1)
    old = path.read_bytes()

    def half_text(scratch: Path, *_: Any, **__: Any) -> None:
        scratch.write_bytes(b"half")
        raise error

    def half_tensors(_tensors: Any, scratch: Path, _metadata: Any) -> None:
        half_text(scratch)

    def no_replace(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", half_text)
        patch.setattr("safetensors.torch.save_file", half_tensors)
        with pytest.raises(type(error)):
            WRITERS[kind](path, 2)
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "replace", no_replace)
        with pytest.raises(type(error)):
            WRITERS[kind](path, 2)
    assert path.read_bytes() == old
    assert list(path.parent.iterdir()) == [path]
    WRITERS[kind](path, 2)
    assert path.read_bytes() != old
    assert list(path.parent.iterdir()) == [path]


def test_what_is_no_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    files.write_json(path, {"kept": True})
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(path, {"loss": float("nan")})
    assert json.loads(path.read_text()) == {"kept": True}
    assert list(tmp_path.iterdir()) == [path]


def test_files_are_ordinary_ones(tmp_path: Path) -> None:
    files.write_text(tmp_path / "ours", "x")
    (tmp_path / "theirs").write_text("x")
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("ours", "theirs")]
    assert modes[0] == modes[1]


@pytest.mark.filterwarnings("error:.*fan_in_fan_out")  # PEFT sets right what does not fit, with a warning
@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "bloom", "gpt_neox", "phi3"])
def test_peft_adapter_is_the_edit(family: str, tmp_path: Path) -> None:
    lm = tiny.build(family)
    plain = logits(lm.model)
    edit = low_rank(lm, {1: 1, 3: 4})
    edit.to_peft(tmp_path / "adapter")
    with edit.applied(lm):
        edited = logits(lm.model)
    adapted = peft.PeftModel.from_pretrained(tiny.build(family).model, str(tmp_path / "adapter"))
    torch.testing.assert_close(logits(adapted), edited, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(edited, plain, atol=1e-2)
    merged = adapted.merge_and_unload()
    torch.testing.assert_close(logits(merged), edited, atol=1e-4, rtol=1e-4)
    assert sorted(path.name for path in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_peft_layers_whose_names_begin_alike(tmp_path: Path) -> None:
    """The rank of layer 1 is not taken for that of layer 11."""
    config = tiny.CONFIGS["llama"]
    try:
        tiny.CONFIGS["llama"] = config | {"num_hidden_layers": 13}
        lm, base = tiny.build("llama"), tiny.build("llama").model
    finally:
        tiny.CONFIGS["llama"] = config
    edit = low_rank(lm, {1: 3, 11: 1, 12: 2})
    edit.to_peft(tmp_path)
    with edit.applied(lm):
        edited = logits(lm.model)
    adapted = peft.PeftModel.from_pretrained(base, str(tmp_path))
    torch.testing.assert_close(logits(adapted), edited, atol=1e-4, rtol=1e-4)


def test_describe(lm: LanguageModel) -> None:
    edit = low_rank(lm, {1: 2})
    first, second = edit.describe().splitlines()
    assert first == f"low_rank edit of tiny-llama by by hand: layer 1, rank 2, |delta V| {edit.norm(1):.3f}"
    assert second == "  the Eiffel Tower is located in: Paris -> Rome"
    insert = Fact("Ben", "{} plays", target_new="piano")
    erase = Fact("Ben", "{} plays", target_new=None, target_true="guitar")
    lines = ContextEdit(origin(lm, insert, erase, *[FACT] * 10), TEXT).describe().splitlines()
    assert TEXT in lines[0]
    assert lines[1:3] == ["  Ben plays: (nothing) -> piano", "  Ben plays: guitar -> (erased)"]
    assert len(lines) == 12
    assert lines[-1] == "  and 2 more"


def test_values_in_float64_are_not_rounded() -> None:
    lm = build("llama", torch.float64)
    values = lm.memory(1).values.clone()
    edit = low_rank(lm, {1: 1})
    left, right = edit.factors[1]
    with edit.applied(lm):
        assert torch.equal(lm.memory(1).values, values + left.double() @ right.double())
    assert torch.equal(lm.memory(1).values, values)
