import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from corrigenda.runs.store import Store
from eval.leaderboard import leaderboard
from eval.leaderboard.boards import Board
from eval.leaderboard.entries import collect
from eval.leaderboard.table import board

LEVELS = (3.0, 3.1, 2.9, 3.2)
"""Of the unedited model, by window of two tokens, in nats."""
RISES = (0.0, 0.4, 0.1, 0.3)


def boards(tmp_path: Path) -> tuple[Board, ...]:
    return leaderboard(Store(tmp_path / "outputs").runs()).boards


def windows(levels: Sequence[float]) -> dict[str, Any]:
    return {"windows": [0, 1, 2, 3], "log_probs": [-2 * level for level in levels], "tokens": [2] * 4}


def test_the_interval_of_the_drift_is_over_windows(tmp_path: Path, make_run: Any) -> None:
    held_out = {"before": windows(LEVELS), "after": windows([a + b for a, b in zip(LEVELS, RISES, strict=True)])}
    make_run("rome", [True] * 40, mode="sequential", regime="stack", drift=0.2, held_out=held_out)
    [board] = boards(tmp_path)
    [cell] = [row.cells["perplexity_drift"] for row in board.rows if row.label == "rome"]
    assert cell.value == pytest.approx(0.2)
    assert cell.low is not None
    assert cell.high is not None
    # Of the means that four draws from the rises have; all forty facts say the same, and tell nothing of it.
    assert 0.0 <= cell.low < 0.15
    assert 0.25 < cell.high <= 0.4


def test_how_many_facts_are_edited_at_once_makes_another_row(tmp_path: Path, make_run: Any) -> None:
    make_run("memit", [True] * 40, name="a", mode="sequential", regime="stack", batch=1)
    make_run("memit", [False] * 40, name="b", mode="sequential", regime="stack", batch=20)
    # One that is older than the setting edited one fact after another.
    make_run("memit", [True] * 40, name="c", mode="sequential", regime="stack", seed=1)
    [board] = boards(tmp_path)
    found = {row.label: row.n_facts * len(row.entry.seeds) for row in board.rows if row.entry is not None}
    assert found == {"memit (batch=1)": 80, "memit (batch=20)": 40}


def test_facts_that_are_edited_together_have_one_time(tmp_path: Path, make_run: Any) -> None:
    """All of memit's in one edit, rome's in four: one time against four is no difference of forty."""
    for editor in ("memit", "rome"):
        make_run(editor, [True] * 40, mode="sequential", regime="stack", batch=40 if editor == "memit" else 10)
    [(key, entries)] = collect(Store(tmp_path / "outputs").runs())[0].items()
    timed = []
    for entry in entries:
        times = [1.0 if entry.editor == "memit" else 2.0 + number // 10 for number in range(40)]
        cases = zip(entry.cases.items(), times, strict=True)
        timed.append(replace(entry, cases={unit: replace(case, seconds=time) for (unit, case), time in cases}))
    found = board(key, timed, 30)
    cells = {row.entry.editor: row.cells["seconds_per_edit"] for row in found.rows if row.entry is not None}
    assert (cells["memit"].low, cells["memit"].high) == (None, None)
    assert cells["rome"].low is not None
    assert cells["rome"].low < 3.0  # of four times, 2 to 5 seconds
    [test] = [test for test in found.tests if test.metric == "seconds_per_edit"]
    assert (test.comparison.subjects, test.comparison.p) == (1, 1.0)


@pytest.mark.parametrize(("t", "shown"), [(30, False), (40, True)])
def test_a_sequence_that_its_collapse_stop_cut_short_is_not_compared(
    t: int, shown: bool, tmp_path: Path, make_run: Any
) -> None:
    whole = make_run("rome", [True] * 40, mode="sequential", regime="stack")
    facts = json.loads((whole / "summary.json").read_text())["data_fingerprint"]
    stopped = {"t": t, "figure": "reliability", "why": f"after {t} edits it is low", "n_facts_asked_for": 40}
    make_run(
        "memit", [True] * t, mode="sequential", regime="stack", said={"stopped": stopped, "data_fingerprint": facts}
    )
    found = leaderboard(Store(tmp_path / "outputs").runs())
    [board] = found.boards
    assert {row.label for row in board.rows if row.entry is not None} == {"rome"} | ({"memit"} if shown else set())
    whys = [run.why for run in found.left_out]
    assert whys == ([] if shown else ["ended by its collapse stop: after 30 edits it is low, of 40 asked for"])


def test_what_is_asked_in_real_use_splits_no_table(tmp_path: Path, make_run: Any) -> None:
    make_run("rome", [True] * 40)
    folder = make_run("memit", [True] * 40)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["eval"]["real_use"] = {"_target_": "eval.RealUse", "max_new_tokens": 50}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    [board] = boards(tmp_path)
    assert {row.label for row in board.rows if row.entry is not None} == {"rome", "memit"}
