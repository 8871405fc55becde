"""Runs that version 0.1 wrote (``version_0_1``, made by its own code) are read, resumed and checked for damage."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from corrigenda.runs.folder import RunFolder
from corrigenda.runs.records import records_in
from corrigenda.runs.store import Store, read_run

HERE = Path(__file__).parent / "version_0_1"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    shutil.copytree(HERE, tmp_path / "old")
    return tmp_path / "old"


@pytest.fixture
def records() -> list[dict[str, Any]]:
    return json.loads((HERE / "records.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["finished", "unfinished", "killed_while_finishing"])
def test_old_records_come_back_bit_for_bit(old: Path, records: list[dict[str, Any]], name: str) -> None:
    assert json.dumps(list(records_in(old / name))) == json.dumps(records)  # in their order; 1.0 is not 1
    later = [record | {"seconds": None} for record in records]
    assert json.dumps(list(records_in(old / name, "retention"))) == json.dumps(later)


def test_old_runs_in_the_store(old: Path) -> None:
    found = {run.path.name: (run.state, run.done, run.problem) for run in Store(old).runs()}
    assert found == {
        "finished": ("finished", 4, ""),
        "killed_while_finishing": ("unfinished", 4, ""),
        "unfinished": ("unfinished", 4, ""),
    }


@pytest.mark.parametrize("name", ["unfinished", "killed_while_finishing"])
def test_an_old_run_goes_on(old: Path, records: list[dict[str, Any]], name: str) -> None:
    folder = RunFolder(old / name)
    with (folder.path / "cases.jsonl").open("a") as file:
        file.write('{"id": "cut off in the wri')
    more = records[0] | {"id": "fact-4"}
    assert len(list(folder.cases())) == 4
    folder.append(more)
    folder.finish({"editor": "rome", "model": "tiny", "data": "facts", "mode": "sequential", "n_facts": 5})
    assert json.dumps(list(folder.cases())) == json.dumps([*records, more])
    run = read_run(folder.path)
    assert (run.state, run.done) == ("finished", 5)


def test_a_flipped_byte_in_an_old_file_is_noticed(old: Path, records: list[dict[str, Any]]) -> None:
    """Wherever it is: the records are as they were written, or there is an error."""
    path = old / "finished" / "cases.parquet"
    content = path.read_bytes()
    noticed = 0
    for place in range(0, len(content), 17):
        damaged = bytearray(content)
        damaged[place] ^= 0x55
        path.write_bytes(damaged)
        with suppress(ValueError):
            assert json.dumps(list(records_in(old / "finished"))) == json.dumps(records)  # nothing that matters
            continue
        noticed += 1
    assert noticed > len(content) / 17 / 3


def test_a_cut_old_file_makes_a_damaged_run(old: Path) -> None:
    path = old / "finished" / "cases.parquet"
    path.write_bytes(path.read_bytes()[:1000])
    run = read_run(path.parent)
    assert run.state == "damaged"
    assert "cases.parquet: damaged" in run.problem
