from pathlib import Path

import pytest
import tiny
from omegaconf import OmegaConf

from corrigenda import Fact
from corrigenda.data import FactSet
from corrigenda.runs.folder import RunFolder
from corrigenda.system.plain_data import read_json
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
