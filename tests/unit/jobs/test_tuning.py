from dataclasses import replace
from pathlib import Path

import program
import pytest
import tiny
from composed import composed

from corrigenda import EditRefusedError, Fact
from corrigenda.data import FactSet
from corrigenda.runs.folder import RunFolder
from corrigenda.system.plain_data import read_json
from corrigenda.system.workers import Workers
from editing import Rome
from eval import EditRun
from jobs.tune import tuning
from jobs.tune.job import _code, _note_code
from jobs.tune.page import lines_of
from jobs.tune.settings import TuneSettings

FACTS = FactSet("facts", (Fact("Eiffel tower", "the {} is in", "Rome"),))


def killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_what_stays_as_it_is_is_kept_before_anything_is_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = composed("job=tune")
    begun = tuning.Tuning(config, TuneSettings(), RunFolder(tmp_path), tiny.llama(), FACTS)

    monkeypatch.setattr(tuning, "override_names", lambda: ["job", "editor.ratio", "editor"])
    monkeypatch.setattr(tuning, "traces_of", killed)
    with pytest.raises(KeyboardInterrupt):
        begun.run()
    assert read_json(tmp_path / "fixed.json") == {"fixed": ["ratio"]}


def test_the_file_of_another_model_is_seen_before_anything_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine/model").mkdir(parents=True)
    (tmp_path / "mine/model/tuned.yaml").write_text("name: some/model\n")
    config = composed("job=tune", "model=own", "model.name=another/model")
    asked = TuneSettings(model="tuned", conf=str(tmp_path / "mine"))
    monkeypatch.setattr(tuning, "traces_of", killed)
    (tmp_path / "fixed.json").write_text('{"fixed": []}')
    file = replace(asked, conf=str(tmp_path / "fixed.json"))
    with pytest.raises(NotADirectoryError, match=r"job\.conf=.*fixed\.json is a file, not a folder"):
        tuning.Tuning(config, file, RunFolder(tmp_path), tiny.llama(), FACTS).run()
    with pytest.raises(FileExistsError, match=r"is of the model some/model; give job\.model= another name"):
        tuning.Tuning(config, asked, RunFolder(tmp_path), tiny.llama(), FACTS).run()


def test_the_facts_of_a_trial_are_spread_over_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, given = composed("job=tune", "workers.number=3", "before=null"), list[Workers]()

    def run_single(_: EditRun, workers: Workers) -> None:
        given.append(workers)
        raise EditRefusedError("this will do")

    monkeypatch.setattr(tuning, "run_single", run_single)
    monkeypatch.setattr(tuning, "prepare", lambda *_: None)
    begun = tuning.Tuning(config, TuneSettings(), RunFolder(tmp_path), tiny.llama(), FACTS)
    with pytest.raises(EditRefusedError):
        begun._scored(Rome(layer=1), RunFolder(tmp_path / "trial"), 0, 0)
    assert given == [Workers(3)]


def test_workers_that_would_have_nothing_to_do_are_refused(tmp_path: Path) -> None:
    asked = ("tune", "mode=batch", "editor=memit", "workers.number=2", "model=own", f"model.name={tmp_path}/none")
    said = program.call(tmp_path, *asked, succeeds=False)
    assert "workers.number=2: only mode=single spreads the facts of a trial; leave it out" in said


def test_trials_by_other_code_are_said_and_noted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config, folder = composed("job=tune"), RunFolder(tmp_path)
    begun = {"code": _code(config), "id": "0123"}
    folder.identify(**begun)
    _note_code(config, folder)
    assert (folder.identity, caplog.text) == (begun, "")
    folder.go_on_with(code="another")
    for _ in range(2):  # the second time it is known
        _note_code(config, folder)
    assert folder.identity["code"] == f"another+{begun['code']}"
    assert folder.identity["id"] != "0123"
    assert caplog.text.count("the code has changed since") == 1


def test_an_error_of_several_lines_is_one_row_of_the_page() -> None:
    told = {"settings": {}, "why": "drawn", "metrics": {}, "seconds": 1.0}
    trials = [
        {**told, "number": 0, "value": None, "error": "crashed: sizes differ\n  (a | b)"},
        {**told, "number": 1, "value": 0.5, "error": ""},
    ]
    about = {"editor": "rome", "model": "tiny", "data": "facts", "mode": "batch", "facts": ["a"], "seconds": 2.0}
    about |= {"objective": "S", "traced": {"layers": [], "why": "nothing was traced"}, "later": "model=tiny-tuned"}
    lines = [*lines_of(about | {"trials": trials, "best": 1})]
    assert "| 0 | as the editor has them | drawn | crashed: sizes differ (a / b) | 1 |" in lines
    assert all("\n" not in line for line in lines)
