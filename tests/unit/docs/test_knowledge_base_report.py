import argparse
from pathlib import Path
from typing import Any

import knowledge_base as report
import pages

from eval import METRICS


def page(folder: Path, ways: dict[str, Any]) -> str:
    """The page with other figures of the ways than the committed ones."""
    data = pages.read_data(report.NAME)
    data["figures"] |= {"ways": ways}
    [path] = report.PAGE(data, folder)
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


def figure(after: float, low: float, high: float) -> dict[str, float]:
    return {"before": 0.1, "after": after, "low": low, "high": high, "n": 24}


def test_the_finding_names_the_way_that_holds_most_and_the_one_that_leaves_most(tmp_path: Path) -> None:
    ways = {
        "emmet": {report.HOLDS: figure(1.0, 0.9, 1.0), report.LEAVES: figure(0.25, 0.2, 0.3)},
        "attached": {report.HOLDS: figure(0.75, 0.6, 0.9), report.LEAVES: figure(0.99, 0.9, 1.0)},
    }
    ways["emmet"][report.FOLLOWS], ways["attached"][report.FOLLOWS] = figure(0.25, 0.1, 0.4), figure(0.15, 0.0, 0.3)

    def said() -> str:
        text = page(tmp_path, {way: {"metrics": found} for way, found in ways.items()})
        return text.removeprefix("# The knowledge base: figures\n\n").splitlines()[0]

    text = said()
    assert text.startswith(
        "`emmet` holds 24 of 24 facts and leaves 25.0 [20.0, 30.0] % of the answers beside them word for"
    )
    assert "`attached` holds 18 of 24 facts" in text
    assert "15 to 25 %, with intervals that overlap: 24 facts show no order" in text
    assert "Take `attached` where the neighbours matter" in text
    ways["attached"][report.FOLLOWS] = figure(0.05, 0.0, 0.09)
    assert "overlap" not in said()


def test_a_way_that_refuses_is_said(tmp_path: Path) -> None:
    text = page(tmp_path, {"memit": {"refused": "too large a change"}})
    assert text.splitlines()[2].startswith("What the ways are")  # nothing is found
    assert "`memit` refused the list: too large a change" in text
    assert "the unedited model" not in text


def test_the_defaults_are_facts_that_nothing_was_chosen_on() -> None:
    parser = argparse.ArgumentParser()
    report.options(parser)
    found = parser.parse_args([])
    assert (found.offset, found.facts) == (1700, 50)
