import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from readers_parts import COUNTERFACT, changed, write_repository

from corrigenda.data import SCHEMAS, read_facts

ROOT = Path(__file__).parents[4]


def test_offline_from_a_fresh_process(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    program = textwrap.dedent(
        """
        import sys
        from corrigenda.data import read_facts
        assert "datasets" not in sys.modules, "datasets must be imported only when needed"
        import datasets
        try:
            read_facts("owner/name")
        except ConnectionError as error:
            print(error)
        """
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "cannot read 'owner/name'" in done.stdout
    assert "local path" in done.stdout


def test_folder_with_splits(tmp_path: Path) -> None:
    other = changed(COUNTERFACT, "case_id", 8)
    folder = write_repository(tmp_path / "cf", {"train": [COUNTERFACT], "test": [other, changed(other, "case_id", 9)]})
    assert list(read_facts(folder)) == [SCHEMAS["counterfact"](COUNTERFACT)]
    test = read_facts(str(folder), split="test", limit=1)
    assert test.name == "cf"
    assert [fact.id for fact in test] == ["8"]
    with pytest.raises(ValueError, match=r"(?i)dev.*available splits.*test") as caught:
        read_facts(folder, split="dev")
    assert str(folder) in str(caught.value)
    with pytest.raises(ValueError, match="'nope' not found"):
        read_facts(folder, config="nope")
