import math
from typing import Any

import pytest
import tradeoff
import tradeoff_memories


def point(scale: float, free: list[int], wrong: float, windows: float = 0.0) -> dict[str, Any]:
    """A point that answers some paraphrases freely, and so much of the prompts of the edits' form wrongly."""
    figures = dict.fromkeys(tradeoff_memories.KEYS, [1.0] * len(free)) | {tradeoff.FREE: free}
    return {
        "scale": scale,
        "figures": figures,
        "answered": {"locality": [0.0], "same_form": [wrong], "windows": [windows]},
    }


MANY = point(1.0, [1] * 6 + [0] * 2, 0.5)
FEW = point(0.5, [1] * 2 + [0] * 6, 0.1)


def test_the_best_point_is_within_the_limit() -> None:
    def best(points: list[dict[str, Any]], limit: float) -> dict[str, Any]:
        return points[tradeoff.best([tradeoff.shares(point) for point in points], limit)]

    points = [FEW, MANY]
    assert best(points, 60) is MANY
    assert best(points, 30) is FEW
    assert best([MANY, point(2.0, [1] * 8, 0.0, windows=0.9)], 60) is MANY  # every kind counts
    assert best([MANY], 5) is MANY  # its share is shown beside it


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
