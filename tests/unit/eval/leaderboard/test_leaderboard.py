import csv
import dataclasses
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from leaderboard_parts import only_board, times

from corrigenda import Fact
from corrigenda.runs.folder import RunFolder
from corrigenda.runs.records import sealed_lines
from corrigenda.runs.store import Store
from eval import Case, Measurement
from eval.leaderboard import leaderboard, write_leaderboard
from eval.leaderboard.boards import Board, Leaderboard, Row
from eval.leaderboard.columns import CONTROLS, columns
from eval.leaderboard.marks import lacks
from eval.leaderboard.page import behind, markdown, table_csv, write_view
from eval.leaderboard.views import cases_view, figure_text, leaderboard_view
from eval.records import DEFINITIONS
from eval.statistics.paired import harmonic_mean


def rows_of(board: Board) -> dict[str, Row]:
    return {row.label: row for row in board.rows}


def test_figures_by_hand(tmp_path: Path, make_run: Any) -> None:
    """Of 40 edits 30 work, and 20 leave their neighbours alone."""
    make_run("rome", times((True, 30), (False, 10)), times((True, 20), (False, 20)), drift=0.25)
    cells = rows_of(only_board(tmp_path))["rome"].cells
    assert cells["efficacy_success"].value == pytest.approx(30 / 40)
    assert cells["efficacy_success"].before == 0
    assert cells["neighbourhood_success"].value == pytest.approx(20 / 40)
    assert cells["preservation"].value == pytest.approx(20 / 40)
    assert cells["score"].value == pytest.approx(3 / (1 / 0.75 + 1 / 0.75 + 1 / 0.5))
    assert cells["perplexity_drift"].value == pytest.approx(0.25)
    assert (cells["seconds_per_edit"].value, cells["peak_memory_mb"].value) == (2, 100)
    low, high = cells["efficacy_success"].low, cells["efficacy_success"].high
    assert low is not None
    assert high is not None
    # The normal approximation: 0.75 +- 1.96 sqrt(0.75 * 0.25 / 40).
    assert (low, high) == pytest.approx((0.616, 0.884), abs=0.03)


def test_the_figures_come_from_the_records_and_not_from_the_summary(tmp_path: Path, make_run: Any) -> None:
    folder = make_run("rome", times((True, 10), (False, 30)))
    summary = json.loads((folder / "summary.json").read_text())
    summary["metrics"]["efficacy_success"]["after"] = 0.99
    (folder / "summary.json").write_text(json.dumps(summary))
    assert rows_of(only_board(tmp_path))["rome"].cells["efficacy_success"].value == pytest.approx(0.25)


def test_score_is_not_shown_without_what_would_tell(tmp_path: Path, make_run: Any) -> None:
    folder = make_run("rome", [True] * 30, finish=False)
    records = list(RunFolder(folder).cases())
    for record in records:
        del record["after"]["values"]["perplexity_drift"]
    (folder / "cases.jsonl").write_bytes(sealed_lines(records))
    summary = {"editor": "rome", "model": "tiny", "data": "facts", "mode": "single", "n_facts": 30}
    (folder / "summary.json").write_text(json.dumps(summary))
    cells = rows_of(only_board(tmp_path))["rome"].cells
    assert "preservation" in cells
    assert "score" not in cells
    assert list(columns())[:2] == ["score", "preservation"]  # side by side
    assert list(columns()).index("perplexity_drift") == 5


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("efficacy_success", 0.876, "87.6"),
        ("perplexity_drift", -0.0334, "-0.033"),
        ("neighbourhood_kl", -1e-9, "0.000"),  # a divergence is not negative: this is rounding
        ("fluency", 5.678, "5.68"),
    ],
)
def test_figures_are_written_in_their_units(key: str, value: float, text: str) -> None:
    assert figure_text(value, columns()[key]) == text


