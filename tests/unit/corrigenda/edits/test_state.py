"""Editor states: beside the edit on disk, known by their hashes, never a part of what is applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from edits_parts import low_rank, origin
from malformed_parts import Damage, changed_json, cut, refused
from safetensors.torch import load_file
from torch import Tensor

from corrigenda import ContextEdit, Edit, LanguageModel, LowRankEdit
from corrigenda.edits.state import TENSORS, VALUES, EditorState, StoredState, as_kind
from editing import EditRefusedError
from editing.shared.extending import check_previous, layers_of, state_of


@dataclass(frozen=True, eq=False)
class KeyHistory(EditorState):
    """What a closed-form editor with history keeps: H = sum of K^T K, by layer, and the ratio it was made with."""

    H: Mapping[int, Tensor]
    ratio: float
    kind: ClassVar[str] = "test_key_history"

    def stored(self) -> StoredState:
        return StoredState(self.kind, {str(layer): matrix for layer, matrix in self.H.items()}, {"ratio": self.ratio})

    @classmethod
    def restore(cls, stored: StoredState) -> KeyHistory:
        return cls({int(layer): matrix for layer, matrix in stored.tensors.items()}, float(stored.values["ratio"]))


def history_edit(lm: LanguageModel) -> LowRankEdit:
    edit = low_rank(lm, 0)
    return replace(edit, state=KeyHistory({n: left @ left.T for n, (left, _) in edit.factors.items()}, 0.25))


def test_a_state_survives_the_disk_beside_its_edit(lm: LanguageModel, tmp_path: Path) -> None:
    edit = history_edit(lm)
    edit.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edit.json", "edit.safetensors", VALUES, TENSORS]
    assert sorted(load_file(tmp_path / "edit.safetensors")) == ["1.A", "1.B", "2.A", "2.B"]  # nothing of the state
    again = Edit.load(tmp_path)
    state = state_of("MEMIT", again, KeyHistory)
    assert state.ratio == 0.25
    assert all(torch.equal(state.H[n], edit.state.H[n]) for n in (1, 2))
    assert check_previous("MEMIT", lm, [2, 1], again, LowRankEdit) is again
    with pytest.raises(EditRefusedError, match=r"of layers 1, 2, this editor's layer is 1"):
        check_previous("MEMIT", lm, [1], again, LowRankEdit)


@pytest.mark.parametrize("missing", [VALUES, TENSORS])
def test_without_its_state_an_edit_applies_and_says_what_is_missing(
    missing: str, lm: LanguageModel, tmp_path: Path
) -> None:
    edit = history_edit(lm)
    edit.save(tmp_path)
    (tmp_path / missing).unlink()
    again = Edit.load(tmp_path)
    values = lm.memory(1).values.clone()
    with again.applied(lm):
        assert torch.equal(lm.memory(1).values, values + edit.delta(1))
    with pytest.raises(EditRefusedError, match=r"no editor state: state\.json and state\.safetensors"):
        state_of("MEMIT", again, KeyHistory)


def test_a_state_whose_kind_is_not_known_yet(
    lm: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays as it was read, is saved again to the bit, and becomes typed when its editor asks for it."""
    history_edit(lm).save(tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.delitem(EditorState.kinds, KeyHistory.kind)
        unknown = Edit.load(tmp_path / "a")
        assert isinstance(unknown.state, StoredState)
        unknown.save(tmp_path / "b")
    for name in (VALUES, TENSORS):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert state_of("MEMIT", unknown, KeyHistory).ratio == 0.25


def test_another_editors_state(lm: LanguageModel) -> None:
    class Other(KeyHistory):
        kind: ClassVar[str] = "test_other"

    edit = history_edit(lm)
    assert as_kind(edit.state, Other) is None
    with pytest.raises(EditRefusedError, match="kind 'test_other', the edit has one of 'test_key_history'"):
        state_of("MEMIT", edit, Other)
    del EditorState.kinds["test_other"]


def test_saved_over_an_edit_with_a_state(lm: LanguageModel, tmp_path: Path) -> None:
    """No state of an older edit is left beside one that has none."""
    history_edit(lm).save(tmp_path)
    ContextEdit(origin(lm), "Ben is. ").save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edit.json", "edit.safetensors"]
    again = Edit.load(tmp_path)
    assert isinstance(again, ContextEdit)
    assert again.state is None


@pytest.mark.parametrize(
    ("name", "damage"), [(VALUES, changed_json(VALUES, lambda v: v.update(more=1))), (TENSORS, cut(TENSORS, -4))]
)
def test_damaged_states(name: str, damage: Damage, lm: LanguageModel, tmp_path: Path) -> None:
    history_edit(lm).save(tmp_path)
    damage(tmp_path)
    refused(ValueError, rf"{name} is damaged.*SHA-256", Edit.load, tmp_path)


def test_a_state_of_another_edit_is_not_taken(lm: LanguageModel, tmp_path: Path) -> None:
    """A state.json that was copied there from elsewhere is not the one that edit.json names."""
    edit = history_edit(lm)
    edit.save(tmp_path / "a")
    replace(edit, state=KeyHistory(edit.state.H, 0.5)).save(tmp_path / "b")
    (tmp_path / "a" / VALUES).write_bytes((tmp_path / "b" / VALUES).read_bytes())
    refused(ValueError, r"state\.json is damaged", Edit.load, tmp_path / "a")


def test_what_json_cannot_hold_is_refused_before_anything_is_written(lm: LanguageModel, tmp_path: Path) -> None:
    broken = replace(history_edit(lm), state=KeyHistory({}, float("nan")))
    refused(ValueError, "JSON", broken.save, tmp_path)
    assert not (tmp_path / "edit.json").exists()


def test_layers_of(lm: LanguageModel) -> None:
    assert layers_of(history_edit(lm)) == [1, 2]
    assert layers_of(ContextEdit(origin(lm), "Ben is. ")) == []
