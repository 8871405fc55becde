import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import lists
import pytest
from made_runs import MakeRun, made_fact
from made_runs import make_run as make_run

from corrigenda.data import FactSet, read_facts, write_facts
from corrigenda.runs.store import Store


def test_an_edit_of_a_list_has_what_a_build_reports(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two facts that say two things of one subject the later is edited alone."""
    facts = [made_fact(number) for number in range(3)]
    facts += [replace(facts[0], target_new="Oslo", id="later"), made_fact(4)]
    write_facts(listed := tmp_path / "listed.jsonl", FactSet("lists", tuple(facts)))
    make_run("Retrieval", [True, False, True], said={"seconds_per_edit": 2.0})
    asked: list[list[str]] = []
    monkeypatch.setattr(lists.subprocess, "run", lambda command, **_: asked.append(command))
    monkeypatch.setattr(lists, "finished", lambda _: Store(tmp_path / "outputs").runs())
    monkeypatch.setattr(lists, "relative", str)
    (tmp_path / "of").mkdir()
    given: dict[str, Any] = {"model": "tiny", "dtype": "float32", "work": tmp_path}
    lists.edit(Namespace(**given), "retrieval", 4, listed, tmp_path / "of" / "report.json")
    assert "editor=retrieval" in asked[0]
    edited = read_facts(tmp_path / "of" / "facts.jsonl")
    assert [fact.id for fact in edited] == ["fact-1", "fact-2", "later"]
    report = json.loads((tmp_path / "of" / "report.json").read_text())
    assert (report["n_facts"], report["n_in_force"], report["n_holding"], report["seconds"]["solve"]) == (4, 3, 2, 6.0)