def test_where_all_are_equal_none_is_best(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", [False] * 40)
    make_run("memit", [False] * 40)
    board = only_board(tmp_path)
    cells = [row.cells["efficacy_success"] for row in board.rows if row.entry]
    assert [(cell.value, cell.mark) for cell in cells] == [(0, ""), (0, "")]


def test_a_local_model_is_called_by_its_folder(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", [True] * 40)
    board = only_board(tmp_path)
    moved = dataclasses.replace(board, key=dataclasses.replace(board.key, model="/home/me/models/tiny-llama"))
    assert moved.title.split(" ")[0] == "tiny-llama"
    assert table_csv(leaderboard_view(Leaderboard((moved,), ()), tmp_path)).splitlines()[1].startswith("tiny-llama,")


def test_the_score_is_tested_as_a_score(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", [True] * 40)
    make_run("memit", [True] * 40, times((True, 30), (False, 10)))
    board = only_board(tmp_path)
    [test] = [t for t in board.tests if t.metric == "score"]
    assert test.comparison.test == "permutation"
    assert test.comparison.difference == pytest.approx(1 - float(harmonic_mean(1.0, 1.0, 0.75)))  # type: ignore[arg-type]
    assert test.comparison.p < 0.01


def test_what_makes_no_edit_is_never_best(tmp_path: Path, make_run: Any) -> None:
    make_run("none", [False] * 40)
    make_run("rome", [True] * 40, times((True, 10), (False, 30)))
    make_run("memit", [True] * 40, times((True, 5), (False, 35)))
    rows = rows_of(only_board(tmp_path))
    assert rows["none"].cells["preservation"].value == 1
    assert rows["none"].cells["preservation"].mark == ""
    assert rows["rome"].cells["preservation"].mark == "best"
    assert rows["none"].behind is None


def test_too_few_facts_are_not_ranked(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", [True] * 29)
    make_run("memit", [False] * 29)
    board = only_board(tmp_path)
    assert all(row.behind is None and not any(cell.mark for cell in row.cells.values()) for row in board.rows)
    assert board.tests == ()
    assert "fewer than 30 facts in common" in " ".join(board.notes)
    assert [row.label for row in board.rows[:2]] == ["memit", "rome"]  # by name, not by merit
    assert only_board(tmp_path, min_facts=20).tests != ()


def test_only_common_facts_are_compared(tmp_path: Path, make_run: Any) -> None:
    """rome on facts 0 to 49, of which it fails the first 10; memit on facts 10 to 59."""
    make_run("rome", times((False, 10), (True, 40)))
    make_run("wise", [True] * 50)
    make_run("memit", [True] * 50, first=10)
    board = only_board(tmp_path)
    rows = rows_of(board)
    assert board.common == 40
    assert {test.comparison.n for test in board.tests} == {40}  # also rome against wise, which share 50
    assert rows["rome"].cells["efficacy_success"].value == 1  # the failed ones are not common
    assert (rows["rome"].n_facts, rows["rome"].n_own) == (40, 50)
    assert rows["memit"].cells["efficacy_success"].n == 40
    notes = " ".join(board.notes)
    assert "40 facts that the rows have in common" in notes
    assert "rome was run on 50 facts; 40 of them are shown" in notes


def test_in_16_bits_rounding_is_said_to_count(tmp_path: Path, make_run: Any) -> None:
    config = make_run("rome", [True] * 30) / "config.yaml"
    assert "rounding" not in " ".join(only_board(tmp_path).notes)
    config.write_text(config.read_text().replace("float32", "bfloat16"))
    assert "The model is in bfloat16, in which wordings change" in " ".join(only_board(tmp_path).notes)


def test_a_small_run_does_not_shrink_the_table(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", [True] * 40)
    make_run("memit", [True] * 40)
    make_run("wise", [True] * 3)
    board = only_board(tmp_path)
    assert board.common == 40
    assert not rows_of(board)["wise"].compared
    assert "wise: 3 facts are too few to be compared" in " ".join(board.notes)


def test_facts_with_other_prompts_are_other_facts(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", [True] * 40)
    folder = make_run("memit", [True] * 40, finish=False)
    text = json.dumps(list(RunFolder(folder).cases())).replace("lives in the city of", "resides in the city of", 1)
    (folder / "cases.jsonl").write_bytes(sealed_lines(json.loads(text)))
    shutil.copy(folder.parent / "rome-0-0-single" / "summary.json", folder / "summary.json")
    summary = (folder / "summary.json").read_text().replace('"rome"', '"memit"')
    (folder / "summary.json").write_text(summary)
    assert only_board(tmp_path).common == 39


def test_seeds_are_pooled_and_paired(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", [True] * 40, seed=0)
    make_run("rome", times((True, 20), (False, 20)), seed=1)
    make_run("memit", [True] * 40, seed=1)
    make_run("wise", [True] * 40, seed=2)
    board = only_board(tmp_path)
    rows = rows_of(board)
    assert rows["rome"].cells["efficacy_success"].value == pytest.approx(0.75)
    assert rows["rome"].cells["efficacy_success"].n == 80
    assert rows["rome"].n_facts == 40
    by_names = {frozenset((t.left, t.right)): t.comparison for t in board.tests if t.metric == "efficacy_success"}
    # memit and rome share seed 1 only: 1 against 0.5 there.
    found = by_names[frozenset(("memit", "rome"))]
    assert (found.n, abs(found.difference)) == (40, pytest.approx(0.5))


def test_variants_are_told_apart_by_what_differs(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", [True] * 30, settings={"layer": 3, "value": {"lr": 0.5}}, name="a")
    make_run("rome", [True] * 30, settings={"layer": 6, "value": {"lr": 0.5}}, name="b")
    make_run("memit", [True] * 30)
    assert set(rows_of(only_board(tmp_path))) >= {"rome (layer=3)", "rome (layer=6)", "memit"}


def test_another_regime_is_another_row(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", [False] * 40, name="a", mode="sequential", regime="stack")
    make_run("rome", [True] * 40, name="b", mode="sequential", regime="together")
    labels = [row.label for row in only_board(tmp_path).rows if row.entry]
    assert sorted(labels) == ["rome (regime=stack)", "rome (regime=together)"]


def test_what_failed_at_everything_is_never_best(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", [True] * 40, [False] * 40, drift=0.2)
    make_run("wise", [True] * 40, [False] * 40, drift=0.3)
    make_run("broken", [False] * 40, drift=0.0, errors=dict.fromkeys(range(40), "crashed"))
    rows = rows_of(only_board(tmp_path))
    assert rows["rome"].cells["perplexity_drift"].mark == "best"
    assert not any(cell.mark for cell in rows["broken"].cells.values())
    assert rows["broken"].behind is None


def test_a_mean_without_the_worst_edits_is_not_compared(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", [True] * 40, drift=0.2)
    make_run("wise", [True] * 40, drift=0.3)
    make_run("wrecked", [True] * 39 + [False], drift=0.0, errors={39: "not finite: the edited model gives no numbers"})
    board = only_board(tmp_path)
    rows = rows_of(board)
    assert rows["wrecked"].cells["perplexity_drift"].n == 39
    assert rows["wrecked"].cells["perplexity_drift"].mark == ""
    assert rows["rome"].cells["perplexity_drift"].mark == "best"
    tested = {test.metric for test in board.tests if "wrecked" in (test.left, test.right)}
    assert "efficacy_success" in tested
    assert "perplexity_drift" not in tested
    [note] = [note for note in board.notes if "wrecked: after some edits there are no numbers" in note]
    assert "the figures for perplexity drift are of the others" in note


def test_what_a_fact_is_not_asked_is_not_lost_with_its_edit(tmp_path: Path, make_run: Any) -> None:
    """The fact whose edit left no numbers has no paraphrases: of these nothing is missing."""
    for editor, works, errors in (
        ("rome", 40, {}),
        ("memit", 30, {39: "not finite: the edited model gives no numbers"}),
    ):
        folder = make_run(editor, times((True, works), (False, 40 - works)), errors=errors)
        records = list(RunFolder(folder).cases())
        del records[39]["fact"]["paraphrases"]
        for state in (records[39][name] for name in ("before", "after")):
            del state["prompts"]["paraphrases"]
            state["values"] = {key: one for key, one in state["values"].items() if not key.startswith("paraphrase")}
        RunFolder(folder).write(records, "cases")
    board = only_board(tmp_path)
    tested = {test.metric for test in board.tests}
    assert {"paraphrase_success", "score"} <= tested
    assert "perplexity_drift" not in tested
    [note] = [note for note in board.notes if "there are no numbers" in note]
    assert "the figures for perplexity drift are of the others" in note


def test_of_equal_rows_the_first_is_the_best(tmp_path: Path, make_run: Any) -> None:
    for editor, works in (("rome", 38), ("memit", 38), ("grace", 20)):
        make_run(editor, times((True, works), (False, 40 - works)))
    board = only_board(tmp_path)
    assert [row.label for row in board.rows[:3]] == ["memit", "rome", "grace"]
    assert [row.cells[board.ranked_by].mark for row in board.rows[:3]] == ["best", "", "behind"]


def test_no_edit_lacks_what_the_unedited_model_cannot_read() -> None:
    fact, error = Fact("Paris", "{} is in", "Rome"), "too long: fact 'f', prompt"
    assert lacks(Case(fact, Measurement(), Measurement(), error=error), "efficacy_success")
    assert not lacks(Case(fact, Measurement(error=error), Measurement(), error=error), "efficacy_success")


@pytest.mark.parametrize(
    ("group", "more", "tables", "rows"),
    [("data", {"other_subjects": 5}, 2, 1), ("job", {"name": "edit", "auto_layer": {"layers": 5}}, 1, 2)],
)
def test_what_else_tells_tables_and_rows_apart(
    tmp_path: Path, make_run: Any, group: str, more: dict[str, Any], tables: int, rows: int
) -> None:
    """Facts that are asked about other subjects, too; and layers that were found in another way."""
    settings = {"layer": "auto"}
    make_run("rome", [True] * 40, settings=settings)
    path = make_run("rome", [True] * 40, settings=settings, name="other") / "config.yaml"
    config = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(config | {group: config.get(group, {}) | more}))
    boards = leaderboard(Store(tmp_path / "outputs").runs()).boards
    assert [len([row for row in board.rows if row.entry]) for board in boards] == [rows] * tables


def test_of_runs_that_are_the_same_the_newest_counts(tmp_path: Path, make_run: Any) -> None:
    for name, works, begun in (("a", True, "2026-02-01"), ("b", False, "2026-01-01")):
        folder = make_run("rome", [works] * 30, name=name)
        (folder / "versions.json").write_text(json.dumps({"begun": begun}))
    found = leaderboard(Store(tmp_path / "outputs").runs())
    assert rows_of(found.boards[0])["rome"].cells["efficacy_success"].value == 1
    assert [(run.path.name, run.why.split()[0]) for run in found.left_out] == [("b", "superseded")]


def test_tables_by_mode_and_by_the_set_of_a_batch(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", [True] * 30)
    make_run("rome", [True] * 30, mode="batch")
    make_run("rome", [True] * 40, mode="batch", name="larger")
    make_run("rome", [True] * 30, mode="sequential", curve=True)
    boards = leaderboard(Store(tmp_path / "outputs").runs()).boards
    assert sorted(board.key.mode for board in boards) == ["batch", "batch", "sequential", "single"]
    [batch, *_] = [board for board in boards if board.key.mode == "batch"]
    drift = rows_of(batch)["rome"].cells["perplexity_drift"]
    assert (drift.low, drift.high) == (None, None)  # one edit: one value
    assert "those of set" in " ".join(batch.notes)


def test_runs_by_other_definitions_are_in_a_table_of_their_own(tmp_path: Path, make_run: Any) -> None:
    path = make_run("rome", [True] * 30)
    summary = json.loads((path / "summary.json").read_text())
    assert summary.pop("definitions") == DEFINITIONS
    (path / "summary.json").write_text(json.dumps(summary))
    make_run("memit", [True] * 30)
    boards = leaderboard(Store(tmp_path / "outputs").runs()).boards
    assert [[row.label for row in board.rows if row.entry] for board in boards] in (
        [["rome"], ["memit"]],
        [["memit"], ["rome"]],
    )
    assert all(any("definitions" in note for note in board.notes) for board in boards)


def test_controls_are_always_in_the_table(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", [True] * 30)
    make_run("in_context", [True] * 30)
    board = only_board(tmp_path)
    assert set(CONTROLS) == {"none", "in_context", "random", "finetune"}
    assert set(rows_of(board)) == {"rome", *CONTROLS}
    assert "The control random (random update) has no run in the store." in board.notes
    assert "The control in_context" not in " ".join(board.notes)
    assert "- The control random (random update) has no run in the store." in markdown_of(tmp_path)


def markdown_of(tmp_path: Path) -> str:
    return markdown(leaderboard_view(leaderboard(Store(tmp_path / "outputs").runs()), tmp_path))


def test_damaged_and_unfinished_runs_are_named_and_left_out(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", [True] * 30)
    make_run("memit", [True] * 30, finish=False)
    damaged = make_run("wise", [True] * 30)
    content = bytearray((damaged / "cases.jsonl").read_bytes())
    for place in range(len(content) // 3, len(content) // 3 + 200):
        content[place] ^= 0xFF
    (damaged / "cases.jsonl").write_bytes(content)
    found = leaderboard(Store(tmp_path / "outputs").runs())
    assert {run.path.name: run.why.split(":")[0] for run in found.left_out} == {
        "memit-0-0-single": "unfinished",
        "wise-0-0-single": "damaged",
    }
    assert "wise" not in rows_of(found.boards[0])
    assert "wise-0-0-single" in markdown(leaderboard_view(found, tmp_path))


def test_an_empty_store_leaves_an_earlier_page_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no finished run to compare"):
        write_leaderboard(leaderboard([]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_csv_and_json_say_the_same(written: Path) -> None:
    lines = list(csv.DictReader(io.StringIO((written / "leaderboard.csv").read_text())))
    found = json.loads((written / "leaderboard.json").read_text())
    figures = {
        (board["mode"], row["label"], name): cell["value"]
        for board in found["boards"]
        for row in board["rows"]
        for name, cell in row["cells"].items()
    }
    read = {(line["mode"], line["editor"], line["metric"]): float(line["after"]) for line in lines if line["metric"]}
    assert read == figures
    assert figures["single", "rome", "efficacy_success"] == pytest.approx(0.9)
    assert {line["editor"] for line in lines if not line["metric"]} == {"random", "finetune", "in_context", "none"}


def test_the_same_values_give_the_same_files(written: Path, tmp_path: Path) -> None:
    view = json.loads((written / "leaderboard.json").read_text())
    outputs = written.parent / "outputs"
    cases = json.loads(json.dumps(cases_view(leaderboard(Store(outputs).runs()))))
    outputs.rename(tmp_path / "away")
    try:
        for path in write_view(view, cases, tmp_path / "again"):
            assert path.read_bytes() == (written / path.name).read_bytes()
    finally:
        (tmp_path / "away").rename(outputs)


def test_the_markdown_shows_what_a_place_rests_on(written: Path) -> None:
    text = (written / "leaderboard.md").read_text()
    assert "Made by a test." in text
    table = text.split("\n## ")[1]
    lines = {line.split(" | ")[1]: line.split(" | ") for line in table.splitlines() if line.startswith("| ")}
    assert lines["editor"][:7] == ["| ", "editor", "S ↑", "from the best", "behind", "same words ↑", "ppl drift ↓"]
    assert lines["memit"][0] == "| 1"
    assert lines["memit"][3:5] == ["", ""]
    assert re.fullmatch(r"-\d+\.\d \[-\d+\.\d, -?\d+\.\d\]", lines["rome"][3])
    assert lines["none (control)"][3:5] == ["", ""]  # it was not tested
    assert re.search(
        r"^memit has the highest score \(S\), \d+\.\d % \(n = 40\); rome, .* not told apart from it",
        table,
        re.MULTILINE,
    )
    assert "≈" not in text


def test_the_csv_has_the_difference_from_the_best(written: Path) -> None:
    """Of 40, in context 40 edits work and memit's 38: both that worked only there."""
    lines = csv.DictReader(io.StringIO((written / "leaderboard.csv").read_text()))
    of_single = {
        line["editor"]: line for line in lines if (line["mode"], line["metric"]) == ("single", "efficacy_success")
    }
    assert (of_single["in_context"]["mark"], of_single["in_context"]["from_best"]) == ("best", "")
    memit = of_single["memit"]
    assert (memit["mark"], float(memit["from_best"])) == ("", pytest.approx(-2 / 40))
    assert float(memit["from_best_low"]) < -2 / 40 < float(memit["from_best_high"])
    assert float(memit["p_holm"]) >= 0.05
    assert of_single["wise"]["mark"] == "behind"
    assert float(of_single["wise"]["p_holm"]) < 0.05


@pytest.mark.parametrize(
    ("better", "places"), [((), ""), (("a",), "1"), (("a", "b", "c"), "1–3"), (("a", "c", "d"), "1, 3–4")]
)
def test_the_places_of_better_rows(better: tuple[str, ...], places: str) -> None:
    rows = [{"label": label, "behind": None} for label in "abcd"]
    assert behind({"rows": rows}, {"label": "e", "behind": better}) == places


def test_a_comma_or_bar_in_a_name_breaks_nothing(tmp_path: Path, make_run: Any) -> None:
    make_run("a|b,<c>", [True] * 30)
    found = leaderboard(Store(tmp_path / "outputs").runs())
    view = leaderboard_view(found, tmp_path)
    assert list(csv.reader(io.StringIO(table_csv(view))))[1][3] == "a|b,<c>"
    assert "a\\|b,\\<c>" in markdown(view)
    page = write_leaderboard(found, tmp_path / "board")[3].read_text()
    assert "<c>" not in page
    assert "a|b,&lt;c&gt;" in page


def test_the_page_says_how_far_a_figure_is_from_the_best(written: Path) -> None:
    """Of 40 edits in context all work, memit's 38: not told apart, so there is the difference, and no sign."""
    page = (written / "leaderboard.html").read_text()
    cells = re.findall(r'<td data-value="0.95"([^>]*)><span class="figure">95.0</span>(.*)</td>', page)
    assert any(
        re.search(r'title="from the best -5\.0 \[-\d+\.\d, -?\d\.\d\], n = 40, p \(Holm\) ', head) for head, _ in cells
    )
    assert all("▾" not in rest for _, rest in cells)
    assert "▾" in page.split("<main>")[1]


def test_the_page_loads_nothing(written: Path) -> None:
    page = (written / "leaderboard.html").read_text()
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", page)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(", page)


def test_a_record_cannot_end_its_script_element(tmp_path: Path, make_run: Any) -> None:
    folder = make_run("rome", [True] * 30, finish=False)
    shutil.copy(make_run("rome", [True] * 30, name="other") / "summary.json", folder / "summary.json")
    text = json.dumps(list(RunFolder(folder).cases())).replace('" Rome"', '"</script><img src=x onerror=alert(1)><!--"')
    (folder / "cases.jsonl").write_bytes(sealed_lines(json.loads(text)))
    shutil.rmtree(tmp_path / "outputs" / "other")
    page = write_leaderboard(leaderboard(Store(tmp_path / "outputs").runs()), tmp_path / "board")[3].read_text()
    assert "\\u003c/script\\u003e" in page
    assert "</script><img" not in page
