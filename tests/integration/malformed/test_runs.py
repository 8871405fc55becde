import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import program
import pytest
from run_parts import make_home, own_data, record, timeless

from corrigenda.runs.store import read_run

EDITOR = """
import os
from dataclasses import dataclass
from editing import EditRefusedError, InContext

@dataclass(frozen=True)
class Moody(InContext):
    def edit(self, lm, facts):
        mood = os.environ["MOOD"]  # no setting, nor a file that one names: the run stays the same run
        if mood == "refuses":
            raise EditRefusedError("not today")
        if mood == "crashes" and any(fact.subject == "tower" for fact in facts):
            raise ZeroDivisionError("a bug")
        if mood == "interrupts":
            raise KeyboardInterrupt
        return super().edit(lm, facts)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny model, four facts and an editor with moods."""
    subjects = enumerate(("Thomas", "tower", "red", "blue"))
    plain: dict[str, Any] = {"paraphrases": [], "neighbourhood": [], "generation": []}
    make_home(tmp_path, [record(number, subject, **plain) for number, subject in subjects])
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "moody_editor.py").write_text(EDITOR)
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    monkeypatch.delitem(sys.modules, "moody_editor", raising=False)
    return tmp_path


def arguments_of(home: Path, *more: str) -> list[str]:
    return [*own_data(home), "eval=probabilities", *more]


def run(home: Path, mood: str, *more: str, succeeds: bool = True) -> str:
    editor = ["editor=in_context", "editor._target_=moody_editor.Moody"]
    first = ["-m"] if more[:1] == ("-m",) else []
    asked = arguments_of(home, *editor, *more[len(first) :])
    with patch.dict(os.environ, {"MOOD": mood}):
        return program.call(home, *first, *asked, succeeds=succeeds)


@pytest.mark.parametrize("mode", ["single", "batch", "sequential"])
def test_a_run_with_crashes_is_not_finished_and_goes_on(home: Path, mode: str) -> None:
    calm, folder = home / "calm", home / "run"
    asked = [f"mode={mode}", "job.sequential.checkpoints=[1,3]"]
    run(home, "works", *asked, f"hydra.run.dir={calm}", "store=other")
    said = run(home, "crashes", *asked, f"hydra.run.dir={folder}", succeeds=False)
    crashed = 4 if mode == "batch" else 1
    assert f"{crashed} of 4 edits crashed, and the run is not finished; the first: fact-" in said.splitlines()[-1]
    assert "ZeroDivisionError('a bug')" in said.splitlines()[-1]
    assert read_run(folder).state == "unfinished"
    run(home, "works", *asked, f"hydra.run.dir={folder}")  # the same command
    assert read_run(folder).state == "finished"
    for of in ("cases", "retention"):
        assert timeless(folder, of) == timeless(calm, of)


def test_too_many_failures_are_an_error(home: Path) -> None:
    said = run(home, "refuses", "hydra.run.dir=run", succeeds=False)
    assert "4 of 4 edits failed, more than job.most_failures=0.5 allows; the first: fact-0: refused: not today" in said
    assert read_run(home / "run").state == "finished"  # refusals are a result
    assert "more than job.most_failures=0.5" in run(home, "refuses", "hydra.run.dir=run", succeeds=False)
    assert "finished already" in run(home, "refuses", "hydra.run.dir=run", "job.most_failures=1.0")
    said = run(home, "refuses", "resume=run", "force=true", "job.most_failures=1.0")
    assert "(force=true without resume= runs it again)" in said


def test_ctrl_c_says_how_to_go_on(home: Path) -> None:
    said = run(home, "interrupts", "hydra.run.dir=run", succeeds=False)
    assert said.splitlines()[-1] == f"interrupted; what is finished is kept; go on with resume={home / 'run'}"
    run(home, "works", "resume=run")
    assert read_run(home / "run").state == "finished"


def test_the_same_sweep_in_the_same_folder_goes_on(home: Path) -> None:
    sweep = ["-m", "seed=0,1", f"hydra.sweep.dir={home / 'sweep'}", "store=elsewhere"]
    run(home, "works", *sweep)
    (home / "sweep" / "1" / "summary.json").unlink()
    said = run(home, "works", *sweep)
    assert said.count("finished already") == 1
    assert read_run(home / "sweep" / "1").state == "finished"


def test_no_folders_are_left_of_runs_that_went_elsewhere(home: Path) -> None:
    run(home, "works")
    folders = sorted((home / "outputs").glob("*/*"))
    assert len(folders) == 1
    assert "finished already" in run(home, "works")
    (folders[0] / "summary.json").unlink()
    assert "was left unfinished; going on there" in run(home, "works")
    assert "going on there" in (folders[0] / "run.log").read_text()
    assert "no file or folder" in run(home, "works", "data.path=nowhere.json", succeeds=False)
    assert sorted((home / "outputs").glob("*/*")) == folders
