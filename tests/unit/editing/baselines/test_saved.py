from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import tiny
import torch
from wise_parts import BEN, EIFFEL

from corrigenda import Fact, LanguageModel, LowRankEdit, Origin
from corrigenda.errors import DamagedFileError
from corrigenda.runs.folder import RunFolder
from editing import EditRefusedError, RandomUpdate, Saved


@dataclass(frozen=True)
class Drawn:
    """An editor whose update is of rank one and different for all facts."""

    name: ClassVar[str] = "drawn"

    def edit(self, lm: LanguageModel, facts: Sequence[Fact]) -> LowRankEdit:
        draw = torch.Generator().manual_seed(len(facts[0].subject) + 100 * len(facts))
        memory = lm.memory(1)
        left, right = (torch.randn(shape, generator=draw) for shape in ((memory.d_ffn, 1), (1, memory.d_model)))
        return LowRankEdit.of(lm, Origin.of(lm, self, facts), {1: (left, right)})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run that edited both facts apart, and another time together."""
    lm, folder = tiny.build("llama"), RunFolder(tmp_path)
    for number, fact in enumerate((EIFFEL, BEN)):
        folder.save_edit(Drawn().edit(lm, [fact]), number, fact.id)
    folder.save_edit(Drawn().edit(lm, [EIFFEL, BEN]), 0, "all")
    return tmp_path


@pytest.mark.parametrize("facts", [[EIFFEL], [BEN], [EIFFEL, BEN]])
def test_the_edit_is_the_one_that_was_saved(lm: LanguageModel, run: Path, facts: list[Fact]) -> None:
    found, made = Saved(str(run)).edit(lm, facts), Drawn().edit(lm, facts)
    assert found.origin.editor == "drawn"
    with made.applied(lm):
        wanted = lm.memory(1).values.clone()
    with found.applied(lm):
        assert torch.equal(lm.memory(1).values, wanted)


def test_a_random_update_of_the_size_of_saved_ones(lm: LanguageModel, run: Path) -> None:
    saved, random = Saved(str(run)).edit(lm, [BEN]), RandomUpdate(like=Saved(str(run))).edit(lm, [BEN])
    assert isinstance(saved, LowRankEdit)
    assert random.norm(1) == pytest.approx(saved.norm(1), rel=1e-5)


def test_facts_without_an_edit(run: Path, tmp_path: Path) -> None:
    lm, saved = tiny.build("llama"), Saved(str(run))
    with pytest.raises(EditRefusedError, match=r"3 edits, none of"):
        saved.edit(lm, [BEN, EIFFEL])  # another order is another edit
    with pytest.raises(EditRefusedError, match="another fact with the id"):
        saved.edit(lm, [replace(BEN, target_new="Spain")])
    with pytest.raises(FileNotFoundError, match="save_edits=true"):
        Saved(str(tmp_path / "nothing"))


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"origin": {"facts": ["x"]}}'])
def test_a_damaged_edit_is_named(run: Path, text: str) -> None:
    path = next((run / "edits").glob("*/edit.json"))
    path.write_text(text)
    with pytest.raises(DamagedFileError, match=rf"saved: .*{path.parent.name}/edit\.json is damaged"):
        Saved(str(run))
