import argparse
import time
from pathlib import Path
from typing import Any

import options
import pages
import pytest
import rows
import work

from corrigenda import Fact

FACTS = [Fact(f"subject {number}", "{} is", "Rome", id=f"fact-{number}") for number in range(3)]


def test_options_have_the_types_of_their_defaults() -> None:
    parser = argparse.ArgumentParser()
    options.asking("--minutes", facts=(20, "how many"), order_t=1.5, lacking=False, data=Path("facts.json"))(parser)
    found = parser.parse_args([])
    assert (found.facts, found.order_t, found.lacking, found.minutes) == (20, 1.5, False, None)
    assert options.deadline_of(found) is None
    found = parser.parse_args(["--facts", "3", "--order-t", "2", "--lacking", "--data", "x", "--minutes", "1"])
    assert (found.facts, found.order_t, found.lacking, found.data) == (3, 2.0, True, Path("x"))
    assert 0 < (options.deadline_of(found) or 0.0) - time.monotonic() <= 60


def test_what_is_there_is_not_found_again(tmp_path: Path) -> None:
    path = tmp_path / "row" / "values.json"
    with pytest.raises(options.NotFinishedError):
        work.once(path, lambda: 1, deadline=0.0)
    assert [work.once(path, lambda: 1), work.once(path, lambda: 2, deadline=0.0)] == [1, 1]
    assert len(pages.made(path.parent)) == 1


def test_records_go_on(tmp_path: Path) -> None:
    asked: list[str] = []

    def find(fact: Fact) -> dict[str, Any]:
        asked.append(fact.id)
        return {"id": fact.id}

    first = next(work.records(tmp_path, FACTS, find))
    assert (first["id"], len(pages.made(tmp_path))) == ("fact-0", 1)
    assert [one["id"] for one in work.records(tmp_path, FACTS, find)] == ["fact-0", "fact-1", "fact-2"]
    assert len(list(work.records(tmp_path, FACTS, find, deadline=0.0))) == 3
    assert asked == ["fact-0", "fact-1", "fact-2"]
    assert [bool(one["ended"]) for one in pages.made(tmp_path)] == [True, True]  # nothing is noted where all are there
    with pytest.raises(options.NotFinishedError):
        list(work.records(tmp_path / "other", FACTS, find, deadline=0.0))


def test_tests_of_a_table_are_corrected_together() -> None:
    tests = [{"p": 0.01}, {"p": 0.5}, {"p": 0.02}]
    rows.corrected(tests, to="holm")
    assert [one["holm"] for one in tests] == pytest.approx([0.03, 0.5, 0.04])
    rows.corrected(tests)
    assert [one["p"] for one in tests] == pytest.approx([0.03, 0.5, 0.04])
