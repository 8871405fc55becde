"""docs/tradeoff.md: what the page says follows from the curves, at one limit for all editors."""

from __future__ import annotations

from typing import Any

import pytest
import tradeoff


def point(scale: float, free: list[int], wrong: float, windows: float = 0.0) -> dict[str, Any]:
    """A point that answers some paraphrases freely, and so much of the prompts of the edits' form wrongly."""
    figures = dict.fromkeys(tradeoff.KEYS, [1.0] * len(free)) | {tradeoff.FREE: free}
    return {
        "scale": scale,
        "figures": figures,
        "answered": {"locality": [0.0], "same_form": [wrong], "windows": [windows]},
    }


def curves(**points: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: {"settings": {"widen": 2.0}, "points": found} for name, found in points.items()}


MANY = point(1.0, [1] * 6 + [0] * 2, 0.5)
FEW = point(0.5, [1] * 2 + [0] * 6, 0.1)
NONE = point(0.5, [0] * 8, 0.2)


def test_the_best_point_is_within_the_limit() -> None:
    points = [FEW, MANY]
    assert tradeoff.best(points, 60) is MANY
    assert tradeoff.best(points, 30) is FEW
    assert tradeoff.best([MANY, point(2.0, [1] * 8, 0.0, windows=0.9)], 60) is MANY  # every kind counts
    assert tradeoff.best([MANY], 5) is MANY  # its share is shown beside it


def test_the_finding_and_the_table_are_of_the_same_points() -> None:
    editors = curves(grace_wide=[FEW, MANY], wise_whitened=[NONE])
    assert "`grace_wide` 25.0 % (and " in tradeoff.finding(editors)
    assert "at most 30 %" in tradeoff.finding(editors)
    lines = list(tradeoff.at_limits(editors))
    assert "25.0; 100.0 (10.0)" in lines[2]
    [free] = [line for line in lines if line.startswith("| grace_wide less wise_whitened, free |")]
    cells = free.split(" | ")
    assert cells[3].startswith("+25.0 [")
    assert cells[4].startswith("+75.0 [")
    [forced] = [line for line in lines if "less wise_whitened, forced" in line]
    assert "+0.0" in forced


def test_widths_are_those_that_a_user_sets() -> None:
    [_, _, *rows] = tradeoff.widths(curves(grace_wide=[point(0.25, [0] * 8, 0.0), FEW, MANY])["grace_wide"])
    assert [row.split(" | ")[0] for row in rows] == ["| 1", "| 2"]  # 0.5 would be narrower than the rules leave them


@pytest.mark.parametrize(("value", "edge"), [(1.0, ["a"]), (2.0, []), (3.0, ["a"])])
def test_a_setting_at_the_edge_of_its_grid_is_named(value: float, edge: list[str]) -> None:
    trials = [{"settings": {"a": one}, **FEW} for one in (1.0, 2.0, 3.0)]
    found = {"chosen": {"a": value}, "trials": trials}
    assert tradeoff.at_edge(found) == edge
    [_, _, row] = tradeoff.choices({"grace": found})
    assert row.split(" | ")[3:5] == ["3", "1"]  # three trials, all with the same results
