"""docs/sequential.md: what is gathered from the work folder, and the page from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pages
import sequential


def point(t: int, reliability: float) -> dict[str, Any]:
    metric = {"before": 0.1, "after": reliability, "low": reliability - 0.1, "high": reliability + 0.05, "n": t}
    keys = ("token_accuracy", "paraphrase_token_accuracy", "preservation", "perplexity_drift")
    return {
        "t": t,
        "n_failed": 1,
        "norm": 2.5,
        "seconds_per_edit": 3.0,
        "metrics": dict.fromkeys(keys, metric),
        "right_after": {"token_accuracy": metric},
        "fixed": {},
    }


def sequence(work: Path, data: str, method: str, points: list[dict[str, Any]]) -> Path:
    folder = work / data / method
    with pages.making(folder):
        for one in points:
            path = folder / "curve" / f"t-{one['t']:04d}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(one))
    return folder


def test_of_several_sequences_the_one_that_went_furthest_counts(tmp_path: Path) -> None:
    sequence(tmp_path, "zsre-30", "rome", [point(10, 0.9), point(30, 0.8)])
    sequence(tmp_path, "zsre-300", "rome", [point(10, 0.9)])
    sequence(tmp_path, "zsre-300", "grace", [point(100, 0.7)])
    sequence(tmp_path, "counterfact-30", "rome", [point(10, 0.2)])
    (tmp_path / "zsre-300" / "wise").mkdir()  # begun, and no point yet
    found = sequential.gathered(tmp_path, "tiny")
    assert {data: list(found.figures["data"][data]["methods"]) for data in found.figures["data"]} == {
        "counterfact": ["ROME"],
        "zsre": ["ROME", "GRACE"],
    }
    assert [one["t"] for one in found.figures["data"]["zsre"]["methods"]["ROME"]] == [10, 30]
    assert set(found.runs) == {"counterfact rome", "zsre rome", "zsre grace"}
    assert all(len(entries) == 1 for entries in found.runs.values())


def test_the_page_from_made_up_data(tmp_path: Path) -> None:
    sequence(tmp_path / "work", "zsre-300", "rome", [point(10, 0.9), point(100, 0.4)])
    found = sequential.gathered(tmp_path / "work", "tiny")
    pages.write_data("sequential", "python docs/reports/sequential.py collect", found, tmp_path)
    written, picture = sequential.page(pages.read_data("sequential", tmp_path), tmp_path)
    text = written.read_text()
    assert picture.name == "sequential-zsre.png"
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert text.startswith("# Many edits, one after another\n\nMade by `python docs/reports/sequential.py collect`")
    assert "Every method edits the same facts of tiny (float32)" in text
    assert "| ROME | 100 | 40.0 [30.0, 45.0] | 40.0 [30.0, 45.0] |" in text
    assert "T up to 100, 1 edits failed" in text
    assert "*ROME collapses* (reliability below 50 %, or drift above 1): **seen**" in text
    head, notes = text.split("## Notes on the curves")
    assert "are in no data file" in notes
    assert "are in no data file" not in head
