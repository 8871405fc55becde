"""Edits that version 0.1 saved, with what their editors went on from inside the edit itself."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from wise_parts import DANIELLE, wise

from corrigenda import CodebookEdit, Edit, LanguageModel, SideMemoryEdit
from corrigenda.edits.state import VALUES
from corrigenda.moments.text import Text
from editing import EditRefusedError, Grace, Wise
from editing.memory_based.grace import GraceState
from editing.memory_based.wise.state import WiseState
from editing.shared.extending import state_of

SAVED = Path(__file__).parents[3] / "data_files" / "edits_before_states"
WISE = wise(steps=3, weight=0.3, other_subjects=1)
GRACE = Grace(layer=2, radius=1.0, steps=3, text=Text("self", tokens=256, length=8))


def old(name: str, lm: LanguageModel, folder: Path) -> Path:
    """An edit as version 0.1 left it; of the model at hand, should torch draw other random weights some day."""
    shutil.copytree(SAVED / name, folder)
    description: dict[str, Any] = json.loads((folder / "edit.json").read_text())
    description["origin"]["fingerprint"] = lm.fingerprint
    (folder / "edit.json").write_text(json.dumps(description))
    return folder


def test_wise(lm: LanguageModel, tmp_path: Path) -> None:
    """It loads, applies, goes on, and is saved in the new form, from which it goes on to the same bits."""
    folder = old("wise", lm, tmp_path / "old")
    raw, said = load_file(folder / "edit.safetensors"), json.loads((folder / "edit.json").read_text())["settings"]
    edit = Edit.load(folder)
    assert isinstance(edit, SideMemoryEdit)
    assert torch.equal(edit.deltas, raw["deltas"])
    with edit.applied(lm):
        assert list(lm.edits) == [edit]
    state = state_of("WISE", edit, WiseState)
    assert torch.equal(state.shards, raw["state.shards"])
    assert torch.equal(torch.cat(state.rows.coefficients), raw["state.rows.coefficients"])
    assert torch.equal(torch.cat([m for _, m in state.others]), raw["state.strangers"])
    assert [[name, len(m)] for name, m in state.others] == said["progress"]["strangers"]
    assert (state.held, state.shard_of, state.contradictions) == ((0, 1), (0, 0), 0)
    assert vars(state.margins) == said["progress"]["route"]
    assert list(state.near_scores) == said["progress"]["stranger_scores"]
    going_on = WISE.extend(lm, edit, [DANIELLE])
    assert len(going_on.origin.facts) == 3
    edit.save(tmp_path / "new")
    assert sorted(load_file(tmp_path / "new" / "edit.safetensors")) == ["deltas", "epsilons"]
    again = WISE.extend(lm, Edit.load(tmp_path / "new"), [DANIELLE])
    assert torch.equal(again.deltas, going_on.deltas)
    assert torch.equal(again.epsilons, going_on.epsilons)


def test_grace(lm: LanguageModel, tmp_path: Path) -> None:
    edit = Edit.load(old("grace", lm, tmp_path / "old"))
    assert isinstance(edit, CodebookEdit)
    state = state_of("GRACE", edit, GraceState)
    assert (state.labels, state.members) == (("Rome", "Italy"), (0, 1))
    going_on = GRACE.extend(lm, edit, [DANIELLE])
    assert isinstance(going_on.state, GraceState)
    assert going_on.state.labels[:2] == ("Rome", "Italy")
    edit.save(tmp_path / "new")
    again = GRACE.extend(lm, Edit.load(tmp_path / "new"), [DANIELLE])
    assert torch.equal(again.keys, going_on.keys)
    assert torch.equal(again.values, going_on.values)


@pytest.mark.parametrize(("name", "editor"), [("wise", WISE), ("grace", GRACE)])
def test_without_the_state_it_is_applied_but_not_extended(
    name: str, editor: Wise | Grace, lm: LanguageModel, tmp_path: Path
) -> None:
    Edit.load(old(name, lm, tmp_path / "old")).save(tmp_path / "new")
    (tmp_path / "new" / VALUES).unlink()
    edit = Edit.load(tmp_path / "new")
    with edit.applied(lm):
        assert list(lm.edits) == [edit]
    with pytest.raises(EditRefusedError, match=r"no editor state: state\.json"):
        editor.extend(lm, edit, [DANIELLE])
