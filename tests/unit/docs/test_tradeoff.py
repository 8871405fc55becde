import math
from typing import Any

import pytest
import tradeoff
import tradeoff_memories
import words


def point(scale: float, free: list[int], wrong: float, windows: float = 0.0) -> dict[str, Any]:
    """A point that answers some paraphrases freely, and so much of the prompts of the edits' form wrongly."""
    figures = dict.fromkeys(tradeoff_memories.KEYS, [1.0] * len(free)) | {tradeoff.FREE: free}
    return {
        "scale": scale,
        "figures": figures,
        "answered": {"locality": [0.0], "same_form": [wrong], "windows": [windows]},
    }


def told(trials: list[dict[str, Any]] | None = None, value: float = 1.0, **points: list[dict[str, Any]]) -> list[str]:
    """The page's lines, from curves; and from trials of one setting."""
    before = {tradeoff.FREE: [0] * 8}
    editors = {name: {"settings": {"widen": 2.0}, "points": found} for name, found in points.items()}
    tuned = {"grace": {"chosen": {"a": value}, "trials": trials or [{"settings": {"a": 1.0}, **FEW}]}}
    figures = {
        "collect": {"model": "tiny", "facts": "some", "before": before, "editors": editors},
        "tune": {"facts": "others", "before": before, "editors": tuned},
    }
    data = {"figures": figures, "digest": tradeoff.digest(figures)}
    return words.rendered("tradeoff", {**tradeoff.shown(data), "provenance": ""}).splitlines()


MANY = point(1.0, [1] * 6 + [0] * 2, 0.5)
FEW = point(0.5, [1] * 2 + [0] * 6, 0.1)
NONE = point(0.5, [0] * 8, 0.2)


def test_the_best_point_is_within_the_limit() -> None:
    def best(points: list[dict[str, Any]], limit: float) -> dict[str, Any]:
        return points[tradeoff.best([tradeoff.shares(point) for point in points], limit)]

    points = [FEW, MANY]
    assert best(points, 60) is MANY
    assert best(points, 30) is FEW
    assert best([MANY, point(2.0, [1] * 8, 0.0, windows=0.9)], 60) is MANY  # every kind counts
    assert best([MANY], 5) is MANY  # its share is shown beside it


def test_the_finding_and_the_table_are_of_the_same_points() -> None:
    lines = told(grace_wide=[FEW, MANY], wise_whitened=[NONE])
    [finding] = [line for line in lines if "`grace_wide` 25.0 % (and " in line]
    assert "at most 30 %" in finding
    [row] = [line for line in lines if line.startswith("| grace_wide |")]
    assert "25.0; 100.0 (10.0)" in row
    [free] = [line for line in lines if line.startswith("| grace_wide less wise_whitened, free |")]
    cells = free.split(" | ")
    assert cells[3].startswith("+25.0 [")
    assert cells[4].startswith("+75.0 [")
    [forced] = [line for line in lines if "less wise_whitened, forced" in line]
    assert "+0.0" in forced


def test_widths_are_those_that_a_user_sets() -> None:
    lines = told(grace_wide=[point(0.25, [0] * 8, 0.0), FEW, MANY])
    begin = next(at for at, line in enumerate(lines) if line.startswith("| `widen` |"))
    rows = lines[begin + 2 : lines.index("", begin)]
    assert [row.split(" | ")[0] for row in rows] == ["| 1", "| 2"]  # 0.5 would be narrower than the rules leave them


@pytest.mark.parametrize(("value", "edge"), [(1.0, ["a"]), (2.0, []), (3.0, ["a"])])
def test_a_setting_at_the_edge_of_its_grid_is_named(value: float, edge: list[str]) -> None:
    trials = [{"settings": {"a": one}, **FEW} for one in (1.0, 2.0, 3.0)]
    assert tradeoff.at_edge({"chosen": {"a": value}, "trials": trials}) == edge
    [row] = [line for line in told(trials, value, grace=[FEW]) if line.startswith("| grace | `a=")]
    assert row.split(" | ")[3:] == ["3", "1", f"`{edge[0]}` |" if edge else "nothing |"]  # three trials of one result


def test_ten_of_ten_is_not_sure() -> None:
    """Clopper and Pearson: from 0.025 ** (1 / 10) on."""
    edits = tradeoff.shares(point(1.0, [1] * 10, 0.0))[tradeoff.EDITS]
    assert edits == {"mean": 1.0, "low": pytest.approx(0.025**0.1), "high": 1.0}


def test_the_objective_by_hand() -> None:
    """3 / (1 / 0.5 + 1 / 0.25 + 1 / 0.75), and nothing for what fails in one of them or was refused."""

    def point(right: list[int], paraphrases: list[int], same_form: list[int]) -> dict[str, Any]:
        figures = {"free_generation_strict": right, "paraphrase_free_generation_strict": paraphrases}
        return {"figures": figures, "answered": {"same_form": same_form}}

    objective = tradeoff_memories.objective
    assert objective(point([1, 0], [1, 0, 0, 0], [0, 0, 0, 1])) == pytest.approx(3 / (2 + 4 + 4 / 3))
    assert objective(point([1, 1], [1, 1], [1, 1])) == 0
    assert objective({"refused": "the loss is not finite"}) == 0


def test_every_editor_has_as_many_trials() -> None:
    assert {math.prod(map(len, grid.values())) for grid in tradeoff.GRIDS.values()} == {8}
