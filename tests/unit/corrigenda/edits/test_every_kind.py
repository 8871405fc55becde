"""What holds for edits of every kind: saved, loaded, stacked, refused, and gone bit for bit."""

import copy
import errno
import itertools
from contextlib import nullcontext
from pathlib import Path

import pytest
import tiny
import torch
from edits_parts import (
    KINDS,
    Make,
    added_neurons,
    build,
    context,
    experts,
    low_rank,
    retrieval,
    same,
    scaled,
    set_where_predicting,
    state,
    values,
)
from malformed_parts import refused

from corrigenda import Edit, WrongModelError

every = pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@every
def test_saved_loaded_and_taken_back(make: Make, dtype: torch.dtype, tmp_path: Path) -> None:
    """What is loaded does the same to another copy of the model, bit for bit; and is exported, or refuses to be."""
    lm, fresh = build(make), build(make)
    for each in (lm, fresh):
        each.model.to(dtype)
    before, edit = state(lm), make(lm, 3)
    assert same(state(lm), before)  # making one changes nothing
    edit.save(tmp_path / "deep" / "edit")
    loaded = Edit.load(tmp_path / "deep" / "edit")
    assert type(loaded) is type(edit)
    assert (loaded.kind, loaded.origin, loaded._settings()) == (edit.kind, edit.origin, edit._settings())
    assert loaded.describe() == edit.describe()
    assert f"{edit.kind} edit of {lm.name} by by hand" in edit.describe()
    with edit.applied(lm) as same_model:
        assert same_model is lm
        after = state(lm)
    assert not torch.equal(after["logits"], before["logits"]) or make is context  # which is read before a prompt
    assert same(state(lm), before)
    with pytest.raises(ZeroDivisionError), edit.applied(lm):
        _ = 1 / 0
    assert same(state(lm), before)
    with loaded.applied(fresh):
        assert same(state(fresh), after)
        if not edit.in_weights:
            why = "have biases" if make is added_neurons else f"{edit.kind}.*not in the weights"
            with pytest.raises(ValueError, match=why):  # neurons without biases are written: test_added_neurons
                fresh.save_pretrained(tmp_path / "model")
            assert not (tmp_path / "model").exists()
    assert same(state(fresh), before)
    assert not fresh.edits.untouched
    if make is low_rank:
        edit.to_peft(tmp_path / "adapter")
        assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    else:
        refused(TypeError, rf"{edit.kind} edit.*low_rank", edit.to_peft, tmp_path / "adapter")
    if make not in (low_rank, values):
        with pytest.raises(TypeError, match=rf"{edit.kind} edit.*GGUF adapter or file.*low_rank and values.*: \w"):
            edit.to_gguf_adapter(tmp_path / "adapter")


@every
def test_the_models_own_saving_says_what_it_leaves_out(
    make: Make, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """`lm.model.save_pretrained` writes the weights alone; it is the class's own again when the edit is gone."""
    lm = build(make)
    edit = make(lm, 3)
    for number, applied in enumerate((True, False)):
        with edit.applied(lm) if applied else nullcontext():
            recwarn.clear()
            lm.model.save_pretrained(tmp_path / str(number))
        said = [str(one.message) for one in recwarn if "not in the weights" in str(one.message)]
        assert len(said) == (applied and not edit.in_weights)
        assert all(edit.kind in one for one in said)
    assert "save_pretrained" not in lm.model.__dict__


@every
def test_stacked_suspended_and_taken_out_in_any_order(make: Make) -> None:
    """Two of the kind and one of the weights: what is left acts as if the others had never been."""
    lm = build(make)
    edits = [make(lm, 3), (experts if make is experts else low_rank)(lm, 5), make(lm, 7)]
    alone = {}
    for some in (s for n in range(4) for s in itertools.combinations(range(3), n)):
        other = build(make)
        for number in some:
            edits[number].apply(other)
        alone[some] = state(other)
    for order in itertools.permutations(range(3)):
        for edit in edits:
            edit.apply(lm)
        with lm.edits.suspended():
            assert same(state(lm), alone[()])
        with pytest.raises(ZeroDivisionError), lm.edits.suspended():
            _ = 1 / 0
        left = [0, 1, 2]
        for number in order:
            assert list(lm.edits) == [edits[n] for n in left]
            assert same(state(lm), alone[tuple(left)])
            edits[number].revert(lm)
            left.remove(number)
        assert same(state(lm), alone[()])


@every
def test_another_model(make: Make) -> None:
    lm, other, narrow = build(make), build(make, seed=1), tiny.build("gpt2")
    edit, before, of_narrow = make(lm, 3), state(other), state(narrow)
    with pytest.raises(
        WrongModelError, match=rf"made on .*{lm.fingerprint[:12]}.*{other.fingerprint[:12]}.*strict=False"
    ):
        edit.apply(other)
    assert same(state(other), before)
    with edit.applied(other, strict=False):
        assert not same(state(other), before)
    assert same(state(other), before)
    if make not in (context, retrieval, scaled, set_where_predicting):  # the neurons that these name are there, too
        with pytest.raises(WrongModelError):
            edit.apply(narrow, strict=False)
    assert len(narrow.edits) == 0
    assert same(state(narrow), of_narrow)


@every
def test_a_copy_has_its_own_edits(make: Make) -> None:
    lm = build(make)
    edit, clean = make(lm, 2), state(lm)
    edit.apply(lm)
    edited = state(lm)
    twin = copy.deepcopy(lm)
    assert same(state(twin), edited)
    assert same(state(lm), edited)
    edit.revert(lm)
    assert same(state(lm), clean)
    assert same(state(twin), edited)
    edit.revert(twin)
    assert same(state(twin), clean)
    with edit.applied(twin):
        assert same(state(twin), edited)
    assert same(state(lm), clean)


def test_a_kill_while_an_edit_is_written_over_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run takes a folder with a description for a whole edit: it must not be that of the earlier one."""

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    lm = build(low_rank)
    low_rank(lm, 3).save(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("corrigenda.edits.edit.write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            low_rank(lm, 2).save(tmp_path)
    refused(FileNotFoundError, r"holds no edit: there is no edit\.json", Edit.load, tmp_path)


def test_a_full_disk_leaves_the_earlier_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    lm = build(low_rank)
    low_rank(lm, 3).save(tmp_path)
    before = Edit.load(tmp_path).describe()
    monkeypatch.setattr("safetensors.torch.save_file", full)
    refused(OSError, r"no space left on the disk.*edit\.safetensors", low_rank(lm, 2).save, tmp_path)
    assert Edit.load(tmp_path).describe() == before
