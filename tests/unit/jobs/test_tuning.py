from pathlib import Path

import program
import pytest
import tiny
from composed import composed
from omegaconf import OmegaConf

from corrigenda import EditRefusedError, Fact
from corrigenda.data import FactSet
from corrigenda.runs.folder import RunFolder
from corrigenda.system.plain_data import read_json
from corrigenda.system.workers import Workers
from editing import Rome
from eval import EditRun
from jobs.tune import tuning
from jobs.tune.settings import TuneSettings

FACTS = FactSet("facts", (Fact("Eiffel tower", "the {} is in", "Rome"),))


def test_what_stays_as_it_is_is_kept_before_anything_is_traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = OmegaConf.create({"job": {"locator": {"_target_": "locate.CausalTrace"}}})
    begun = tuning.Tuning(config, TuneSettings(), RunFolder(tmp_path), tiny.llama(), FACTS)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "override_names", lambda: ["job", "editor.ratio", "editor"])
    monkeypatch.setattr(tuning, "traces_of", killed)
    with pytest.raises(KeyboardInterrupt):
        begun.run()
    assert read_json(tmp_path / "fixed.json") == {"fixed": ["ratio"]}


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
    said = program.call(tmp_path, "tune", "mode=batch", "editor=memit", "workers.number=2", succeeds=False)
    assert "workers.number=2: only mode=single spreads the facts of a trial; leave it out" in said
