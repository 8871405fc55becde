from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from jobs.shared.job import run_folder


def test_runs_that_begin_in_the_same_second_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime(2026, 1, 2, 3, 4, 5, tzinfo=tz)

    monkeypatch.setattr("jobs.shared.job.datetime", Stopped)
    folders = [Path(run_folder(None, str(tmp_path), {"name": "edit"})) for _ in range(3)]
    day = tmp_path / "2026-01-02"
    assert folders == [day / "03-04-05", day / "03-04-05-2", day / "03-04-05-3"]
    assert all(folder.is_dir() for folder in folders)
    there = tmp_path / "there"
    there.mkdir()
    parts = ("model", "data", "editor", "eval", "logger", "job", "mode", "seed", "choices")
    (there / "config.yaml").write_text("".join(f"{part}: {{a: 0}}\n" for part in parts))
    assert run_folder(str(there), str(tmp_path), {"name": "edit"}) == str(there)
