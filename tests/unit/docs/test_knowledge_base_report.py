import argparse
from pathlib import Path
from typing import Any

import knowledge_base as report
import pages
import pytest

from eval import METRICS


def page(folder: Path, ways: dict[str, Any]) -> str:
    """The page with other figures of the ways than the committed ones."""
    data = pages.read_data(report.NAME)
    data["figures"] |= {"ways": ways}
    [path] = report.REPORT.page(data, folder)
    return path.read_text()


def test_every_figure_after_has_its_before(tmp_path: Path) -> None:
    metric = {"before": 0.25, "after": 0.5, "low": 0.4, "high": 0.6, "n": 4}
    drift = {"before": None, "after": 0.5, "low": 0.4, "high": 0.6, "n": 4}
    way = {"metrics": {report.HOLDS: metric, "perplexity_drift": drift}}
    lines = page(tmp_path, {"memit": {"refused": "no"}, "emmet": way}).splitlines()
    [before] = [line for line in lines if line.startswith("| the unedited model")]
    [after] = [line for line in lines if line.startswith("| `emmet`")]
    place = 2 + report.SHOWN.index(report.HOLDS)
    assert before.split("|")[place].strip() == METRICS[report.HOLDS].written.text(0.25)
    assert sum(bool(cell.strip()) for cell in before.split("|")) == 2  # the name, and one figure
    assert before.count("|") == after.count("|")


@pytest.mark.parametrize(("leaves", "advised"), [("attached", True), ("emmet", False)])
def test_only_entries_beside_the_model_are_taken_for_that(tmp_path: Path, leaves: str, advised: bool) -> None:
    def way(holds: float, keeps: float) -> dict[str, Any]:
        shares = {report.HOLDS: holds, report.LEAVES: keeps}
        return {
            "metrics": {key: {"before": 0.1, "after": one, "low": 0, "high": 1, "n": 4} for key, one in shares.items()}
        }

    text = page(tmp_path, {"memit": way(1.0, 0.25), leaves: way(0.5, 0.75)})
    assert f"`{leaves}` holds 2 of 4 facts" in text
    assert (f"Take `{leaves}` where the neighbours matter" in text) == advised


def test_the_defaults_are_facts_that_nothing_was_chosen_on() -> None:
    parser = argparse.ArgumentParser()
    report.options(parser)
    found = parser.parse_args([])
    assert (found.offset, found.facts) == (1700, 50)
