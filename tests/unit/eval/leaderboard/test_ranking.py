from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corrigenda.data import schemas
from corrigenda.runs.store import Store
from eval.evaluation import NOT_FINITE
from eval.leaderboard import leaderboard
from eval.leaderboard.boards import Board
from eval.leaderboard.columns import columns
from eval.leaderboard.entries import collect
from eval.leaderboard.notes import heads_of
from eval.leaderboard.page import markdown
from eval.leaderboard.table import board
from eval.leaderboard.views import leaderboard_view


def only_board(tmp_path: Path) -> Board:
    [board] = leaderboard(Store(tmp_path / "outputs").runs()).boards
    return board


def share(right: int, of: int = 40) -> list[bool]:
    return [number < right for number in range(of)]


def test_every_declared_metric_has_a_column() -> None:
    declared = {metric for schema in schemas.SCHEMAS.values() for metric in schema.ranked_by}
    assert declared
    assert declared <= set(columns())


@pytest.mark.parametrize(
    ("schema", "metric"),
    [("counterfact", "score"), ("zsre", "paraphrase_free_generation_strict"), ("auto", "score"), ("wikibio", "score")],
)
def test_a_data_set_says_by_what_it_is_ranked(tmp_path: Path, make_run: Any, schema: str, metric: str) -> None:
    make_run("rome", share(36), schema=schema)
    make_run("memit", share(20), schema=schema)
    board = only_board(tmp_path)
    assert board.ranked_by == metric
    [note] = [note for note in board.notes if note.startswith("Ranked by")]
    assert columns()[metric].title in note
    assert (f"the data set ({schema}) declares" in note) == (schema in ("counterfact", "zsre"))
    assert [column.key for column in board.columns][:2] == [metric, "preservation"]


