"""docs/knowledge-base-figures.md: what the page says of made-up figures."""

from __future__ import annotations

import argparse
from pathlib import Path

import knowledge_base as report

from eval import METRICS


def test_every_figure_after_has_its_before() -> None:
    metric = {"before": 0.25, "after": 0.5, "low": 0.4, "high": 0.6, "n": 4}
    drift = {"before": None, "after": 0.5, "low": 0.4, "high": 0.6, "n": 4}
    way = {"metrics": {"efficacy_success": metric, "perplexity_drift": drift}, "compile_seconds": 1.0}
    figures = {"model": "tiny", "facts": {"from": 0, "n": 4}, "ways": {"memit": {"refused": "no"}, "emmet": way}}
    [before] = [line for line in report.ways_text(figures) if line.startswith("| the unedited model")]
    [after] = [line for line in report.ways_text(figures) if line.startswith("| `emmet`")]
    place = 2 + list(report.COLUMNS).index("efficacy_success")
    assert before.split("|")[place].strip() == METRICS["efficacy_success"].written.text(0.25)
    assert sum(bool(cell.strip()) for cell in before.split("|")) == 2  # the name, and one figure
    assert before.count("|") == after.count("|")


def test_a_way_that_refuses_is_said(tmp_path: Path) -> None:
    figures = {"model": "tiny", "facts": {"from": 0, "n": 2}, "ways": {"memit": {"refused": "too large a change"}}}
    assert "`memit` refused the list: too large a change" in "\n".join(report.ways_text(figures))


def test_the_defaults_are_facts_that_nothing_was_chosen_on() -> None:
    parser = argparse.ArgumentParser()
    report.options(parser)
    found = parser.parse_args([])
    assert (found.offset, found.facts) == (1700, 50)
