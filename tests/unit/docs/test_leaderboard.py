import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import leaderboard
import leaderboard_page
import leaderboard_tables
import pages
import pytest
import words
from made_runs import make_run as make_run

from editing import EDITORS


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    leaderboard.options(parser)
    return parser.parse_args(given)


def test_every_editor_is_in_the_table_or_there_is_a_reason() -> None:
    assert set(leaderboard.TABLE) <= set(EDITORS)
    assert leaderboard.not_in_table() == []


def test_the_jobs_of_the_table() -> None:
    jobs = leaderboard.jobs(arguments("--facts", "7", "eval.max_new_tokens=9"))
    asked = [dict(override.split("=", 1) for override in job) for job in jobs]
    batch = {one["editor"] for one in asked if one["mode"] == "batch"}
    assert {"rome", "grace", "finetune", "random"} <= batch
    assert batch.isdisjoint({"in_context", "update_neurons", "ft_l"})
    assert {one["data.limit"] for one in asked} == {"7"}
    assert {one["eval.max_new_tokens"] for one in asked} == {"9"}  # what is given last counts
    assert {one["model"] for one in asked} == set(leaderboard_tables.MODELS)
    assert {one["editor"] for one in asked if one["save_edits"] == "true"} == {"rome"}
    smallest = ("--models", leaderboard_tables.MODELS[0])
    only = leaderboard.jobs(arguments("--only", "in_context", "--modes", "batch", *smallest))
    assert [job[0] for job in only] == ["mode=batch"] * 2  # what is asked for is run
    for job in jobs:  # the last one that edits nothing comes before the one whose size it takes
        assert job[0].startswith("mode=")
    with pytest.raises(SystemExit, match="no such model: gpt"):
        leaderboard.jobs(arguments("--models", "gpt"))


def test_a_table_says_which_editors_run_on_which_facts(tmp_path: Path) -> None:
    """Of the larger model: the editors that are named, so many facts, and a part of the neighbourhood prompts."""
    (part,) = [one for one in leaderboard.PARTS if one.of == ("qwen2.5-coder-0.5b", "counterfact", "batch")]
    assert part.neighbours is not None
    asked = [{"requested_rewrite": {}, "neighborhood_prompts": [str(n) for n in range(10)]}]
    (tmp_path / "counterfact.json").write_text(json.dumps(asked))
    given = arguments(
        *("--models", part.model, "--modes", part.mode, "--sets", part.data),
        *("--data", str(tmp_path), "--store", str(tmp_path / "store")),
    )
    jobs = [dict(override.split("=", 1) for override in job) for job in leaderboard.jobs(given)]
    asked_for = {editor for editor in part.editors if leaderboard_tables.left_out(editor, part.mode)}
    assert [job["editor"] for job in jobs] == [editor for editor in part.editors if editor not in asked_for]
    assert asked_for == {"mend", "malmen", "serac"}
    assert set(part.editors) < set(leaderboard.TABLE)
    assert {job["data.limit"] for job in jobs} == {str(part.facts)}
    leaderboard.write_facts(given)
    (path,) = {job["data.path"] for job in jobs}
    (record,) = json.loads((leaderboard.ROOT / path).read_text())
    assert record == asked[0] | {"neighborhood_prompts": [str(n) for n in range(part.neighbours)]}


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
    assert text.startswith(
        "# Leaderboard\n\nOf 40 facts of facts, one at a time (tiny), the editors that are behind no other"
    )
    assert "| 1 | rome | " in text
    assert text.index("## What was run, and what was not") < text.index("## How these figures were made")
    assert "Of some figures the code version is not known" in text
    assert "Seconds say little here" in page
    assert "Subject 3 lives in the city of" in page  # a case
    again = leaderboard.page(json.loads(json.dumps(pages.read_data("leaderboard", docs))), docs)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]


def test_cases_that_are_missing_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaderboard, "ROOT", tmp_path)
    with pytest.raises(SystemExit, match="the cases are missing"):
        leaderboard.page({"command": "", "made": [], "runs": {}, "figures": {"view": {}}}, tmp_path)


