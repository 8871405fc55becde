import json
from pathlib import Path
from typing import Any

import program
import pytest
from run_parts import make_home, own_data, record, summary_in

from eval.leaderboard.columns import columns
from eval.metrics.side_effects import METRICS
from eval.protocols.journal import lines_of
from eval.records import SIDE_KINDS

METRICS_BY_KEY = {metric.key: metric for metric in METRICS}
KEYS = METRICS_BY_KEY.keys()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model and a few facts."""
    plain: dict[str, Any] = {"paraphrases": [], "generation": []}
    return make_home(tmp_path_factory.mktemp("run"), [record(number, **plain) for number in range(6)])


def run(home: Path, *overrides: str) -> None:
    small = ["eval.perplexity_windows=0", "eval.max_new_tokens=2", "eval.preservation_tokens=3"]
    program.call(home, *own_data(home), "data.limit=3", *small, *overrides)


def results(home: Path, mode: str) -> list[Path]:
    found = [json.loads(path.read_text()) | {"at": path.parent} for path in home.rglob("summary.json")]
    return [run["at"] for run in found if run.get("mode") == mode]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_runs_measure_side_effects_and_the_leaderboard_shows_them(home: Path) -> None:
    run(home, "editor=in_context", "eval=side_effects")
    run(home, "editor=none")  # without them: it stands in the same table
    folders = {summary_in(at)["editor"]: at for at in results(home, "single")}
    metrics = {name: summary_in(at)["metrics"] for name, at in folders.items()}
    assert metrics["in_context"].keys() >= KEYS
    assert all(metrics["in_context"][key]["n"] == 3 for key in KEYS)
    assert metrics["in_context"]["fact_check_success"]["before"] is not None
    assert not metrics["none"].keys() & KEYS
    [case, *_] = lines(folders["in_context"] / "cases.jsonl")
    assert case["after"]["prompts"].keys() >= SIDE_KINDS
    program.call(home, "job=leaderboard")
    [board] = json.loads((home / "outputs" / "leaderboard.json").read_text())["boards"]
    rows = {row["label"]: row["cells"] for row in board["rows"]}
    shown = KEYS & columns().keys()
    assert rows["in_context"].keys() >= shown
    assert not rows["none"].keys() & KEYS
    page = (home / "outputs" / "leaderboard.html").read_text()
    assert all(METRICS_BY_KEY[key].short in page for key in shown)


def test_a_sequence_measures_them_of_its_edits_and_not_of_the_fixed_set(home: Path) -> None:
    run(home, "editor=in_context", "eval=side_effects", "mode=sequential", "job.locality.limit=2")
    [folder] = results(home, "sequential")
    retention = lines(folder / "retention.jsonl")
    assert all(case["after"]["values"].keys() >= KEYS for case in retention)
    fixed = lines_of(folder, "fixed")
    assert fixed
    assert not any(case["after"]["prompts"].keys() & SIDE_KINDS for case in fixed)