def test_what_a_configuration_left_open_is_noted(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", share(36), noted={"schema": "zsre", "dtype": "bfloat16"})
    make_run("memit", share(20), noted={"schema": "zsre", "dtype": "bfloat16"})
    board = only_board(tmp_path)
    assert board.ranked_by == "paraphrase_free_generation_strict"
    assert [note for note in board.notes if note.startswith("The model is in bfloat16")]


def test_a_data_set_called_like_its_schema_needs_no_configuration(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", share(36))
    make_run("memit", share(20))
    for path in (tmp_path / "outputs").rglob("summary.json"):
        path.write_text(path.read_text().replace('"data": "facts"', '"data": "zsre"'))
    assert only_board(tmp_path).ranked_by == "paraphrase_free_generation_strict"


def keeps_of(rows: Sequence[tuple[int, int]], make_run: Any, schema: str) -> None:
    """Runs of which so many edits work, and so many leave the neighbours alone."""
    for number, (works, keeps) in enumerate(rows):
        make_run(f"editor_{number}", share(works, 100), share(keeps, 100), schema=schema)


def test_a_metric_at_its_ceiling_ranks_nothing(tmp_path: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of 97 % or more, or with an interval up to 100 %: the next declared metric is taken, and the page says so."""
    declared = ("efficacy_success", "neighbourhood_success")
    monkeypatch.setitem(schemas.SCHEMAS, "zsre", replace(schemas.SCHEMAS["zsre"], ranked_by=declared))
    keeps_of([(100, 80), (97, 40)], make_run, "zsre")
    board = only_board(tmp_path)
    assert board.ranked_by == "neighbourhood_success"
    assert [row.behind for row in board.rows[:2]] == [(), ("editor_0",)]
    assert "efficacy success (ES) is at its ceiling" in " ".join(board.notes)


def test_one_row_under_the_ceiling_is_enough_to_rank(tmp_path: Path, make_run: Any) -> None:
    keeps_of([(100, 80), (99, 40), (90, 40)], make_run, "zsre")
    assert only_board(tmp_path).ranked_by == "paraphrase_free_generation_strict"


def test_a_small_table_whose_intervals_reach_the_ceiling(tmp_path: Path, make_run: Any) -> None:
    """38 of 40 are 95 %, with an interval up to 100 %: not told from 100."""
    make_run("rome", share(40), schema="zsre")
    make_run("memit", share(38), schema="zsre")
    board = only_board(tmp_path)
    assert board.ranked_by == ""
    assert all(row.behind is None for row in board.rows)
    assert any(note.startswith("No ranking: free generation on paraphrases") for note in board.notes)


def test_a_row_is_not_behind_where_the_seeds_that_both_have_say_the_opposite(tmp_path: Path, make_run: Any) -> None:
    """By all its seeds rome is the best; of the one that both have, memit has eight more of forty, and none fewer."""
    make_run("rome", share(20))
    make_run("rome", share(40), seed=1)
    make_run("memit", share(28))
    rows = {row.label: row for row in only_board(tmp_path).rows}
    assert [rows[name].cells["efficacy_success"].mark for name in ("rome", "memit")] == ["best", ""]


def test_marks_and_places_are_of_the_corrected_tests(tmp_path: Path, make_run: Any) -> None:
    """7 of 40 pairs differ, all in one way: p = 2 / 2^7, which is below 0.05 alone and above it after Holm."""
    make_run("rome", share(30))
    make_run("memit", share(23))
    make_run("finetune", share(4))
    board = only_board(tmp_path)
    tests = {one.metric: one for one in board.tests if {one.left, one.right} == {"rome", "memit"}}
    assert tests[board.ranked_by].comparison.p < 0.05 < tests[board.ranked_by].p_holm
    success = tests["efficacy_success"].comparison
    assert (success.test, success.n, success.p) == ("McNemar", 40, pytest.approx(2 / 2**7))
    rows = {row.label: row for row in board.rows}
    assert [rows[name].behind for name in ("rome", "memit", "finetune")] == [(), (), ("rome", "memit")]
    marks = [rows[name].cells[board.ranked_by].mark for name in ("rome", "memit", "finetune")]
    assert marks == ["best", "", "behind"]
    text = markdown(leaderboard_view(leaderboard(Store(tmp_path / "outputs").runs()), tmp_path))
    [line] = [line.split(" | ") for line in text.splitlines() if line.startswith("| 3 | finetune (control) | ")]
    assert line[4] == "1–2"


def test_the_markdown_has_what_ranks_also_where_it_leaves_that_to_other_formats(
    tmp_path: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = ("token_accuracy",)
    monkeypatch.setitem(schemas.SCHEMAS, "zsre", replace(schemas.SCHEMAS["zsre"], ranked_by=declared))
    keeps_of([(80, 80), (40, 40)], make_run, "zsre")
    text = markdown(leaderboard_view(leaderboard(Store(tmp_path / "outputs").runs()), tmp_path))
    assert "|  | editor | token acc. ↑ | from the best | behind | same words ↑ |" in text
    assert "lenient" not in text


def test_what_does_not_edit_does_not_lift_the_ceiling(tmp_path: Path, make_run: Any) -> None:
    make_run("none", share(0, 100), schema="zsre")
    keeps_of([(100, 80), (99, 40)], make_run, "zsre")
    board = only_board(tmp_path)
    assert board.ranked_by == ""
    assert any("every row that is tested has 97 % or more" in note for note in board.notes)  # it is compared, with 0


def test_a_metric_that_was_not_measured_is_passed_over(
    tmp_path: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = ("portability_token_accuracy", "efficacy_success")
    monkeypatch.setitem(schemas.SCHEMAS, "zsre", replace(schemas.SCHEMAS["zsre"], ranked_by=declared))
    keeps_of([(90, 80), (50, 40)], make_run, "zsre")
    board = only_board(tmp_path)
    assert board.ranked_by == "efficacy_success"
    assert "portability: token accuracy on consequences was not measured" in " ".join(board.notes)


def test_a_declared_metric_that_is_none(tmp_path: Path, make_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(schemas.SCHEMAS, "zsre", replace(schemas.SCHEMAS["zsre"], ranked_by=("beauty",)))
    make_run("rome", share(36), schema="zsre")
    with pytest.raises(ValueError, match="zsre is ranked by 'beauty', which is no metric"):
        only_board(tmp_path)


def test_a_comparison_says_how_many_facts_it_needs(tmp_path: Path, make_run: Any) -> None:
    """10 of 40 pairs differ, all in one way: 7.8489 x 0.1923 / 0.0025 = 603.8 facts. The data have it, not the page."""
    make_run("rome", share(30), schema="zsre")
    make_run("memit", share(20), schema="zsre")
    view = leaderboard_view(leaderboard(Store(tmp_path / "outputs").runs()), tmp_path)
    needed = {test["metric"]: test["facts_needed"] for test in view["boards"][0]["tests"]}
    assert needed["paraphrase_free_generation_strict"] == 604
    assert needed["perplexity_drift"] is None  # only shares have points
    assert "604" not in markdown(view)


def test_what_the_unedited_model_says_itself_stands_above_the_table(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", share(36), seed=1)
    path = make_run("rome", share(36))
    board = only_board(tmp_path)
    [row] = [row for row in board.rows if row.entry is not None]
    assert row.entry is not None
    for number, case in enumerate(row.entry.cases.values()):  # of 40 facts, by two seeds
        assert case.before is not None
        case.before.values.pop("native_consistency", None)
        if number % 40 < 4:
            case.before.values["native_consistency"] = float(number % 40 == 0)
    [head] = heads_of([row])
    assert head.endswith("says, 25.0 % (n = 4 of 40 facts).")
    view = leaderboard_view(leaderboard(Store(path.parent).runs()), tmp_path)
    assert f"\n\n{head}\n\n| " in markdown(view | {"boards": [view["boards"][0] | {"heads": [head]}]})
    assert heads_of([replace(row, entry=None)]) == ()


def test_what_stands_beside_the_rows_is_of_the_facts_that_they_have_in_common(tmp_path: Path, make_run: Any) -> None:
    """memit has ten facts more than the table: neither their native consistency nor an edit without numbers counts."""
    make_run("rome", share(20))
    make_run("memit", share(40, 50), errors={45: NOT_FINITE})
    make_run("finetune", share(5, 5), first=3)
    [(key, entries)] = collect(Store(tmp_path / "outputs").runs())[0].items()
    for entry in entries:
        for case in entry.cases.values():
            assert case.before is not None
            more = entry.editor == "memit" and int(case.fact.id.removeprefix("fact-")) >= 40
            case.before.values["native_consistency"] = float(more or entry.editor == "finetune")
    found = board(key, sorted(entries, key=lambda entry: entry.editor), 30)
    assert found.common == 40
    assert found.heads[0].endswith("says, 0.0 % (n = 40 of 40 facts).")
    assert heads_of(sorted(found.rows, key=lambda row: row.compared)) == found.heads
    assert not any("without numbers" in note for note in found.notes)
    assert "perplexity_drift" in {test.metric for test in found.tests}
    assert [row.n_own for row in found.rows if row.label == "memit"] == [50]


def test_each_fact_counts_as_often_as_the_others(tmp_path: Path, make_run: Any) -> None:
    """rome has 20 of 40, and with another seed 10 of 10 that it has anyway: that is no 30 of 50, above 22 of 40."""
    make_run("rome", share(20))
    make_run("rome", share(10, 10), seed=1)
    make_run("memit", share(22))
    board = only_board(tmp_path)
    cells = [(row.label, row.cells["efficacy_success"]) for row in board.rows[:2]]
    assert [(label, cell.value, cell.n) for label, cell in cells] == [("memit", 0.55, 40), ("rome", 0.5, 40)]
    assert "rome: with seed 1 it was not run on all of these facts, which is not counted." in board.notes