def test_tables_of_a_store_that_is_gone_are_kept(
    tmp_path: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store with another mode adds a table to the data; one with the same mode takes the table's place."""
    docs, store = tmp_path / "docs", tmp_path / "outputs"

    def collected(command: str, *more: str) -> dict[str, Any]:
        found = leaderboard.collect(arguments("--write", "--store", str(store), "--docs", str(docs), *more))
        assert found is not None
        pages.write_data("leaderboard", command, found, docs)
        shutil.rmtree(store)
        return pages.read_data("leaderboard", docs)

    def tables(data: dict[str, Any]) -> list[tuple[str, list[str]]]:
        boards = data["figures"]["view"]["boards"]
        return [(board["mode"], [row["label"] for row in board["rows"] if row["runs"]]) for board in boards]

    make_run("memit", [True] * 40, mode="batch")
    alone = collected("first")
    make_run("rome", [True] * 40)
    make_run("emmet", [True] * 10 + [False] * 30)
    both = collected("second")
    assert tables(both) == [("single", ["rome", "emmet"]), ("batch", ["memit"])]
    assert both["figures"]["view"]["boards"][1] == alone["figures"]["view"]["boards"][0]
    assert list(both["runs"]) == [
        *("tiny facts single rome seed 0", "tiny facts single emmet seed 0", "tiny facts batch memit seed 0")
    ]
    assert (both["earlier"], both["command"]) == (["first"], "second")
    cases = leaderboard.read_cases(leaderboard.cases_path(docs))
    assert [[len(row) for row in board] for board in cases] == [
        [40 if row["runs"] else 0 for row in board["rows"]] for board in both["figures"]["view"]["boards"]
    ]
    assert [cases[0][n][0]["right"] for n in (0, 1)] == [True, True]
    assert [cases[0][n][39]["right"] for n in (0, 1)] == [True, False]  # each row with its own
    text = leaderboard.page(both, docs)[0].read_text()
    assert text.index("| 1 | rome | ") < text.index("| 1 | memit | ")
    make_run("alphaedit", [True] * 40, mode="batch")
    assert tables(collected("third")) == [("single", ["rome", "emmet"]), ("batch", ["alphaedit"])]
    make_run("pmet", [True] * 40)
    anew = collected("fourth", "--anew")
    assert tables(anew) == [("single", ["pmet"])]
    assert "earlier" not in anew
    leaderboard.cases_path(docs).unlink()
    make_run("pmet", [True] * 40)
    with pytest.raises(SystemExit, match="the cases are missing"):
        collected("fifth")


def row(label: str, keeps: float, follows: float, behind: list[str] | None) -> dict[str, Any]:
    found = {"preservation": keeps, "free_generation_strict": 1.0, "paraphrase_free_generation_strict": follows}
    cells = {key: {"value": value, "mark": ""} for key, value in found.items()}
    return {"label": label, "editor": label, "behind": behind, "runs": [1], "cells": cells}


def table(*rows: dict[str, Any], data: str = "counterfact", mode: str = "batch") -> dict[str, Any]:
    column = {"key": "preservation", "title": "preservation"}
    told: dict[str, Any] = {"ranked_by": "preservation", "common_facts": 40, "model": "smollm2-135m", "notes": []}
    told["measured"] = '{"definitions": 2}'
    return told | {"data": data, "mode": mode, "columns": [column], "rows": list(rows), "tests": []}


def found(boards: list[dict[str, Any]]) -> str:
    (one,) = leaderboard_page.findings(boards)
    return words.rendered("leaderboard", {"part": "finding", **one})


def test_the_finding_is_of_the_rows_behind_none_and_of_the_one_that_keeps_most() -> None:
    rows = [row("a", 0.1, 0.3, []), row("b", 0.2, 0.2, []), row("c", 0.9, 0.0, ["a"]), row("none", 1.0, 0.0, None)]
    text = found([table(*rows)])
    assert "(`a`, `b`)" in text
    assert "20.0 to 30.0 % on paraphrases, and keep 10.0 to 20.0 % of their ten words" in text
    assert "`c`, which leaves most words (90.0 %), holds 100.0 % as asked and 0.0 % on paraphrases" in text
    assert "No editor says half of the paraphrases and leaves half of the other answers word for word." in text
    assert "No editor says half" not in found([table(*rows, row("d", 0.5, 0.5, ["a"]))])
    assert found([table(row("none", 1.0, 0.0, None))]) == "\n"


@pytest.mark.parametrize(("blank", "shown"), [(1, True), (2, False)])
def test_preservation_of_blank_answers_is_left_out(blank: int, shown: bool) -> None:
    """Of 3 answers of the unedited model so many begin with a line break, and are blank up to there."""
    before = [" \n\nThe answer"] * blank + [" Paris"] * (3 - blank)
    cases = [[{"probes": [["locality", "Where?", answer, None, True]]} for answer in before]]
    board = table(row("a", 0.1, 0.3, []), row("b", 0.2, 0.2, []))
    board["tests"] = [{"metric": "preservation"}, {"metric": "score"}]
    found = leaderboard_page.told_apart(board, cases)
    assert ("preservation" in found["rows"][0]["cells"]) == shown
    assert (len(found["columns"]), len(found["tests"])) == ((1, 2) if shown else (0, 1))
    assert found["notes"] == (
        []
        if shown
        else [
            "Preservation is left out: 2 of 3 other answers of the unedited model begin "
            "with a line break, so that what stays is no answer that one could use. The data have it."
        ]
    )


def test_what_was_not_run_is_said_by_reason() -> None:
    shown = leaderboard_page.not_run([table(row("rome", 0.1, 0.3, []))])
    reasons = dict(shown["reasons"])
    where = "smollm2-135m, batch"
    assert reasons["all statements before every prompt make it very long", where] == ["in_context"]
    assert "memit" in reasons["not yet", where]
    assert "rome" not in reasons["not yet", where]
    assert shown["definitions"] == {2: ["smollm2-135m"]}
    larger = table(row("rome", 0.1, 0.3, [])) | {"model": "qwen2.5-coder-0.5b"}
    reasons = dict(leaderboard_page.not_run([larger])["reasons"])
    assert "crispedit" not in reasons["not yet", "qwen2.5-coder-0.5b, batch"]  # it was not asked for
    assert "rome" in reasons["not yet", "smollm2-135m, batch, counterfact"]  # there is no such table yet


def test_an_older_table_says_that_it_knows_wording_alone() -> None:
    board = leaderboard_page.prepared(table(row("a", 0.25, 0.3, [])), [[]])
    assert "told by the wording alone" in board["notes"][0]
    newer = table(row("a", 0.25, 0.3, []))
    newer["columns"] = [*newer["columns"], {"key": "answer_kept", "title": "answers kept"}]
    assert leaderboard_page.prepared(newer, [[]])["notes"] == []


def test_the_head_of_a_table_has_the_yardsticks() -> None:
    board = leaderboard_page.prepared(table(row("a", 0.25, 0.3, [])), [[]])
    assert "The floor of same ten words" in board["heads"][0]
    other = table(row("a", 0.25, 0.3, [])) | {"model": "tiny"}
    assert "heads" not in leaderboard_page.prepared(other, [[]])
