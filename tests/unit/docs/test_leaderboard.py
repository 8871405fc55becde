"""docs/leaderboard.*: the table of editors, the jobs, and the files from data alone."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import leaderboard
import pages
import pytest
from made_runs import make_run as make_run

from editing import EDITORS


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    leaderboard.options(parser)
    return parser.parse_args(given)


def test_every_editor_is_in_the_table_or_there_is_a_reason() -> None:
    assert {entry.editor for entry in leaderboard.TABLE} <= set(EDITORS)
    assert leaderboard.not_in_table() == []


def test_the_jobs_of_the_table() -> None:
    jobs = leaderboard.jobs(arguments("--facts", "7", "eval.max_new_tokens=9"))
    asked = [dict(override.split("=", 1) for override in job) for job in jobs]
    batch = {one["editor"] for one in asked if one["mode"] == "batch"}
    assert {"rome", "grace", "finetune", "random"} <= batch
    assert batch.isdisjoint({"in_context", "update_neurons", "ft_l"})
    assert {one["data.limit"] for one in asked} == {"7"}
    assert {one["eval.max_new_tokens"] for one in asked} == {"9"}  # what is given last counts
    assert {one["editor"] for one in asked if one["save_edits"] == "true"} == {"rome"}
    only = leaderboard.jobs(arguments("--only", "in_context", "--modes", "batch"))
    assert [job[0] for job in only] == ["mode=batch"] * 2  # what is asked for is run
    for job in jobs:  # the last one that edits nothing comes before the one whose size it takes
        assert job[0].startswith("mode=")


def test_the_page_from_the_data_alone(tmp_path: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are collected and taken away: the page is made of the data, and says what it does not know of them."""
    make_run("rome", [True] * 30 + [False] * 10)
    path = make_run("memit", [True] * 20 + [False] * 20)
    with pages.noting() as note:
        pass
    note["load"] = [0.0, 0.5]
    pages.add_note(path, note)
    docs = tmp_path / "docs"
    monkeypatch.setattr("sys.argv", ["leaderboard.py", "collect", "--write"])
    given = ["--write", "--store", str(tmp_path / "outputs"), "--docs", str(docs)]
    found = leaderboard.collect(arguments(*given))
    assert found is not None
    pages.write_data("leaderboard", "python docs/reports/leaderboard.py collect --write", found, docs)
    shutil.rmtree(tmp_path / "outputs")
    paths = leaderboard.page(pages.read_data("leaderboard", docs), docs)
    assert [path.name for path in paths] == ["leaderboard.md", "leaderboard.csv", "leaderboard.html"]
    text, page = paths[0].read_text(), paths[2].read_text()
    assert "| 1 | rome | 40 |" in text
    assert "The first 100 facts of each data set, seed 0" in text
    assert "Made by python docs/reports/leaderboard.py collect --write" in text
    assert "The figures are of 2 versions of the code" in text
    assert "facts single rome seed 0" in text
    assert "Seconds may be those of a machine that other work shared" in text
    assert "Subject 3 lives in the city of" in page  # a case
    again = leaderboard.page(json.loads(json.dumps(pages.read_data("leaderboard", docs))), docs)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]


def test_cases_that_are_missing_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaderboard, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="the cases are missing"):
        leaderboard.page({"command": "", "made": [], "runs": {}, "figures": {"view": {}, "about": ""}}, tmp_path)
